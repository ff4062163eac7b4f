// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// pipe is a listener without a network, so that time can be pretended; it counts connections.
type pipe struct {
	*bufconn.Listener
	made atomic.Int64
}

func newPipe() *pipe { return &pipe{Listener: bufconn.Listen(1 << 20)} }

func (p *pipe) dial(t *testing.T, opts ...grpc.DialOption) *grpc.ClientConn {
	return dial(t, "passthrough:///pipe", append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		p.made.Add(1)
		return p.DialContext(ctx)
	}))...)
}

// longOpen is open for a test that pretends hours.
func longOpen(t *testing.T, conn *grpc.ClientConn) *peer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := policydv1.NewWatchServiceClient(conn).Watch(ctx)
	require.NoError(t, err)
	return &peer{t: t, stream: stream, leave: cancel, held: make(map[string]*policydv1.Entry), at: &policydv1.ResumePoint{}}
}

func TestO_PU_09_pings_of_the_SDK_are_welcome(t *testing.T) {
	// What sdk/go sends.
	pings := grpc.WithKeepaliveParams(keepalive.ClientParameters{
		Time: 30 * time.Second, Timeout: 20 * time.Second, PermitWithoutStream: true,
	})
	idle := func(t *testing.T, watch bool, opts ...grpc.ServerOption) (connections int64) {
		synctest.Test(t, func(t *testing.T) {
			l := newPipe()
			// No heartbeats: they would excuse the pings.
			b := startOn(t, l, func(c *push.Config) { c.Heartbeat = 24 * time.Hour }, opts...)
			b.load()
			conn := l.dial(t, pings)
			p := longOpen(t, conn)
			p.say(hello("i1"))
			p.update()
			if !watch {
				p.leave()
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			conn.Connect()
			synctest.Wait()
			connections = l.made.Load()
			if watch && connections == 1 {
				require.Equal(t, 1, b.Stats().Streams)
			}
		})
		return connections
	}
	require.EqualValues(t, 1, idle(t, true, push.ServerOptions()...), "an idle watch")
	require.EqualValues(t, 1, idle(t, false, push.ServerOptions()...), "no call at all")

	if overLean() {
		return // what follows is about grpc's own options
	}
	strict := append(push.ServerOptions(), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{}))
	require.Greater(t, idle(t, true, strict...), int64(1), "gRPC's own default does not fit")
}

func TestO_PU_05_a_connection_that_is_dead_without_a_reset_is_dropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		hole := make(chan struct{})
		conn := dial(t, "passthrough:///pipe", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := l.DialContext(ctx)
			return &swallower{Conn: c, from: hole}, err
		}))
		p := longOpen(t, conn)
		p.say(hello("i1"))
		p.update()
		close(hole)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		require.Zero(t, b.Stats().Streams)
		in, _ := b.fleet.Instance("i1")
		require.Equal(t, fleet.Stale, in.State)
	})
}

// swallower drops what is written once from is closed.
type swallower struct {
	net.Conn
	from chan struct{}
}

func (s *swallower) Write(p []byte) (int, error) {
	select {
	case <-s.from:
		return len(p), nil
	default:
		return s.Conn.Write(p)
	}
}

func TestHeartbeats_say_how_far_the_instance_is(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		began := time.Now()
		elsewhere := b.put("media/encode", "of no concern")
		for i := range 5 {
			r, err := p.next()
			require.NoError(t, err)
			require.Equal(t, elsewhere, r.GetHeartbeat().GetRevision())
			require.WithinDuration(t, time.Now(), r.GetHeartbeat().GetServerTime().AsTime(), time.Second)
			require.LessOrEqual(t, time.Since(began), time.Duration(i+1)*15*time.Second)
		}
		// A snapshot is not older than what a heartbeat said.
		p.say(&policydv1.Ack{Epoch: "e1", Revision: 10, WantSnapshot: true})
		require.GreaterOrEqual(t, p.update().GetRevision(), elsewhere)
	})
}

func TestA_heartbeat_never_claims_what_was_not_sent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.update() // not confirmed
		big := strings.Repeat("x", 20<<10)
		for range 3 {
			b.put("shop/payments/x", big)
			synctest.Wait()
		}
		last := b.put("shop/payments/x", "last")
		time.Sleep(40 * time.Second)
		var beats int
		for p.text("shop/payments/x") != "last" {
			r, err := p.next()
			require.NoError(t, err)
			if hb := r.GetHeartbeat(); hb != nil {
				beats++
				require.Less(t, hb.GetRevision(), last)
			}
			if p.pieces > 1 && beats == 0 {
				p.ack()
			}
		}
		require.Equal(t, last, p.at.GetRevision())
	})
}

func TestA_stream_that_never_confirms_is_cut_off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("mute"))
		other := longOpen(t, l.dial(t))
		other.say(hello("fine"))
		other.until(10)
		for range 10 {
			other.until(b.put("shop/payments/x", strings.Repeat("x", 20<<10)))
		}
		synctest.Wait() // an update may be received before it is counted
		sent := b.Stats().Updates
		time.Sleep(50 * time.Second)
		// All edits in one update, as none was confirmed for so long, and then nothing more.
		require.EqualValues(t, sent+1, b.Stats().Updates)
		require.Equal(t, 2, b.Stats().Streams)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, codes.ResourceExhausted, status.Code(p.end()))
		require.LessOrEqual(t, p.updates, 3)
		require.EqualValues(t, 1, b.Stats().CutOff)
		require.Equal(t, 1, b.Stats().Streams)
	})
}

func TestA_stream_that_does_not_read_its_snapshot_is_cut_off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		for i := range 100 {
			b.put(name(i), strings.Repeat("x", 60<<10))
		}
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("mute"))
		time.Sleep(90 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().CutOff)
		require.Zero(t, b.Stats().Streams)
		require.Equal(t, codes.ResourceExhausted, status.Code(p.end()))
	})
}

func TestA_reader_that_stops_after_confirming_everything_is_found_out(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, func(c *push.Config) { c.Limits.Unconfirmed = 1 << 10 }, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		// Only heartbeats go out from here on; nobody reads them, for an hour.
		time.Sleep(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().CutOff)

		// One that reads is asked now and then to prove it, and stays.
		q := longOpen(t, l.dial(t))
		q.say(hello("i2"))
		q.until(10)
		for asked := q.updates; q.updates < asked+2; {
			before := q.updates
			_, err := q.next()
			require.NoError(t, err)
			if q.updates > before {
				require.Empty(t, q.last.GetEntries())
				q.ack()
			}
		}
		require.EqualValues(t, 1, b.Stats().CutOff)
	})
}

func TestA_postponed_snapshot_comes_later(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.update()
		began := time.Now()
		for range 10 {
			p.say(&policydv1.Ack{Epoch: "e1", Revision: p.at.GetRevision(), WantSnapshot: true})
			require.True(t, p.update().GetSnapshot())
		}
		require.GreaterOrEqual(t, time.Since(began), 70*time.Second)
	})
}

func TestA_newer_stream_of_a_silent_instance_takes_over(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		first := longOpen(t, l.dial(t))
		first.say(hello("i1"))
		first.until(10)
		synctest.Wait()
		// A name used twice by mistake: both are served.
		second := longOpen(t, l.dial(t))
		second.say(hello("i1"))
		second.until(10)
		synctest.Wait()
		require.Equal(t, 2, b.Stats().Streams)

		time.Sleep(30 * time.Second)
		third := longOpen(t, l.dial(t))
		third.say(hello("i1"))
		third.until(10)
		require.Equal(t, codes.Aborted, status.Code(second.end()))
		// The first one's calls count no more, the newest one's do.
		first.leave()
		synctest.Wait()
		in, _ := b.fleet.Instance("i1")
		require.Equal(t, fleet.Live, in.State)
	})
}

func TestPropagation_is_measured_from_publish_to_ack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		time.Sleep(time.Second)
		b.put("shop/payments/x", "x")
		p.update()
		time.Sleep(700 * time.Millisecond)
		p.ack()
		synctest.Wait()
		h := b.Stats().Propagation
		require.Equal(t, 700*time.Millisecond, h.Sum)
		for i, n := range h.Buckets {
			in := i < len(h.Bounds) && h.Bounds[i] >= 700*time.Millisecond && h.Bounds[i-1] < 700*time.Millisecond
			require.Equal(t, in, n == 1, "bucket %d", i)
		}
		require.Len(t, h.Buckets, len(h.Bounds)+1)
	})
}

func TestReports_are_kept_within_bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		rep := &policydv1.Report{}
		for range 500 {
			e := &policydv1.EndpointReport{
				Endpoint: strings.Repeat("x", 300), Calls: 2, Attempts: -5, Suppressed: map[string]int64{}, Breaker: strings.Repeat("é", 100),
			}
			for i := range 40 {
				e.Suppressed[strings.Repeat("c", i+1)] = 1
			}
			rep.Endpoints = append(rep.Endpoints, e)
		}
		p.say(rep)
		synctest.Wait()
		in, _ := b.fleet.Instance("i1")
		require.Len(t, in.Report.Endpoints, 200)
		var calls int64
		for _, e := range in.Report.Endpoints {
			calls += e.Calls
			require.LessOrEqual(t, len(e.Endpoint), 200)
			require.LessOrEqual(t, len(e.Suppressed), 33)
			require.Zero(t, e.Attempts)
		}
		require.EqualValues(t, 1000, calls)
		require.Equal(t, fleet.Other, in.Report.Endpoints[199].Endpoint)

		// A second one within a second is not looked at; a rejection is cut.
		p.say(&policydv1.Report{})
		p.say(&policydv1.Ack{Epoch: "e1", Revision: 10, Rejected: []*policydv1.Rejection{{Scope: "shop", Reason: strings.Repeat("r", 5000)}}})
		synctest.Wait()
		in, _ = b.fleet.Instance("i1")
		require.NotEmpty(t, in.Report.Endpoints)
		require.Equal(t, fleet.Rejected, in.State)
		require.Len(t, in.Rejected[0].Reason, 300)
	})
}
