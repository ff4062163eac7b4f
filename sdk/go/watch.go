// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/internal/state"
	"github.com/policyd/policyd/sdk/go/reconnect"
)

const (
	// silence is how long policyd may say nothing: 2.5 heartbeats of 15 s.
	silence = 37500 * time.Millisecond
	// longestWindow bounds the wait that a GoAway asks for.
	longestWindow = 10 * time.Minute
	// farewell bounds the wait for policyd to take the last report.
	farewell = 500 * time.Millisecond
	// maxPieces bounds the encoded size of one update, all pieces together.
	maxPieces = 256 << 20
)

// Why a stream ends from this side.
var (
	errSilent   = errors.New("no heartbeat within 37.5s")
	errGoAway   = errors.New("policyd asked to reconnect")
	errCutOff   = errors.New("the relay is cut off from policyd")
	errGoodbye  = errors.New("client is closing")
	errTwice    = errors.New("snapshot does not fit its own hash")
	errPieces   = errors.New("pieces of different updates")
	errOversize = fmt.Errorf("update of more than %d bytes", maxPieces)
)

// watch keeps one stream to policyd open, never two, until ctx ends.
func (c *Client) watch(ctx context.Context) {
	var wait reconnect.Wait
	for next := int(c.random() * float64(len(c.cfg.addrs))); ; next++ {
		addr := c.cfg.addrs[next%len(c.cfg.addrs)]
		end := c.stream(ctx, addr)
		if ctx.Err() != nil {
			c.link.closed()
			return
		}
		c.link.lost(addr, end.Err, end.Refused)
		// After a GoAway the next stream comes at its own time, even if the old one ended early.
		left := max(0, time.Until(end.ComeBack))
		if !sleep(ctx, left+wait.After(end, c.random)) {
			return
		}
	}
}

func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// session is one stream. Receiving is left to one goroutine; sending is shared.
type session struct {
	c      *Client
	addr   string
	cancel context.CancelCauseFunc

	// guarded by mu
	mu      sync.Mutex
	stream  policydv1.WatchService_WatchClient
	serving bool // the first update is in force
	confirm confirmation

	// used by the receiving goroutine
	pieces   *policydv1.Update
	size     int
	upSince  time.Time // of the first update; zero before
	older    bool      // an older revision was told
	asked    string    // update after which a snapshot was asked for
	comeBack time.Time // when a GoAway wants the next stream; zero without one
	leave    *time.Timer
	dog      *time.Timer
}

// stream opens a stream, serves it to its end and says how it ended. When ctx ends the
// stream takes leave first.
func (c *Client) stream(ctx context.Context, addr string) reconnect.Ended {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s := &session{c: c, addr: addr, cancel: cancel}
	left := make(chan struct{})
	stay := context.AfterFunc(ctx, func() {
		defer close(left)
		c.survives("goodbye", s.goodbye)
	})
	defer func() {
		if !stay() {
			<-left
		}
	}()

	err := s.serve(own)
	if s.leave != nil {
		s.leave.Stop()
	}
	s.forgetDue()
	if cause := context.Cause(own); cause != nil && status.Code(err) == codes.Canceled {
		err = cause
	}
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		err = errors.New("policyd ended the stream")
	}
	end := reconnect.Ended{Err: err, Refused: refused(err), ComeBack: s.comeBack}
	if !s.upSince.IsZero() {
		end.Up = time.Since(s.upSince)
	}
	return end
}

func (s *session) serve(ctx context.Context) error {
	// A peer that is gone without a word must not be waited for, neither in Recv nor in Send.
	// Nor must one that does not get as far as what is held.
	s.dog = time.AfterFunc(silence, func() { s.cancel(errSilent) })
	defer s.dog.Stop()
	conn, err := s.c.dial(s.addr)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is left to lose
	if ctx, err = s.c.authorized(ctx); err != nil {
		return err
	}
	stream, err := policydv1.NewWatchServiceClient(conn).Watch(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stream = stream
	s.mu.Unlock()
	var reports sync.WaitGroup
	defer reports.Wait()
	defer s.cancel(nil)
	reports.Go(func() { s.c.survives("reports", func() { s.report(ctx) }) })
	if err := s.send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: s.c.hello()}}); !over(err) {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			if status.Code(err) == codes.Internal { // it may be that the update could not be read
				s.c.remote.Doubt()
			}
			return err
		}
		if err := s.receive(m); err != nil {
			return err
		}
	}
}

// goodbye sends what was not reported yet and ends the stream.
func (s *session) goodbye() {
	dog := time.AfterFunc(farewell, func() { s.cancel(errGoodbye) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving || s.confirmDue() != nil || s.stream.Send(s.c.nextReport(time.Now())) != nil || s.stream.CloseSend() != nil {
		dog.Stop()
		s.cancel(errGoodbye)
	}
}

// over reports whether a Send went well or found that policyd has ended the stream. What came
// before the end is still to be received, and then the status.
func over(err error) bool {
	return err == nil || err == io.EOF //nolint:errorlint // gRPC returns it bare
}

func (s *session) send(m *policydv1.WatchRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// hello introduces this instance with the state that it holds.
func (c *Client) hello() *policydv1.Hello {
	return &policydv1.Hello{
		Instance: c.cfg.instance, Namespace: c.cfg.namespace, Service: c.cfg.service,
		SdkLanguage: "go", SdkVersion: Version, Mode: c.cfg.mode.proto(),
		Targets: scopeNames(c.cfg.targets), Source: c.remote.source, Resume: c.remote.Resume(), Left: c.remote.Left(),
	}
}

func (m Mode) proto() policydv1.Mode {
	switch m {
	case Observe:
		return policydv1.Mode_MODE_OBSERVE
	case Off:
		return policydv1.Mode_MODE_OFF
	default:
		return policydv1.Mode_MODE_ENFORCE
	}
}

func (s *session) receive(m *policydv1.WatchResponse) error {
	now := time.Now()
	switch kind := m.GetKind().(type) {
	case *policydv1.WatchResponse_Update:
		return s.update(kind.Update, now)
	case *policydv1.WatchResponse_Heartbeat:
		if !s.upSince.IsZero() && s.c.remote.Current(kind.Heartbeat.GetRevision(), kind.Heartbeat.GetToken()) {
			s.dog.Reset(silence)
			asOf := vouched(kind.Heartbeat, now)
			s.c.link.confirmed(&s.c.remote.State, s.addr, asOf, now)
			if s.c.remote.ClockSeen(kind.Heartbeat.GetServerTime(), now) {
				s.c.save(now)
			} else {
				s.c.vouch(vouchEvery, now)
			}
			if len(s.c.cfg.addrs) > 1 && now.Sub(asOf) >= silence && now.Sub(s.upSince) >= silence {
				return errCutOff // another address may know more
			}
		}
	case *policydv1.WatchResponse_GoAway:
		if s.comeBack.IsZero() {
			window := min(max(kind.GoAway.GetReconnectWithin().AsDuration(), 0), longestWindow)
			wait := s.c.random.share(window)
			s.comeBack = now.Add(wait)
			s.leave = time.AfterFunc(wait, func() { s.cancel(errGoAway) })
		}
	}
	return nil
}

// vouched is the moment up to which what is in force is known to be the newest: now, or what
// a relay says that is cut off.
func vouched(m interface {
	GetServerTime() *timestamppb.Timestamp
	GetAsOf() *timestamppb.Timestamp
}, now time.Time,
) time.Time {
	if m.GetAsOf() == nil || m.GetServerTime() == nil {
		return now
	}
	return now.Add(-max(0, m.GetServerTime().AsTime().Sub(m.GetAsOf().AsTime())))
}

// update gathers the pieces of an update and applies it once it is whole.
func (s *session) update(u *policydv1.Update, now time.Time) error {
	s.size += proto.Size(u)
	if s.size > maxPieces {
		return errOversize
	}
	if s.pieces == nil {
		s.pieces = u
	} else if s.pieces.GetEpoch() != u.GetEpoch() || s.pieces.GetRevision() != u.GetRevision() {
		return errPieces
	} else {
		entries := append(s.pieces.GetEntries(), u.GetEntries()...)
		s.pieces, u.Snapshot = u, s.pieces.GetSnapshot()
		u.Entries = entries
	}
	if len(s.pieces.GetEntries()) > 2*state.MaxEntries {
		return state.ErrTooLarge
	}
	if u.GetMore() {
		s.dog.Reset(silence)
		return nil
	}
	whole := s.pieces
	s.pieces, s.size = nil, 0
	return s.apply(whole, now)
}

func (s *session) apply(u *policydv1.Update, now time.Time) error {
	c := s.c
	before := c.remote.Epoch()
	if u.GetAsOf() != nil && before != "" && before != u.GetEpoch() {
		return errCutOff // what is held may be the newer
	}
	ch, err := c.remote.Apply(u, now)
	switch {
	case err == nil:
	case errors.Is(err, state.ErrOlder):
		if !s.older {
			s.older = true
			c.cfg.logger.Warn("policyd sent an older revision; it is ignored", "addr", s.addr, "revision", u.GetRevision(), "held", c.remote.Revision())
		}
		return s.ack(u, false)
	case errors.Is(err, state.ErrHash), errors.Is(err, state.ErrNoEpoch):
		return s.askSnapshot(u, err)
	default:
		return err
	}
	if ch.NewEpoch {
		c.cfg.logger.Warn("policyd has other data than before, as after a restore; everything was taken anew",
			"addr", s.addr, "epoch", state.Printable(u.GetEpoch()), "before", state.Printable(before), "revision", u.GetRevision())
	}
	if s.upSince.IsZero() {
		s.upSince = now
		s.mu.Lock()
		s.serving = true
		s.mu.Unlock()
	}
	s.dog.Reset(silence)
	c.inForce(ch, s.addr, vouched(u, now), now)
	return s.ack(u, false)
}

// askSnapshot asks for the whole state, once per update: what does not fit then ends the
// stream, so that the next try comes after a wait and perhaps from another policyd.
func (s *session) askSnapshot(u *policydv1.Update, why error) error {
	this := fmt.Sprintf("%s %d", u.GetEpoch(), u.GetRevision())
	if u.GetSnapshot() || s.asked == this {
		return fmt.Errorf("%w: %w", errTwice, why)
	}
	s.asked = this
	s.c.cfg.logger.Info("state differs from policyd's; asking for all of it", "addr", s.addr, "revision", u.GetRevision())
	return s.ack(u, true)
}

// inForce puts what is held into force, known to be the newest at asOf, and tells of it.
func (c *Client) inForce(ch state.Change, addr string, asOf, now time.Time) {
	c.remote.mu.Lock()
	defer c.remote.mu.Unlock()
	c.remote.inUse.Store(true)
	changed := c.install(contentOf(&c.remote.State, now), now)
	c.link.confirmed(&c.remote.State, addr, asOf, now)
	c.setReady()
	c.announce(now)
	c.stir() // for the end of a switch
	c.policyChanged(PolicyEvent{Revision: c.remote.Revision(), Changed: changed, Err: c.tellRejected(ch.Rejected)})
	c.save(now)
}
