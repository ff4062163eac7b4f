// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

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
