// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/policyd/policyd/internal/policy"
)

// Reasons to end a watch and read everything again.
var (
	errSilent = errors.New("the store gives no sign of life")
	errEnded  = errors.New("the watch ended")
	errDrift  = errors.New("the view is not as the store")
)

// Run keeps the view as the store is, until ctx ends; it may run once at a time. Each sink
// hears of every change in order: first everything (Reset), then one Update per revision
// that wrote or deleted a document. After a gap in the watch one Update may cover many
// revisions, and it is a Reset when older ones turned out to be wrong. The view is already
// as the Update says when a sink is called; a sink that blocks holds up everyone.
func (s *Store) Run(ctx context.Context, sinks ...func(policy.Update)) error {
	pause, quiet := s.timing.Pause, false
	for life := 1; ; life++ {
		confirmed, err := s.follow(ctx, life, sinks)
		if ctx.Err() != nil {
			return nil
		}
		if confirmed {
			pause, quiet = s.timing.Pause, false
		}
		// One line for an outage, however long it is.
		if !quiet {
			quiet = true
			s.log.Warn("store is read again", "error", err)
		}
		if s.rest(ctx, pause) {
			pause = s.timing.Pause
		} else {
			pause = min(2*pause, s.timing.MaxPause)
		}
	}
}

// rest waits for pause, or until a connection that was lost is back, and says which.
func (s *Store) rest(ctx context.Context, pause time.Duration) (back bool) {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	conn := s.client.ActiveConnection()
	if conn == nil || conn.GetState() == connectivity.Ready {
		<-ctx.Done()
		return false
	}
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
	return true
}

// follow opens a watch, reads everything and then follows the changes until something is wrong.
// confirmed says that the store has proved to be alive after the reading.
func (s *Store) follow(ctx context.Context, life int, sinks []func(policy.Update)) (confirmed bool, err error) {
	began, err := s.newest(ctx)
	if err != nil {
		s.doubt(err)
		return false, err
	}
	// The mark makes etcd's client open a new stream for each watch: streams are shared by
	// metadata, and the one before may hang. A member that has lost its leader ends the
	// watch instead of keeping quiet.
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(
		metadata.AppendToOutgoingContext(ctx, "policyd-watch", strconv.Itoa(life))))
	watching = withOneStream(watching)
	w := &watch{store: s, sinks: sinks, probes: make(chan probe, 1), listings: make(chan comparison, 1)}
	defer cancel()
	// The reads end before the watch does: to ask a watch that is gone for its progress would
	// open another one.
	reads, stop := context.WithCancel(watching)
	defer w.work.Wait()
	defer stop()

	// The watch stands before everything is read: data put back in between would end it. It
	// begins at what is there and not after it: etcd tells no progress of one that begins at a
	// revision to come. Watch returns when a member has accepted it, or when its context ends.
	overdue := time.AfterFunc(s.timing.Silence/3, cancel)
	responses := s.client.Watch(watching, s.keys.prefix,
		clientv3.WithPrefix(), clientv3.WithRev(int64(began)), clientv3.WithProgressNotify())
	accepted := overdue.Stop()
	if w.from, err = s.relist(ctx, sinks); err != nil {
		s.doubt(err)
		return false, err
	}
	if !accepted {
		return false, errSilent
	}
	err = w.run(reads, responses)
	return w.alive, err
}

// newest returns the revision that a quorum is at.
func (s *Store) newest(ctx context.Context) (policy.Revision, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.timing.Request)
	defer cancel()
	answer, err := s.client.Get(ctx, s.keys.epoch(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	return policy.Revision(answer.Header.GetRevision()), nil
}

// watch is one watch of the store. Its fields belong to the goroutine of run.
type watch struct {
	store *Store
	sinks []func(policy.Update)
	from  policy.Revision // in the view by the reading
	work  sync.WaitGroup  // reads in the background

	probes  chan probe
	probing bool
	probed  time.Time       // when the last one began
	claimed policy.Revision // the highest that an instance proves to have been served
	// The last probe that came back, and how far the watch has got since it began.
	pending *probe
	heard   policy.Revision
	alive   bool // the view was known to be right since the watch began

	listings  chan comparison
	comparing bool
	listed    *comparison
}

// probe is a read that a quorum answered: everything up to revision was there at began.
type probe struct {
	began    time.Time
	least    policy.Revision // was there before
	revision policy.Revision
	cluster  uint64
	err      error
}

func (w *watch) run(ctx context.Context, responses clientv3.WatchChan) error {
	probing := time.NewTicker(w.store.timing.Probe)
	defer probing.Stop()
	comparing := time.NewTicker(w.store.timing.Compare)
	defer comparing.Stop()
	silence := time.NewTimer(w.store.timing.Silence)
	defer silence.Stop()
	w.probe(ctx)
	for {
		select {
		case response, ok := <-responses:
			if !ok {
				return errEnded
			}
			if err := w.receive(response); err != nil {
				return err
			}
		case p := <-w.probes:
			w.probing = false
			if p.err == nil {
				if p.cluster != w.store.state.cluster {
					return errEpoch
				}
				if p.revision < p.least {
					w.store.suspect(w.store.state.epoch, fmt.Sprintf("the store went back from revision %d to %d", p.least, p.revision), nil)
					return errEpoch
				}
				w.pending = &p
			}
		case c := <-w.listings:
			w.comparing = false
			if c.err == nil {
				w.listed = &c
			}
		case <-probing.C:
			w.probe(ctx)
		case p := <-w.store.suspects:
			if err := w.examine(ctx, p); err != nil {
				return err
			}
		case <-w.store.alarm:
			return errEpoch
		case <-silence.C:
			w.store.doubt(errSilent)
			return errSilent
		case <-comparing.C:
			w.compare(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
		if w.pending != nil && w.heard >= w.pending.revision {
			w.store.confirm(w.pending.began)
			silence.Reset(w.store.timing.Silence)
			w.alive, w.pending = true, nil
		}
		if w.listed != nil && w.store.reached(w.listed.revision) {
			if err := w.store.check(w.listed); err != nil {
				return err
			}
			w.listed = nil
		}
	}
}

// receive takes in one message of the watch.
func (w *watch) receive(response clientv3.WatchResponse) error {
	if err := response.Err(); err != nil {
		return err
	}
	// Etcd's client goes on with its watches wherever it gets through, be it to other data.
	if response.Header.GetClusterId() != w.store.state.cluster {
		return errEpoch
	}
	// A message with events may be one of several for the revision in its header; only one
	// without says that there is nothing before it.
	upTo := policy.Revision(0)
	if n := len(response.Events); n > 0 {
		upTo = policy.Revision(response.Events[n-1].Kv.GetModRevision())
		fresh := slices.DeleteFunc(response.Events, func(e *clientv3.Event) bool {
			return policy.Revision(e.Kv.GetModRevision()) <= w.from
		})
		if err := w.store.take(fresh, w.sinks); err != nil {
			return err
		}
	} else if response.IsProgressNotify() {
		upTo = policy.Revision(response.Header.GetRevision())
	}
	w.heard = max(w.heard, upTo)
	w.store.advance(upTo)
	return nil
}

// probe asks a quorum for the newest revision and the watch for a sign that it has got
// there. Both must answer: a member without quorum keeps its watches open, and a watch may
// hang while other requests pass.
func (w *watch) probe(ctx context.Context) {
	if w.probing {
		return
	}
	p := probe{began: time.Now(), least: max(w.store.inView(), w.claimed)}
	w.probing, w.probed, w.heard, w.pending = true, p.began, 0, nil
	unrecorded := w.store.unrecordedDeletions()
	w.work.Go(func() {
		read, cancel := context.WithTimeout(ctx, w.store.timing.Request)
		defer cancel()
		w.store.recordDeletions(read, unrecorded)
		answer, err := w.store.client.Get(read, w.store.keys.epoch(), clientv3.WithKeysOnly())
		if err == nil {
			p.revision, p.cluster = policy.Revision(answer.Header.GetRevision()), answer.Header.GetClusterId()
			err = w.store.client.RequestProgress(ctx)
		}
		p.err = err
		w.probes <- p
	})
}

// examine looks into a point that does not fit.
func (w *watch) examine(ctx context.Context, p policy.Point) error {
	st := w.store.state
	verdict := st.history.Judge(p)
	switch same := p.Epoch == st.epoch; {
	case verdict != policy.Lost && verdict != policy.Past:
	case same && p.Revision > w.store.inView():
		// Served by a replica that is ahead, which may know a branch that is still to come here.
		w.claimed = max(w.claimed, p.Revision)
	case verdict == policy.Lost:
		w.store.suspect(st.epoch, fmt.Sprintf(
			"an instance was served revision %d of epoch %.100q, which is not in the past of the data", p.Revision, p.Epoch), &p)
		return errEpoch
	}
	// Is this still the store of these data, and has it got as far?
	if time.Since(w.probed) >= w.store.timing.Probe/4 {
		w.probe(ctx)
	}
	return nil
}

// reached reports whether everything up to revision is in the view.
func (s *Store) reached(revision policy.Revision) bool { return s.inView() >= revision }

// inView returns the revision up to which everything is in the view.
func (s *Store) inView() policy.Revision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.seen
}
