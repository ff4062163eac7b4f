// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// ServerOptions returns what a gRPC server needs to serve a Hub: a codec that sends shared
// bytes, streams that can be ended from outside, keepalive that fits the SDKs', and buffers
// for many connections that are quiet most of the time. Other services can live on the same
// server; options that follow override these, but for the tap handle, of which a server has
// one.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.InTapHandle(endable),
		// SDKs ping every 30 s, also without a call.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.MaxRecvMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(100),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(20 * time.Second),
		// Acks are small, and a connection keeps its read buffer.
		grpc.ReadBufferSize(2 << 10),
		grpc.WriteBufferSize(16 << 10),
	}
}

type cancelKey struct{}

// endable gives a watch stream a context that the Hub can cancel: nothing else interrupts a
// handler that waits for its client, and a second goroutine per stream would cost more than
// the rest of it.
func endable(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != policydv1.WatchService_Watch_FullMethodName {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, cancelKey{}, cancel), nil
}

func cancelOf(ctx context.Context) (context.CancelFunc, bool) {
	cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc)
	return cancel, ok
}
