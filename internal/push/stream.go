// SPDX-License-Identifier: Apache-2.0

package push

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// stream is one instance's connection. Its mailbox is the state of its view: whoever finds
// it behind brings it forward, and only one at a time does.
type stream struct {
	// set once before it is joined, read-only
	hub       *Hub
	conn      grpc.ServerStream
	terminal  terminal
	session   *fleet.Session
	shard     *shard
	namespace string
	drill     bool

	known // guarded by Hub.roster

	signs

	transfers sync.WaitGroup

	// mu guards the fields below. It is never held while a send may block.
	mu sync.Mutex
	lifetime
	position
	view   *view
	resume *resumePoint // not answered yet
	whole  wholeness
	flow   flow
	asks   turns

	// owned by the shard
	place place
}

// signs of life, atomic but for watched, which Hub.roster guards.
type signs struct {
	received   atomic.Int64  // when the instance was last heard of, a time.Duration
	progressed atomic.Int64  // when the last piece of a transfer went out, the same
	sends      atomic.Uint32 // begun and ended: odd while one is under way
	watched    uint32        // sends when Hub.blocked last looked
}

// known is who a stream is.
type known struct {
	id    string
	relay *policydv1.Relay // nil: an instance
}

// lifetime says whether the stream may still be sent on.
type lifetime struct {
	ended bool
	cause error // what the instance is told at the end
	busy  bool  // a transfer sends; nobody else may
}

// position is how far the instance was brought.
type position struct {
	epoch  string
	base   uint64 // seq of the newest state that was sent
	told   int64  // highest revision that was sent, heartbeats included
	of     string // epoch of what the fleet was told
	wanted int64
	acked  int64 // highest revision that was confirmed
	passed bool  // it was its turn while it could take nothing
}

// resumePoint is what an instance held when it came.
type resumePoint struct {
	epoch    string
	revision int64
	hash     uint64
	token    []byte
}

func (r *resumePoint) point() policy.Point {
	return policy.Point{Epoch: policy.Epoch(r.epoch), Revision: policy.Revision(r.revision), Token: r.token}
}

// wholeness says whether the next update must be a snapshot.
type wholeness uint8

const (
	notWhole   wholeness = iota
	wholeAsked           // the instance asked for it; not more often than asks allow
	wholeDue             // it has new targets
)

// next returns where the stream's next update starts; false: none is due. Guarded by mu.
func (s *stream) next(st *viewState, hubRevision int64, now time.Duration) (point, bool) {
	switch {
	case st.snap.epoch == "":
		return point{}, false // nothing was published yet
	case s.resume != nil:
		return s.first(st, hubRevision)
	case s.epoch != st.snap.epoch, s.whole == wholeDue:
		return point{kind: fromNothing}, true
	case s.whole == wholeAsked && s.asks.allow(now, askEvery, askBurst):
		return point{kind: fromNothing}, true
	case s.base == st.seq:
		return point{}, false
	case !st.reaches(s.view, s.base):
		return point{kind: fromNothing}, true
	}
	return point{kind: fromSeq, at: s.base}, true
}

// first answers a resume point. Guarded by mu.
func (s *stream) first(st *viewState, hubRevision int64) (point, bool) {
	r := s.resume
	ahead := r.epoch == st.snap.epoch && r.revision > hubRevision
	// Of what is still to come here, another policyd may know a branch.
	lost := !ahead && st.snap.history.Judge(r.point()) == policy.Lost
	if lost || ahead {
		s.hub.cfg.Suspect(r.point())
	}
	switch {
	case lost:
		return point{}, false // it waits for the epoch that follows from this
	case r.epoch != st.snap.epoch:
		return point{kind: fromNothing}, true
	case r.hash == st.hash:
		return point{kind: fromHere}, true
	case ahead:
		// It comes from a replica that is ahead, and would refuse anything older.
		return point{}, false
	case r.revision >= st.snap.since && r.revision < st.revision:
		return point{kind: fromRevision, at: uint64(r.revision)}, true
	}
	return point{kind: fromNothing}, true
}

// pump brings the stream to the newest state, unless it is behind with confirming.
func (s *stream) pump(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumpLocked(now)
}

func (s *stream) pumpLocked(now time.Duration) {
	if s.ended {
		return
	}
	hubRevision := s.hub.snap.Load().revision
	st := s.view.state.Load()
	s.want(st)
	if s.busy {
		return
	}
	if s.flow.pending() > s.hub.cfg.Limits.Unconfirmed || s.patient(st) && s.flow.awaits(now) {
		if s.base != st.seq {
			s.passed = true
			s.flow.stall(now)
		}
		return
	}
	if from, due := s.next(st, hubRevision, now); due {
		s.send(st, from, now)
	}
}

// want tells the fleet what the instance should have. Guarded by mu.
func (s *stream) want(st *viewState) {
	switch epoch := st.snap.epoch; {
	case epoch == "":
		return
	case epoch != s.of:
		s.of = epoch
		s.session.Anew() // revisions of epochs do not compare
	case st.revision == s.wanted:
		return
	}
	s.wanted = st.revision
	s.session.Wanted(st.revision)
}

// patient reports whether all that is due to the stream can wait until it has confirmed what
// it was sent: more would lie unread before the next switch. Guarded by mu.
func (s *stream) patient(st *viewState) bool {
	return s.base >= st.urgent && s.resume == nil && s.whole == notWhole && s.epoch == st.snap.epoch
}

// send is guarded by mu. It does not block: less than half of what gRPC buffers for the
// stream is unconfirmed, so that gRPC takes one more message whatever its size. Unless the
// instance confirms what it has not read; see Hub.watchSends.
func (s *stream) send(st *viewState, from point, now time.Duration) {
	m := st.message(s.view, from)
	if s.epoch != m.epoch {
		s.epoch, s.told, s.acked = m.epoch, 0, 0
		s.flow.marked = false
	}
	if s.resume != nil && s.resume.epoch == m.epoch {
		s.told = s.resume.revision // it would refuse less
	}
	within := confirmWithin(max(st.readers, s.view.refs.Load()))
	if m.size() > s.hub.cfg.Limits.Unconfirmed/2 {
		within = 0 // until it is confirmed, there may be no room for a switch
	}
	if len(m.pieces) > 1 {
		revision := max(s.told, st.snap.revision)
		s.busy = true
		s.progressed.Store(int64(now))
		// Noted before it goes out: the ack may be here before transfer returns.
		s.flow.sent += m.size()
		s.sent(st, m, revision, now)
		s.transfers.Add(1)
		go s.transfer(m, revision, within)
		return
	}
	f := st.frame(m, s.told, now, within, s.hub.reading)
	if !s.put(f) {
		return
	}
	s.sent(st, m, f.revision, now)
}

// put hands a frame to gRPC. Guarded by mu, or by busy.
func (s *stream) put(f *frame) bool {
	s.sends.Add(1)
	err := s.conn.SendMsg(f)
	s.sends.Add(1)
	if err != nil {
		s.ended = true // its Recv says why
		return false
	}
	s.flow.sent += f.size + frameOverhead
	s.hub.stats.bytes.Add(int64(f.size + frameOverhead))
	return true
}

// sent notes that an update is on its way. Guarded by mu.
func (s *stream) sent(st *viewState, m *message, revision int64, now time.Duration) {
	if s.resume == nil && !m.whole && s.base < st.prev {
		s.hub.stats.coalesced.Add(1)
	}
	s.resume, s.passed = nil, false
	s.base, s.told = st.seq, revision
	at := m.oldest
	if m.whole {
		s.whole = notWhole
		at = 0 // says nothing about how long a change was on its way
		s.hub.stats.snapshots.Add(1)
	}
	s.flow.note(revision, at, now)
	s.hub.stats.updates.Add(1)
}

// transfer sends an update of several pieces and may block at each. Nothing else is sent
// to the stream meanwhile.
func (s *stream) transfer(m *message, revision int64, within time.Duration) {
	defer s.transfers.Done()
	for i := range m.pieces {
		f := m.stamp(i, revision, s.hub.now(), within, s.hub.reading())
		if err := s.conn.SendMsg(f); err != nil {
			s.end(nil) // its Recv says why
			return
		}
		s.hub.stats.bytes.Add(int64(f.size + frameOverhead))
		s.progressed.Store(int64(s.hub.now()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	now := s.hub.now()
	s.flow.sentAt = now
	s.pumpLocked(now)
}

// confirm takes an Ack.
func (s *stream) confirm(a *plainAck, rejected []fleet.Rejection) error {
	now := s.hub.now()
	s.mu.Lock()
	if a.epoch != s.epoch || a.revision < s.acked {
		s.mu.Unlock()
		return nil // it crossed something newer on the way
	}
	if a.revision > s.told {
		told := s.told
		s.mu.Unlock()
		return status.Errorf(codes.InvalidArgument, "ack: revision %d was never sent, the newest was %d", a.revision, told)
	}
	if waited, ok := s.flow.confirm(a.revision, now); ok {
		s.hub.stats.propagation.observe(waited)
	}
	if a.wantSnapshot {
		s.flow.read()
		if s.whole == notWhole {
			s.whole = wholeAsked
		}
	} else {
		s.acked = a.revision
		// In order with the acks before it, hence under mu.
		s.session.Confirmed(a.revision, rejected)
	}
	if s.passed || s.whole != notWhole {
		// Else its turn comes with everybody's.
		s.pumpLocked(now)
	}
	s.mu.Unlock()
	return nil
}

// retarget gives the stream another view; the next update is a snapshot of it.
func (s *stream) retarget(v *view) (old *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.view = s.view, v
	s.whole = wholeDue
	if s.resume != nil {
		// What it holds is of other targets; only its revision still counts.
		s.epoch, s.told = s.resume.epoch, s.resume.revision
		s.resume = nil
	}
	return old
}

// beat sends a heartbeat if the stream has everything that concerns it up to the
// heartbeat's revision, and ends the stream if it takes nothing any more. The heartbeat is of
// hub.
func (s *stream) beat(hub *snapshot, hb *frame, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pumpLocked(now)
	if s.ended {
		return
	}
	limits := &s.hub.cfg.Limits
	if s.stuck(now, limits.CutOff) {
		s.hub.stats.cutOff.Add(1)
		s.endLocked(status.Errorf(codes.ResourceExhausted, "nothing was confirmed for %s", limits.CutOff))
		return
	}
	st := s.view.state.Load()
	if s.busy || st.snap.epoch == "" {
		return
	}
	pending, held := s.flow.pending(), s.resume != nil
	switch {
	case pending > limits.Unconfirmed:
		s.flow.stall(now)
	case hub.epoch != st.snap.epoch:
		// The epoch ended this moment; a revision of it means nothing in the next one.
	case !held && (s.base != st.seq || s.epoch != st.snap.epoch):
		// Something newer came this moment; the heartbeat would claim that it has it.
	case !held && !s.flow.marked && pending > limits.Unconfirmed/2:
		// Heartbeats are not confirmed, an update is: does it still read?
		s.send(st, point{kind: fromHere}, now)
	default:
		if s.put(hb) && !held {
			s.told = max(s.told, hb.revision)
		}
	}
}

// stuck is guarded by mu.
func (s *stream) stuck(now, limit time.Duration) bool {
	if s.busy {
		return now-time.Duration(s.progressed.Load()) > limit
	}
	return s.flow.stalled(now) > limit
}

func (s *stream) goAway(f *frame, window time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && !s.busy && s.flow.pending() <= s.hub.cfg.Limits.Unconfirmed && s.put(f) {
		s.session.Leaving(window)
	}
}

// end lets nobody send to the stream any more. With a cause it also ends it; the first cause
// counts.
func (s *stream) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(cause)
}

func (s *stream) endLocked(cause error) {
	s.ended = true
	if s.cause != nil || cause == nil {
		return
	}
	s.cause = cause
	// Fails only if the connection did, and then there is nobody to tell.
	_ = s.terminal.WriteStatus(status.Convert(cause))
}
