// SPDX-License-Identifier: Apache-2.0

package policygrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	policyd "github.com/policyd/policyd/sdk/go"
)

// ServerOptions returns the options of a server that takes note of marked requests, as
// [policyd.Incoming] does for HTTP. It needs the context of a request to be passed on to the
// calls that are made for it.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(IncomingUnary()),
		grpc.ChainStreamInterceptor(IncomingStream()),
	}
}

// IncomingUnary takes note of marked unary requests. Safe for concurrent use.
func IncomingUnary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(incoming(ctx), req)
	}
}

// IncomingStream is [IncomingUnary] for streams.
func IncomingStream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if ctx := incoming(stream.Context()); ctx != stream.Context() {
			stream = markedStream{stream, ctx}
		}
		return handler(srv, stream)
	}
}

func incoming(ctx context.Context) context.Context {
	return policyd.WithIncoming(ctx, metadata.ValueFromIncomingContext(ctx, baggageKey)...)
}

// markedStream is a stream whose context knows of the mark.
type markedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // it is the stream's
}

func (s markedStream) Context() context.Context { return s.ctx }
