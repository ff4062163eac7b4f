// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// hedged sends a call again after 100 ms.
const hedged = `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, maxAttempts: 3, hedging: {after: 100ms}, budget: {ratio: 1, minRetriesPerSecond: 1000}}
`

// slowFirst answers the first call when it is cancelled, others at once.
func slowFirst(ended chan<- error) *server {
	return &server{unary: func(ctx context.Context, n int, in string) (string, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("sender", "server"))
		if n == 1 {
			<-ctx.Done()
			ended <- ctx.Err()
			return "", ctx.Err()
		}
		return in + "!", nil
	}}
}

func TestHedging_a_slow_unary_call_is_sent_again_and_the_loser_cancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		s := slowFirst(ended)
		r := newRig(t, s, hedged)
		var header, trailer metadata.MD
		var from peer.Peer
		began := time.Now()
		finished := 0
		req := &text{Value: "ping"}
		out := &text{Value: "what was there before"}
		err := r.conn.Invoke(repeatable(t.Context()), unaryMethod, req, out,
			grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from), grpc.OnFinish(func(error) { finished++ }))
		req.Value = "the caller's again"
		if err != nil || out.GetValue() != "ping!" || time.Since(began) != 100*time.Millisecond {
			t.Fatalf("%q, %v after %s", out.GetValue(), err, time.Since(began))
		}
		if got := trailer.Get("sender"); len(got) != 1 || from.Addr == nil || header == nil || finished != 1 {
			t.Errorf("header %v, trailer %v, peer %v, finished %d times", header, trailer, from.Addr, finished)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the loser ended with %v", err)
		}
		if got := s.seen()[1].Get("grpc-previous-rpc-attempts"); len(got) != 1 || got[0] != "1" {
			t.Errorf("the hedge says %v", got)
		}
		if st := r.Client().Endpoints()[0]; st.Hedges != 1 || st.OK+st.Rescued != 1 {
			t.Errorf("%+v", st.Stats)
		}
	})
}

func TestHedging_of_what_may_act_twice_and_of_streams_is_off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{unary: func(_ context.Context, _ int, in string) (string, error) {
			time.Sleep(time.Second)
			return in, nil
		}}
		r := newRig(t, s, hedged)
		if _, err := r.unary(t.Context()); err != nil || len(s.seen()) != 1 {
			t.Errorf("%v, %d sends", err, len(s.seen()))
		}
	})
}

func TestHedging_failures_of_all_attempts_are_one_failure_and_retried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{unary: func(_ context.Context, n int, in string) (string, error) {
			if n == 1 {
				time.Sleep(150 * time.Millisecond)
			}
			if n <= 2 {
				return "", errDown
			}
			return in + "!", nil
		}}
		r := newRig(t, s, hedged)
		got, err := r.unary(repeatable(t.Context()))
		if err != nil || got != "ping!" || len(s.seen()) != 3 {
			t.Fatalf("%q, %v, %d sends", got, err, len(s.seen()))
		}
	})
}

func TestHedging_an_attempt_that_panics_does_so_where_the_caller_is(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, slowFirst(make(chan error, 1)), hedged, grpc.WithChainUnaryInterceptor(
			func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
				panic("of an interceptor")
			}))
		defer func() {
			if p := recover(); p != "of an interceptor" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = r.unary(repeatable(t.Context()))
	})
}

func TestHedging_the_caller_leaves_all_attempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 3)
		s := &server{unary: func(ctx context.Context, _ int, _ string) (string, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return "", ctx.Err()
		}}
		r := newRig(t, s, hedged)
		ctx, cancel := context.WithTimeout(repeatable(t.Context()), 300*time.Millisecond)
		defer cancel()
		_, err := r.unary(ctx)
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
		<-ended
		<-ended
		if st := r.Client().Endpoints()[0]; st.Cancelled != 1 || st.Failed != 0 {
			t.Errorf("%+v", st.Stats)
		}
	})
}

func TestNested_marks_travel_in_metadata_and_stand_down_at_the_server(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const policy = `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, nested: {mark: true, whenMarked: single-attempt}}
`
		back := failFirst(99, errDown)
		behind := newRig(t, back, policy)
		front := &server{unary: func(ctx context.Context, _ int, _ string) (string, error) {
			return behind.unary(repeatable(ctx))
		}}
		r := newRigOf(t, front, policy, policygrpc.ServerOptions())
		ctx := metadata.AppendToOutgoingContext(repeatable(t.Context()), "baggage", "user=7", "other", "kept")
		if _, err := r.unary(ctx); status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		if n := len(front.seen()); n != 5 || len(back.seen()) != n {
			t.Errorf("%d sends to the front, %d behind it", n, len(back.seen()))
		}
		for i, md := range front.seen() {
			want := []string{"user=7,policyd.attempt=" + string(rune('1'+i))}
			if got := md.Get("baggage"); !slices.Equal(got, want) || len(md.Get("other")) != 1 {
				t.Errorf("attempt %d carries %q, %q", i+1, got, md.Get("other"))
			}
		}
		if got := back.seen()[0].Get("baggage"); !slices.Equal(got, []string{"policyd.attempt=1"}) {
			t.Errorf("behind: %q", got)
		}
		if md, _ := metadata.FromOutgoingContext(ctx); !slices.Equal(md.Get("baggage"), []string{"user=7"}) {
			t.Errorf("the caller's metadata is now %v", md)
		}
	})
}

func TestNested_streams_carry_and_see_marks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marked := make(chan bool, 1)
		s := &server{stream: func(_ int, stream grpc.ServerStream) error {
			marked <- policyd.WithIncoming(t.Context(), metadata.ValueFromIncomingContext(stream.Context(), "baggage")...) != t.Context()
			return nil
		}}
		r := newRigOf(t, s, `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/all}
spec: {match: {grpc: {method: /test.Echo/*}}, nested: {mark: true}}
`, policygrpc.ServerOptions())
		st, err := r.open(repeatable(t.Context()), bidiMethod)
		if err != nil {
			t.Fatal(err)
		}
		_ = st.CloseSend()
		_, _ = receive(st)
		if !<-marked {
			t.Error("not marked")
		}
	})
}

func TestConcurrency_who_leaves_the_queue_gets_a_status(t *testing.T) {
	const limited = `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/limited}
spec: {match: {grpc: {method: /test.Echo/*}}, concurrency: {limit: 1, queue: 5, whenFull: wait}}
`
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{
			unary:  func(context.Context, int, string) (string, error) { <-hold; return "", nil },
			stream: func(int, grpc.ServerStream) error { return nil },
		}
		r := newRig(t, s, limited)
		go func() { _, _ = r.unary(t.Context()) }()
		synctest.Wait()
		ask := map[string]func(context.Context, ...grpc.CallOption) error{
			"unary": func(ctx context.Context, opts ...grpc.CallOption) error { _, err := r.unary(ctx, opts...); return err },
			"stream": func(ctx context.Context, opts ...grpc.CallOption) error {
				_, err := r.open(ctx, bidiMethod, opts...)
				return err
			},
		}
		for name, call := range ask {
			var told error
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := call(ctx, grpc.OnFinish(func(err error) { told = err }))
			if s, ok := status.FromError(err); !ok || s.Code() != codes.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(told, err) {
				t.Errorf("%s: %v (%v), told %v", name, err, ok, told)
			}
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			err = call(ctx)
			if s, ok := status.FromError(err); !ok || s.Code() != codes.Canceled {
				t.Errorf("%s: %v (%v)", name, err, ok)
			}
		}
		close(hold)
	})
}
