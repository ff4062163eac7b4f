// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Codec returns what a transport other than grpc-go's server needs to serve a Hub: messages
// are encoded once for all streams, and the bytes are shared.
func Codec() encoding.CodecV2 { return newCodec() }

// window is HTTP/2's smallest flow-control window.
const window = 64 << 10

// ServerOptions returns what a gRPC server needs to serve a Hub: a codec that sends shared
// bytes, keepalive that fits the SDKs', and buffers for many connections that are quiet most
// of the time. Other services can live on the same server; options that follow override
// these.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		// SDKs ping every 30 s, also without a call.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.MaxConcurrentStreams(100),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(20 * time.Second),
		// Acks are small, and a connection keeps its read buffer. Windows that do not grow
		// need no ping after each ack to measure the connection.
		grpc.ReadBufferSize(2 << 10),
		grpc.WriteBufferSize(16 << 10),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
	}
}

// terminal is gRPC's own server stream. WriteStatus is how it ends a stream when a Recv
// fails, and it is safe for concurrent use: it writes the status and interrupts a handler
// that waits for its client. Nothing else does, short of a second goroutine per stream, which
// would cost more than all else that a stream holds here.
type terminal interface {
	WriteStatus(st *status.Status) error
}

func terminalOf(ctx context.Context) (terminal, bool) {
	t, ok := grpc.ServerTransportStreamFromContext(ctx).(terminal)
	return t, ok
}
