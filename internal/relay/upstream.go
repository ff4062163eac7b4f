// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/reconnect"
)

const (
	// silence is how long an upstream may say nothing: 2.5 heartbeats of 15 s.
	silence = 37500 * time.Millisecond
	// longestWindow bounds the wait that a GoAway asks for.
	longestWindow = 10 * time.Minute
	// maxPieces bounds the encoded size of one update, all pieces together.
	maxPieces = 256 << 20
)

// Why a stream ends from this side.
var (
	errConnecting = errors.New("not connected yet")
	errSilent     = errors.New("no heartbeat within 37.5s")
	errEnded      = errors.New("the stream has ended")
	errGoAway     = errors.New("the upstream asked to reconnect")
	errCutOff     = errors.New("the upstream is cut off itself")
	errEpoch      = errors.New("the upstream is cut off itself and has data of another epoch")
	errTwice      = errors.New("snapshot does not fit its own hash")
	errPieces     = errors.New("pieces of different updates")
	errOversize   = fmt.Errorf("update of more than %d bytes", maxPieces)
)

// follow keeps one stream to an upstream open, never two, until ctx ends.
func (r *Relay) follow(ctx context.Context) {
	var wait reconnect.Wait
	for next := int(share() * float64(len(r.cfg.Upstream))); ; next++ {
		addr := r.cfg.Upstream[next%len(r.cfg.Upstream)]
		s := &session{r: r, addr: addr, heard: time.Now()}
		end := s.run(ctx)
		if ctx.Err() != nil {
			return
		}
		r.lost(ctx, addr, end.Err, s.heard)
		left := max(0, time.Until(end.ComeBack))
		if !sleep(ctx, left+wait.After(end, share)) {
			return
		}
	}
}

// refused reports whether an upstream will not have this relay: for its token, or a loop.
func refused(err error) bool {
	switch status.Code(err) { //nolint:exhaustive // the others pass
	case codes.Unauthenticated, codes.PermissionDenied, codes.FailedPrecondition:
		return true
	}
	return false
}

// sleep waits for d and reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// session is one stream to an upstream.
type session struct {
	r      *Relay
	addr   string
	cancel context.CancelCauseFunc
	stream grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse]
	// sending is shared.
	sendMu sync.Mutex

	onServing func() // called once, at the first update
	pieces    *update
	size      int
	upSince   time.Time // of the first update; zero before
	heard     time.Time // when the upstream last said that what is held is the newest
	older     bool      // an older revision was told
	asked     string    // update after which a snapshot was asked for
	comeBack  time.Time // when a GoAway wants the next stream; zero without one
	leave     *time.Timer
	dog       *time.Timer
}

// run opens the stream, serves it to its end and says how it ended.
func (s *session) run(ctx context.Context) reconnect.Ended {
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.cancel = cancel
	err := s.serve(own)
	if s.leave != nil {
		s.leave.Stop()
	}
	if cause := context.Cause(own); cause != nil && status.Code(err) == codes.Canceled {
		err = cause
	}
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		err = errors.New("the upstream ended the stream")
	}
	end := reconnect.Ended{Err: err, Refused: refused(err), ComeBack: s.comeBack}
	if !s.upSince.IsZero() {
		end.Up = time.Since(s.upSince)
	}
	return end
}

func (s *session) serve(ctx context.Context) error {
	// An upstream that is gone without a word must not be waited for. Nor must one that does
	// not get as far as what is held.
	s.dog = time.AfterFunc(silence, func() { s.cancel(errSilent) })
	defer s.dog.Stop()
	conn, err := s.r.cfg.Security.dial(s.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if ctx, err = s.r.cfg.Security.authorized(ctx); err != nil {
		return err
	}
	if s.stream, err = policydv1.NewWatchServiceClient(conn).Watch(ctx); err != nil {
		return err
	}
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer s.cancel(errEnded) // not of the relay: those behind it are still there
	s.onServing = func() { reporting.Go(func() { s.report(ctx) }) }
	hello := &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: s.r.hello()}}
	if err := s.send(hello); err != nil {
		return err
	}
	for {
		var m raw
		if err := s.stream.RecvMsg(&m); err != nil {
			return err
		}
		if err := s.receive(m, time.Now()); err != nil {
			return err
		}
	}
}

func (s *session) send(m *policydv1.WatchRequest) error {
	s.sendMu.Lock()
	err := s.stream.Send(m)
	s.sendMu.Unlock()
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		// The upstream ended the stream. What came before the end is still to be received, and
		// then the status.
		return nil
	}
	return err
}

// reportAgain is the pause after a report that broke.
const reportAgain = time.Second

// report tells the upstream what is behind this relay, as long as the stream lasts. That
// the upstream does not want to know is no reason to leave it, a loop is.
func (s *session) report(ctx context.Context) {
	if s.r.cfg.Report == nil {
		return
	}
	conn, err := s.r.cfg.Security.dial(s.addr)
	if err != nil {
		s.cancel(err)
		return
	}
	defer conn.Close()
	for {
		err := s.r.cfg.Report(ctx, conn)
		switch status.Code(err) { //nolint:exhaustive // the others pass
		case codes.Unimplemented:
			s.r.log.InfoContext(ctx, "the upstream is older than relays: it does not count the instances behind this one", "addr", s.addr)
			return
		case codes.FailedPrecondition:
			s.cancel(err)
			return
		}
		if !sleep(ctx, reportAgain+time.Duration(share()*float64(reportAgain))) {
			return
		}
		s.r.log.DebugContext(ctx, "report broke", "addr", s.addr, "error", err)
	}
}

// hello introduces this relay as what it is: somebody who wants everything.
func (r *Relay) hello() *policydv1.Hello {
	r.mu.Lock()
	resume := r.state.resume()
	r.mu.Unlock()
	return &policydv1.Hello{
		Instance: "relay-" + r.id, SdkLanguage: "relay", SdkVersion: r.cfg.Version, Mode: policydv1.Mode_MODE_ENFORCE,
		Targets: []string{string(engine.Global)}, Capabilities: []string{"drill"}, Resume: resume, Relay: r.About(),
	}
}

func (s *session) receive(m raw, now time.Time) error {
	u, other, err := readResponse(m)
	if err != nil {
		s.r.doubt()
		return err
	}
	if u != nil {
		return s.update(u, now)
	}
	switch kind := other.GetKind().(type) {
	case *policydv1.WatchResponse_Heartbeat:
		return s.heartbeat(kind.Heartbeat, now)
	case *policydv1.WatchResponse_GoAway:
		if s.comeBack.IsZero() {
			window := min(max(kind.GoAway.GetReconnectWithin().AsDuration(), 0), longestWindow)
			wait := time.Duration(share() * float64(window))
			s.comeBack = now.Add(wait)
			s.leave = time.AfterFunc(wait, func() { s.cancel(errGoAway) })
		}
	case *policydv1.WatchResponse_Update: // read above
	}
	return nil
}

// heartbeat takes the word of an upstream that is not behind.
func (s *session) heartbeat(beat *policydv1.Heartbeat, now time.Time) error {
	r := s.r
	if s.upSince.IsZero() {
		return nil
	}
	r.mu.Lock()
	holds, news := r.state.current(beat)
	u := policy.Update{
		Epoch: policy.Epoch(r.state.epoch), Revision: policy.Revision(r.state.revision), Token: r.state.token,
		DeletionsKnownSince: policy.Revision(r.state.since),
	}
	r.mu.Unlock()
	if !holds {
		return nil
	}
	s.vouched(beat, now)
	if news {
		r.publish(u)
	}
	if asOf := timeOf(beat.GetAsOf()); len(r.cfg.Upstream) > 1 && !asOf.IsZero() &&
		timeOf(beat.GetServerTime()).Sub(asOf) >= silence && now.Sub(s.upSince) >= silence {
		return errCutOff // another upstream may know more
	}
	return nil
}

// vouched takes the upstream's word for what is held.
func (s *session) vouched(m interface {
	GetServerTime() *timestamppb.Timestamp
	GetAsOf() *timestamppb.Timestamp
}, now time.Time,
) {
	s.dog.Reset(silence)
	s.heard = now
	s.r.clock.seen(timeOf(m.GetServerTime()), now)
	s.r.vouched(timeOf(m.GetAsOf()))
}

// update gathers the pieces of an update and applies it once it is whole.
func (s *session) update(u *update, now time.Time) error {
	for _, e := range u.entries {
		s.size += len(e.key) + len(e.document)
	}
	if s.size > maxPieces {
		return errOversize
	}
	switch {
	case s.pieces == nil:
		s.pieces = u
	case s.pieces.GetEpoch() != u.GetEpoch() || s.pieces.GetRevision() != u.GetRevision():
		return errPieces
	default:
		u.Snapshot = s.pieces.GetSnapshot()
		u.entries = append(s.pieces.entries, u.entries...)
		s.pieces = u
	}
	if len(s.pieces.entries) > 2*maxEntries {
		return errTooLarge
	}
	if u.GetMore() {
		s.dog.Reset(silence)
		s.r.outdated(s.heard)
		return nil
	}
	whole := s.pieces
	s.pieces, s.size = nil, 0
	return s.apply(whole, now)
}

func (s *session) apply(u *update, now time.Time) error {
	r := s.r
	before, out, err := r.take(u, now)
	if err != nil {
		r.stats.refused.Add(1)
	}
	switch {
	case err == nil:
	case errors.Is(err, errOlder):
		if !s.older {
			s.older = true
			r.log.Warn("the upstream sent an older revision; it is ignored", "addr", s.addr, "revision", u.GetRevision())
		}
		return s.ack(false)
	case errors.Is(err, errHash), errors.Is(err, errNoEpoch):
		r.outdated(s.heard)
		return s.askSnapshot(u, err)
	default:
		return err
	}
	if before != "" && before != string(out.Epoch) {
		r.log.Warn("the upstream has other data than before, as after a restore; everything was taken anew",
			"addr", s.addr, "epoch", out.Epoch, "before", before, "revision", out.Revision)
		// A restart must not bring back an epoch that the cell has left.
		var failed bool
		r.save(&failed)
	}
	// Not before the disk has it: until it is published, something older is served.
	s.vouched(u, now)
	r.publish(out)
	r.unsaved()
	r.stats.updates.Add(1)
	if out.Reset {
		r.stats.snapshots.Add(1)
	}
	if s.upSince.IsZero() {
		s.upSince = now
		r.connected(s.addr)
		s.onServing()
	}
	if before == "" {
		close(r.loaded)
	}
	return s.ack(false)
}

// take applies an update and returns the epoch before it.
func (r *Relay) take(u *update, now time.Time) (before string, out policy.Update, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.state.epoch
	if before != "" && before != u.GetEpoch() && u.GetAsOf() != nil {
		return before, out, errEpoch
	}
	out, err = r.state.apply(u, now)
	return before, out, err
}

// doubt makes the next stream start from a snapshot: an update could not be read.
func (r *Relay) doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.agreed = false
}

// askSnapshot asks for the whole state, once per update: what does not fit then ends the
// stream, so that the next try comes after a wait and perhaps from another upstream.
func (s *session) askSnapshot(u *update, why error) error {
	this := fmt.Sprintf("%s %d", u.GetEpoch(), u.GetRevision())
	if u.GetSnapshot() || s.asked == this {
		return fmt.Errorf("%w: %w", errTwice, why)
	}
	s.asked = this
	s.r.log.Info("state differs from the upstream's; asking for all of it", "addr", s.addr, "revision", u.GetRevision())
	return s.ack(true)
}

// ack says that the relay has the state. What its cell has in force is another matter.
func (s *session) ack(wantSnapshot bool) error {
	s.r.mu.Lock()
	ack := &policydv1.Ack{Epoch: s.r.state.epoch, Revision: s.r.state.revision, WantSnapshot: wantSnapshot}
	s.r.mu.Unlock()
	return s.send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: ack}})
}
