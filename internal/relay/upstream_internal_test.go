// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// upstream is a stream that keeps what the relay says.
type upstream struct {
	grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse]

	said []*policydv1.WatchRequest
}

func (u *upstream) Send(m *policydv1.WatchRequest) error {
	u.said = append(u.said, m)
	return nil
}

// followed is a session of a relay whose upstream the test plays.
type followed struct {
	*session

	t    *testing.T
	said *upstream
	ctx  context.Context //nolint:containedctx // the session's
}

func follow(t *testing.T, upstreams ...string) *followed {
	t.Helper()
	r, err := New(Config{Upstream: upstreams, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	r.publish = func(policy.Update) {}
	f := &followed{t: t, said: &upstream{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	f.ctx = ctx
	f.session = &session{r: r, addr: "a", cancel: cancel, stream: f.said, heard: time.Now(), onServing: func() {}}
	f.dog = time.AfterFunc(silence, func() { cancel(errSilent) })
	t.Cleanup(func() { f.dog.Stop() })
	return f
}

// tell plays a snapshot of one document.
func (f *followed) tell(revision int64, hash uint64, more bool) {
	f.t.Helper()
	require.NoError(f.t, f.update(&update{
		Update: &policydv1.Update{
			Epoch: "e1", Revision: revision, Hash: hash, More: more, Snapshot: revision == 10, ServerTime: timestamppb.Now(),
		},
		entries: []sent{{key: "policies/shop", revision: revision, document: []byte{}}},
	}, time.Now()))
}

func (f *followed) beat(revision int64, asOf time.Time) error {
	hb := &policydv1.Heartbeat{Revision: revision, ServerTime: timestamppb.Now()}
	if !asOf.IsZero() {
		hb.AsOf = timestamppb.New(asOf)
	}
	return f.heartbeat(hb, time.Now())
}

func hashAt(revision int64) uint64 { return engine.EntryHash("policies/shop", revision) }

func TestUpstream_that_does_not_get_as_far_as_the_relay_is_left(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, "a")
		f.tell(10, hashAt(10), false)
		for range 4 { // a minute
			require.NoError(t, f.ctx.Err())
			time.Sleep(15 * time.Second)
			require.NoError(t, f.beat(10, time.Time{}))
		}
		for range 2 {
			time.Sleep(15 * time.Second)
			require.NoError(t, f.beat(9, time.Time{}))
		}
		require.NoError(t, f.ctx.Err())
		time.Sleep(15 * time.Second)
		require.ErrorIs(t, context.Cause(f.ctx), errSilent)
		require.WithinDuration(t, time.Now().Add(-45*time.Second), f.heard, 0)
	})
}

func TestUpstream_that_is_cut_off_is_left_if_there_is_another(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alone, two := follow(t, "a"), follow(t, "a", "b")
		for _, f := range []*followed{alone, two} {
			f.tell(10, hashAt(10), false)
		}
		since := time.Now()
		for range 2 {
			time.Sleep(15 * time.Second)
			require.NoError(t, alone.beat(10, since))
			require.NoError(t, two.beat(10, since))
		}
		time.Sleep(15 * time.Second)
		require.NoError(t, alone.beat(10, since))
		require.ErrorIs(t, two.beat(10, since), errCutOff)
		require.WithinDuration(t, since, two.r.AsOf(), 0)
	})
}

func TestUpdate_that_is_not_taken_yet_ends_the_claim_to_hold_the_newest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, "a")
		f.tell(10, hashAt(10), false)
		require.Zero(t, f.r.AsOf())
		began := time.Now()
		time.Sleep(time.Second)
		f.tell(11, 1, false)
		require.True(t, f.said.said[1].GetAck().GetWantSnapshot())
		require.WithinDuration(t, began, f.r.AsOf(), 0, "something newer is known to be there")
		f.tell(10, hashAt(10), false)
		require.Zero(t, f.r.AsOf())

		began = time.Now()
		time.Sleep(time.Second)
		f.tell(12, hashAt(12), true)
		require.WithinDuration(t, began, f.r.AsOf(), 0, "the rest is still on its way")
		require.NoError(t, f.update(&update{Update: &policydv1.Update{Epoch: "e1", Revision: 12, Hash: hashAt(12)}}, time.Now()))
		require.Zero(t, f.r.AsOf())
	})
}
