// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// Over TCP, with callers that leave at any moment: no goroutine and no slot stays.
func TestCalls_over_TCP_leave_nothing_behind(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("traffic", func(t *testing.T) {
		s := &server{
			unary: func(_ context.Context, n int, in string) (string, error) {
				if n%3 == 0 {
					return "", errDown
				}
				return in, nil
			},
			stream: func(n int, s grpc.ServerStream) error {
				if n%3 == 0 {
					return errDown
				}
				return echo(s)
			},
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		g.RegisterService(s.desc(), nil)
		go func() { _ = g.Serve(listener) }()
		f := policytest.New(t, policies+"---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {backoff: {base: 1ms}}}")
		conn, err := grpc.NewClient(listener.Addr().String(),
			append(policygrpc.ClientDialOptions(f.Client()), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				ctx, cancel := context.WithCancel(repeatable(t.Context()))
				defer cancel()
				if i%4 == 0 {
					time.AfterFunc(time.Duration(i)*50*time.Microsecond, cancel)
				}
				out := &text{}
				if err := conn.Invoke(ctx, unaryMethod, &text{Value: "x"}, out); err != nil && status.Code(err) != codes.Canceled && status.Code(err) != codes.Unavailable {
					t.Errorf("unary: %v", err)
				}
				stream, err := conn.NewStream(ctx, streamDesc(bidiMethod), bidiMethod)
				if err != nil {
					return
				}
				if i%5 == 0 {
					return // left without a look at its end
				}
				if stream.SendMsg(&text{Value: "y"}) != nil || stream.CloseSend() != nil {
					return
				}
				if _, err := receive(stream); !errors.Is(err, io.EOF) && status.Code(err) != codes.Canceled && status.Code(err) != codes.Unavailable {
					t.Errorf("stream: %v", err)
				}
			})
		}
		callers.Wait()
		_ = conn.Close()
		g.Stop()
	})
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

// A thousand callers at once under a limit, some of whose calls panic further in: what they
// hold comes back.
func TestCalls_of_a_thousand_careless_callers_lose_no_slot(t *testing.T) {
	s := &server{
		unary: func(_ context.Context, n int, in string) (string, error) {
			if n%3 == 0 {
				return "", errDown
			}
			return in, nil
		},
		stream: func(n int, s grpc.ServerStream) error {
			if n%3 == 0 {
				return errDown
			}
			return echo(s)
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	g.RegisterService(s.desc(), nil)
	go func() { _ = g.Serve(listener) }()
	defer g.Stop()
	f := policytest.New(t, policies+"---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {backoff: {base: 1ms}, "+
		"concurrency: {enabled: true, limit: 50, queue: 10000, whenFull: wait}}}")
	var invoked atomic.Int64
	conn, err := grpc.NewClient(listener.Addr().String(), append(policygrpc.ClientDialOptions(f.Client()),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, in, out any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if invoked.Add(1)%31 == 0 {
				panic("unary")
			}
			return next(ctx, m, in, out, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if invoked.Add(1)%31 == 0 {
				panic("stream")
			}
			return next(ctx, d, cc, m, opts...)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	all, end := context.WithCancel(t.Context())
	defer end()
	var callers sync.WaitGroup
	var panics atomic.Int64
	for i := range 1000 {
		callers.Go(func() {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			ctx, cancel := context.WithCancel(repeatable(all))
			defer cancel()
			if i%7 == 0 {
				go cancel()
			}
			if i%2 == 0 {
				_ = conn.Invoke(ctx, unaryMethod, &text{Value: "x"}, &text{})
				return
			}
			stream, err := conn.NewStream(ctx, streamDesc(bidiMethod), bidiMethod)
			if err != nil || i%5 == 0 || stream.SendMsg(&text{Value: "y"}) != nil || stream.CloseSend() != nil {
				return // left without a look at its end
			}
			_, _ = receive(stream)
		})
	}
	callers.Wait()
	if panics.Load() == 0 {
		t.Fatal("nothing panicked")
	}
	// A stream that was left with its context gives its place back from another goroutine.
	deadline := time.Now().Add(5 * time.Second)
	held := func() (all []policyd.EndpointStats) {
		for _, e := range f.Client().Endpoints() {
			if e.Concurrency.Running != 0 || e.Concurrency.Waiting != 0 {
				all = append(all, e)
			}
		}
		return all
	}
	for all := held(); len(all) > 0; all = held() {
		if time.Now().After(deadline) {
			t.Fatalf("still held: %+v", all)
		}
		runtime.Gosched()
	}
}
