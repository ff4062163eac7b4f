// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Watch serves one instance until it leaves or is told to.
func (h *Hub) Watch(conn grpc.BidiStreamingServer[policydv1.WatchRequest, policydv1.WatchResponse]) error {
	terminal, ok := terminalOf(conn.Context())
	if !ok {
		return status.Error(codes.Internal, "this transport cannot end a stream")
	}
	s := &stream{hub: h, conn: conn, terminal: terminal}
	if err := h.enter(s); err != nil {
		return err
	}
	defer h.leave(s)

	hello, err := h.introduced(s)
	if err != nil {
		return err
	}
	if err := h.looped(hello.relay); err != nil {
		return err
	}
	if err := h.replaced(hello); err != nil {
		return err
	}
	if err := h.join(s, hello); err != nil {
		return err
	}
	defer h.part(s)
	return s.verdict(s.listen(conn))
}

// introduced waits for the first message.
func (h *Hub) introduced(s *stream) (*hello, error) {
	late := time.AfterFunc(h.cfg.Limits.Hello, func() {
		s.end(status.Errorf(codes.InvalidArgument, "no hello within %s", h.cfg.Limits.Hello))
	})
	defer late.Stop()
	var first request
	if err := first.receive(s.conn); errors.Is(err, io.EOF) {
		return nil, s.verdict(status.Error(codes.InvalidArgument, "the stream ended without a hello"))
	} else if err != nil {
		return nil, s.verdict(err)
	}
	m, err := first.message()
	if err != nil {
		return nil, err
	}
	return readHello(m)
}

// enter admits a stream to the roster.
func (h *Hub) enter(s *stream) error {
	wait, ok := h.gate.enter(h.now())
	if !ok {
		h.stats.refused.Add(1)
		return tooMany(wait)
	}
	h.roster.Lock()
	defer h.roster.Unlock()
	if h.closing != nil {
		h.gate.leave()
		return h.closing
	}
	h.streams[s] = struct{}{}
	h.turn++
	s.shard = h.shards[h.turn%len(h.shards)]
	h.stats.accepted.Add(1)
	return nil
}

func tooMany(wait time.Duration) error {
	st, err := status.New(codes.ResourceExhausted, "too many streams, or too many at once").
		WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil {
		return status.Errorf(codes.Internal, "too many streams: %v", err)
	}
	return st.Err()
}

// leave undoes enter.
func (h *Hub) leave(s *stream) {
	s.end(nil) // waits for a send that is under way
	h.gate.leave()
	h.roster.Lock()
	defer h.roster.Unlock()
	delete(h.streams, s)
	if h.byID[s.id] == s {
		delete(h.byID, s.id)
	}
	if len(h.streams) == 0 {
		for _, empty := range h.emptied {
			close(empty)
		}
		h.emptied = nil
	}
}

// suspectAfter is how long an instance may be silent before another stream of the same
// name ends its old one; SDKs report every 10 s. Sooner, two processes that share a name
// by mistake would cut each other off for ever.
const suspectAfter = 25 * time.Second

// join makes the stream known to everybody, which starts what it is sent.
func (h *Hub) join(s *stream, hello *hello) error {
	s.namespace, s.drill, s.resume = hello.identity.Namespace, hello.identity.Drill, &hello.resume
	s.received.Store(int64(h.now()))
	s.view = h.acquire(newTargetSet(hello.identity.Targets, s.drill))
	if err := s.outdated(); err != nil {
		h.release(s.view)
		return err
	}

	held, resumed := s.holds()
	if hello.relay == nil {
		s.session = h.fleet.Connect(hello.identity, held, resumed)
	} else {
		s.session = h.fleet.Unlisted()
	}
	if resumed {
		h.stats.resumed.Add(1)
	}

	h.roster.Lock()
	s.id, s.relay = hello.identity.ID, hello.relay
	older := h.byID[s.id]
	h.byID[s.id] = s
	h.roster.Unlock()
	if older != nil && h.now()-time.Duration(older.received.Load()) > suspectAfter {
		older.end(status.Error(codes.Aborted, "a newer stream of the same instance took over"))
	}
	s.shard.move(move{s: s, to: s.view})
	return nil
}

// holds returns the revision that the resume point proves and whether it spares a snapshot.
func (s *stream) holds() (revision int64, resumed bool) {
	hubRevision := s.hub.snap.Load().revision
	st := s.view.state.Load()
	s.of = st.snap.epoch
	if s.resume.epoch == "" || s.resume.epoch != st.snap.epoch || st.snap.history.Judge(s.resume.point()) == policy.Lost {
		return 0, false
	}
	from, due := s.first(st, hubRevision)
	resumed = !due || from.kind != fromNothing
	if !resumed && s.resume.revision >= st.revision {
		return 0, false // at that revision there is something else
	}
	return s.resume.revision, resumed
}

// part undoes join. After it nobody sends to the stream any more.
func (h *Hub) part(s *stream) {
	s.end(nil)
	s.transfers.Wait()
	s.shard.move(move{s: s})
	h.release(s.view)
	s.session.Close()
}

// listen takes what the instance says until it stops.
func (s *stream) listen(conn grpc.ServerStream) error {
	var e ear
	for {
		if err := e.receive(conn); err != nil {
			return err
		}
		if err := s.hear(&e); err != nil {
			return err
		}
	}
}

// ear is what a stream knows of what it hears.
type ear struct {
	request
	reportFrom time.Duration // an earlier report is not looked at
	subscribes turns
}

func (s *stream) hear(e *ear) error {
	now := s.hub.now()
	s.received.Store(int64(now))
	if e.plain {
		return s.confirm(&e.ack, nil)
	}
	m, err := e.message()
	if err != nil {
		return err
	}
	switch kind := m.GetKind().(type) {
	case *policydv1.WatchRequest_Ack:
		a := kind.Ack
		s.hub.stats.rejected.Add(int64(len(a.GetRejected())))
		return s.confirm(&plainAck{a.GetEpoch(), a.GetRevision(), a.GetWantSnapshot()}, rejections(a.GetRejected()))
	case *policydv1.WatchRequest_Report:
		if now >= e.reportFrom {
			e.reportFrom = now + minReportEvery
			s.session.Reported(report(kind.Report))
		}
		return nil
	case *policydv1.WatchRequest_Subscribe:
		// Each may cost a look at every document.
		if err := pause(s.conn.Context(), e.subscribes.take(now, subscribeEvery, subscribeBurst)); err != nil {
			return err
		}
		return s.subscribe(kind.Subscribe)
	case *policydv1.WatchRequest_Hello:
		return status.Error(codes.InvalidArgument, "hello: sent twice")
	}
	// A newer SDK says something that this policyd does not know.
	s.session.Seen()
	return nil
}

// pause keeps an instance waiting that says too much; its connection fills up meanwhile.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *stream) subscribe(sub *policydv1.Subscribe) error {
	targets, err := readTargets(sub.GetTargets(), s.namespace)
	if err != nil {
		return err
	}
	v := s.hub.acquire(newTargetSet(targets, s.drill))
	s.session.Targets(targets)
	old := s.retarget(v)
	s.shard.move(move{s: s, to: v})
	s.hub.release(old)
	return nil
}

// verdict is what the instance is told at the end of its stream.
func (s *stream) verdict(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil:
		return s.cause
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// isDrillSDK reports whether an instance was started for drills.
func isDrillSDK(capabilities []string) bool { return slices.Contains(capabilities, "drill") }
