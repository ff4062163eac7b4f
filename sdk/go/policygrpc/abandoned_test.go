// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
)

// gRPC names the ways by which a caller may leave a stream behind: each gives its slot back.
func TestStream_left_in_any_way_that_gRPC_allows_gives_its_slot_back(t *testing.T) {
	const one = "---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {concurrency: {enabled: true, limit: 1}}}"
	hangs := func(_ int, s grpc.ServerStream) error {
		<-s.Context().Done()
		return s.Context().Err()
	}
	for name, leave := range map[string]func(t *testing.T, r *rig, conn *grpc.ClientConn, s grpc.ClientStream, cancel func()){
		"the context ends": func(_ *testing.T, _ *rig, _ *grpc.ClientConn, _ grpc.ClientStream, cancel func()) { cancel() },
		"the channel is closed": func(_ *testing.T, _ *rig, conn *grpc.ClientConn, _ grpc.ClientStream, _ func()) {
			_ = conn.Close()
		},
		"a message that cannot be sent": func(t *testing.T, _ *rig, _ *grpc.ClientConn, s grpc.ClientStream, _ func()) {
			t.Helper()
			if err := s.SendMsg(&text{Value: strings.Repeat("x", 2000)}); status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
		},
		"a message that is none": func(t *testing.T, _ *rig, _ *grpc.ClientConn, s grpc.ClientStream, _ func()) {
			t.Helper()
			if err := s.SendMsg("no message"); status.Code(err) != codes.Internal {
				t.Fatal(err)
			}
		},
		"the server is gone": func(t *testing.T, r *rig, _ *grpc.ClientConn, s grpc.ClientStream, _ func()) {
			t.Helper()
			r.server.Stop()
			if err := s.RecvMsg(&text{}); err == nil {
				t.Fatal("received")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &server{stream: hangs}, one)
				conn := r.dial(t, "passthrough:///echo.shop:443", grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1000)))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				finished := 0
				s, err := conn.NewStream(ctx, streamDesc(bidiMethod), bidiMethod, grpc.OnFinish(func(error) { finished++ }))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.open(ctx, bidiMethod); !errors.Is(err, policyd.ErrConcurrency) {
					t.Fatalf("the slot is not taken: %v", err)
				}
				leave(t, r, conn, s, cancel)
				synctest.Wait()
				ctx, cancel = context.WithCancel(t.Context())
				defer cancel()
				if _, err = r.open(ctx, bidiMethod); errors.Is(err, policyd.ErrConcurrency) || finished != 1 {
					t.Fatalf("%v; OnFinish was called %d times", err, finished)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
