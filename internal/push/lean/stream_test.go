// SPDX-License-Identifier: Apache-2.0

package lean_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/policyd/policyd/internal/push/lean"
)

// notTCP hides that a connection is a socket, as TLS does.
type notTCP struct{ net.Listener }

func (l notTCP) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// everyConn runs a test over bare sockets and over connections that are none.
func everyConn(t *testing.T, limits lean.Limits, f func(*testing.T, *bench)) {
	t.Run("bare socket", func(t *testing.T) { f(t, start(t, limits)) })
	t.Run("any other connection", func(t *testing.T) {
		f(t, startOn(t, limits, func(l net.Listener) net.Listener { return notTCP{l} }))
	})
}

func TestInterop_grpc_go(t *testing.T) {
	everyConn(t, lean.Limits{}, func(t *testing.T, b *bench) {
		t.Run("ping pong", func(t *testing.T) {
			c := b.call(t)
			for i := range 100 {
				require.Equal(t, fmt.Sprint(i), c.ask(t, fmt.Sprint("echo ", i)))
			}
			require.NoError(t, c.CloseSend())
			_, err := c.hear()
			require.ErrorIs(t, err, io.EOF)
		})
		t.Run("an empty message and an empty stream", func(t *testing.T) {
			require.Empty(t, b.call(t).ask(t, "big 0"))
			c := b.call(t)
			require.NoError(t, c.CloseSend())
			_, err := c.hear()
			require.ErrorIs(t, err, io.EOF)
		})
		t.Run("messages of megabytes, both ways", func(t *testing.T) {
			c := b.call(t)
			require.Len(t, c.ask(t, "big 20000000"), 20_000_000)
			require.Equal(t, "1000000", c.ask(t, "size"+strings.Repeat(" ", 1_000_000-4)))
		})
		t.Run("what was sent before the client ended comes whole", func(t *testing.T) {
			c := b.call(t)
			require.NoError(t, c.say("many 3000"))
			require.NoError(t, c.CloseSend())
			for range 3000 {
				m, err := c.hear()
				require.NoError(t, err)
				require.Len(t, m, 1000)
			}
			_, err := c.hear()
			require.ErrorIs(t, err, io.EOF)
		})
		t.Run("a status with text and details", func(t *testing.T) {
			c := b.call(t)
			require.NoError(t, c.say("fail 8"))
			_, err := c.hear()
			st := status.Convert(err)
			require.Equal(t, codes.ResourceExhausted, st.Code())
			require.Equal(t, "süß % so\nit is", st.Message())
			require.Equal(t, time.Second, st.Details()[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration())
		})
		t.Run("headers and trailers", func(t *testing.T) {
			c := b.call(t)
			require.NoError(t, c.say("headers"))
			md, err := c.Header()
			require.NoError(t, err)
			require.Equal(t, []string{"1"}, md.Get("before"))
			require.NoError(t, c.CloseSend())
			_, err = c.hear()
			require.ErrorIs(t, err, io.EOF)
			require.Equal(t, []string{"2"}, c.Trailer().Get("after"))
			require.Equal(t, []string{"\x00\xff"}, c.Trailer().Get("raw-bin"))
		})
		t.Run("a deadline", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			c := onContext(t, ctx, cancel, dial(t, b.addr))
			require.NoError(t, c.say("wait"))
			_, err := c.hear()
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		})
		t.Run("cancellation reaches a handler that waits", func(t *testing.T) {
			c := b.call(t)
			require.Equal(t, "x", c.ask(t, "echo x"))
			require.NoError(t, c.say("wait"))
			c.cancel()
			_, err := c.hear()
			require.Equal(t, codes.Canceled, status.Code(err))
		})
		t.Run("an end from outside interrupts a handler that listens", func(t *testing.T) {
			c := b.call(t)
			require.NoError(t, c.say("end"))
			_, err := c.hear()
			require.Equal(t, codes.Aborted, status.Code(err))
			require.Equal(t, "ended from outside", status.Convert(err).Message())
			require.Equal(t, "y", on(t, c.conn).ask(t, "echo y"), "the connection lives on")
		})
		t.Run("compression is refused", func(t *testing.T) {
			c := on(t, dial(t, b.addr), grpc.UseCompressor(gzip.Name))
			require.NoError(t, c.say("echo "+strings.Repeat("x", 1000)))
			_, err := c.hear()
			require.Equal(t, codes.Unimplemented, status.Code(err))
		})
		t.Run("many calls on one connection", func(t *testing.T) {
			conn := dial(t, b.addr)
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					c := on(t, conn)
					for j := range 20 {
						if err := c.say(fmt.Sprintf("echo %d %d", i, j)); err != nil {
							t.Errorf("say: %v", err)
							return
						}
						if m, err := c.hear(); err != nil || m != fmt.Sprintf("%d %d", i, j) {
							t.Errorf("heard %q, %v", m, err)
							return
						}
					}
					if i%3 == 0 {
						c.cancel()
					} else {
						_ = c.CloseSend()
						_, _ = c.hear()
					}
				})
			}
			all.Wait()
		})
	})
	eventually(t, "nothing is left", func() bool { return goroutines() == 0 })
}

func TestOther_calls_are_handed_over(t *testing.T) {
	everyConn(t, lean.Limits{Decide: 20 * time.Millisecond}, func(t *testing.T, b *bench) {
		check := func(conn *grpc.ClientConn) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			r, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
			require.NoError(t, err)
			require.Equal(t, healthv1.HealthCheckResponse_SERVING, r.GetStatus())
		}
		t.Run("a connection that starts with one", func(t *testing.T) {
			conn := dial(t, b.addr)
			check(conn)
			check(conn)
		})
		t.Run("one on the connection of a stream, which goes on", func(t *testing.T) {
			conn := dial(t, b.addr)
			c := on(t, conn)
			require.Equal(t, "x", c.ask(t, "echo x"))
			check(conn)
			require.Equal(t, "y", c.ask(t, "echo y"))
		})
		t.Run("a connection that comes before its calls", func(t *testing.T) {
			conn := dial(t, b.addr)
			conn.Connect()
			eventually(t, "handed over", func() bool { return goroutines() == 0 })
			check(conn)
		})
		t.Run("a method that nobody has", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			err := dial(t, b.addr).Invoke(ctx, "/test.Talk/Nothing", &healthv1.HealthCheckRequest{}, &healthv1.HealthCheckResponse{})
			require.Equal(t, codes.Unimplemented, status.Code(err))
		})
	})
}

func TestA_quiet_stream_costs_one_goroutine(t *testing.T) {
	everyConn(t, lean.Limits{}, func(t *testing.T, b *bench) {
		var all []*caller
		for i := range 20 {
			c := b.call(t)
			require.Equal(t, "x", c.ask(t, "echo x"))
			all = append(all, c)
			eventually(t, "one per connection", func() bool { return goroutines() == i+1 })
		}
		// So it is again after another stream came and went.
		for _, c := range all {
			second := on(t, c.conn)
			require.Equal(t, "y", second.ask(t, "echo y"))
			require.NoError(t, second.CloseSend())
			_, err := second.hear()
			require.ErrorIs(t, err, io.EOF)
		}
		for _, c := range all {
			require.NoError(t, c.CloseSend())
			_, err := c.hear()
			require.ErrorIs(t, err, io.EOF)
			again := on(t, c.conn)
			require.Equal(t, "z", again.ask(t, "echo z"))
		}
		eventually(t, "one per connection", func() bool { return goroutines() == len(all) })
		b.stop()
		require.Zero(t, goroutines())
	})
}

func TestA_client_that_does_not_read_holds_up_nobody(t *testing.T) {
	everyConn(t, lean.Limits{}, func(t *testing.T, b *bench) {
		window := []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}}
		slow := greet(t, b.addr, window...)
		require.NoError(t, slow.WriteWindowUpdate(0, 1<<31-1-65535))
		slow.open(1)
		slow.say(1, "many 30000") // far more than a socket takes
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		other := b.call(t)
		for i := range 1000 {
			require.Equal(t, fmt.Sprint(i), other.ask(t, fmt.Sprint("echo ", i)))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(2<<20))
		for range 30000 { // nothing was lost
			slow.hear(1)
		}
	})
}

func TestShutdown_tells_clients_and_waits_for_streams(t *testing.T) {
	b := start(t, lean.Limits{})
	staying := b.call(t)
	require.Equal(t, "x", staying.ask(t, "echo x"))
	quiet := talking(t, b.addr)
	quiet.say(1, "fail 1")
	_, _, _ = quiet.status(1)

	done := make(chan struct{})
	go func() { b.lean.Shutdown(context.Background()); close(done) }()
	code, _ := quiet.goAway()
	require.Equal(t, http2.ErrCodeNo, code)
	quiet.closed()
	require.Equal(t, "y", staying.ask(t, "echo y"), "a stream goes on")
	select {
	case <-done:
		t.Fatal("did not wait")
	default:
	}
	require.NoError(t, staying.CloseSend())
	_, err := staying.hear()
	require.ErrorIs(t, err, io.EOF)
	<-done

	cut := start(t, lean.Limits{})
	c := cut.call(t)
	require.Equal(t, "x", c.ask(t, "echo x"))
	now, cancel := context.WithCancel(context.Background())
	cancel()
	cut.lean.Shutdown(now)
	_, err = c.hear()
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestKeepalive(t *testing.T) {
	serve := func(t *testing.T, limits lean.Limits) *bufconn.Listener {
		l := bufconn.Listen(1 << 16)
		s, err := lean.New(lean.Config{Codec: plain{}, Logger: discard(), Limits: limits})
		require.NoError(t, err)
		s.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Talk", Streams: []grpc.StreamDesc{{StreamName: "Talk", Handler: talk}}}, nil)
		var running sync.WaitGroup
		running.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() { s.Close(); running.Wait() })
		return l
	}
	call := func(t *testing.T, l *bufconn.Listener, opts ...grpc.DialOption) *caller {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		return onContext(t, ctx, cancel, dial(t, "passthrough:///x", append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return l.DialContext(ctx)
		}))...))
	}
	t.Run("a client that answers pings may be quiet for a day", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := call(t, serve(t, lean.Limits{}))
			require.Equal(t, "x", c.ask(t, "echo x"))
			time.Sleep(24 * time.Hour)
			require.Equal(t, "y", c.ask(t, "echo y"))
		})
	})
	t.Run("pings of the SDK are welcome", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := call(t, serve(t, lean.Limits{}), pings(30*time.Second))
			require.Equal(t, "x", c.ask(t, "echo x"))
			time.Sleep(time.Hour)
			require.Equal(t, "y", c.ask(t, "echo y"))
		})
	})
	t.Run("pings that come too often are not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := call(t, serve(t, lean.Limits{MinPing: time.Minute}), pings(10*time.Second))
			require.Equal(t, "x", c.ask(t, "echo x"))
			_, err := c.hear()
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, "too_many_pings")
		})
	})
	t.Run("a client that is gone without a word is found out", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := serve(t, lean.Limits{})
			w := mute(t, l)
			started := time.Now()
			_, err := io.ReadAll(w)
			require.NoError(t, err)
			require.Equal(t, 80*time.Second, time.Since(started).Round(time.Second))
		})
	})
}

func pings(every time.Duration) grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: every, Timeout: 20 * time.Second, PermitWithoutStream: true})
}

// mute opens a stream and says nothing any more.
func mute(t *testing.T, l *bufconn.Listener) net.Conn {
	t.Helper()
	c, err := l.DialContext(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	w := &wire{t: t, Conn: c, Framer: http2.NewFramer(c, c)}
	w.enc = newEncoder(w)
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, w.WriteSettings())
	w.open(1)
	return c
}

func TestIncoming_metadata_is_not_kept(t *testing.T) {
	// Whoever needs it, authentication for one, has to ask for it: it is most of what a quiet
	// stream would hold.
	b := start(t, lean.Limits{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := onContext(t, metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("x", 4000)), cancel, dial(t, b.addr))
	require.Equal(t, "x", c.ask(t, "echo x"))
}
