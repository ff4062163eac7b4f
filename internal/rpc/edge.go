// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/policyd/policyd/internal/fault"
)

// RequestIDHeader carries the request's id in both directions.
const RequestIDHeader = "x-request-id"

// edge is where requests come in and failures go out.
type edge struct{ log *slog.Logger }

type requestIDKey struct{}

// requestID returns the id of the request that ctx belongs to.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// enter gives the request an id: the caller's if it is one, else a new one.
func enter(ctx context.Context) (context.Context, string) {
	id := ""
	if values := metadata.ValueFromIncomingContext(ctx, RequestIDHeader); len(values) == 1 && validRequestID(values[0]) {
		id = values[0]
	} else {
		id = strings.ToLower(rand.Text())
	}
	return context.WithValue(ctx, requestIDKey{}, id), id
}

func validRequestID(id string) bool {
	const most = 64
	return id != "" && len(id) <= most && strings.IndexFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

func (e edge) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, id := enter(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs(RequestIDHeader, id)) // fails only without a transport
	start := time.Now()
	resp, err := recovered(func() (any, error) { return handler(ctx, req) })
	return resp, e.leave(ctx, info.FullMethod, start, err)
}

func (e edge) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, id := enter(stream.Context())
	_ = stream.SetHeader(metadata.Pairs(RequestIDHeader, id))
	start := time.Now()
	_, err := recovered(func() (any, error) { return nil, handler(srv, &identified{stream, ctx}) })
	return e.leave(ctx, info.FullMethod, start, err)
}

// identified is a stream whose context knows the request's id.
type identified struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the one way to give a stream a context
}

func (s *identified) Context() context.Context { return s.ctx }

// recovered turns a panic of a handler into an error, so that one bad request cannot take
// policyd down.
func recovered(handle func() (any, error)) (resp any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v\n%s", cause, debug.Stack()), fault.Internal, "panic", "handle request")
		}
	}()
	return handle()
}

// leave logs how the request went and returns what the caller sees. A failure that only
// people at policyd can act on is logged with its cause, here and nowhere else.
func (e edge) leave(ctx context.Context, method string, start time.Time, err error) error {
	log := e.log.With("method", method, "request_id", requestID(ctx), "took", time.Since(start))
	if err == nil {
		log.DebugContext(ctx, "request served")
		return nil
	}
	if isStatus(err) {
		log.DebugContext(ctx, "request ended", "error", err)
		return err
	}
	switch kind := fault.KindOf(err); kind {
	case fault.Internal:
		log.ErrorContext(ctx, "request failed", "error", err)
	case fault.Unavailable:
		log.WarnContext(ctx, "request failed", "error", err)
	case fault.Invalid, fault.NotFound, fault.Conflict, fault.Denied, fault.Unauthenticated, fault.Refused, fault.Exhausted, fault.Canceled:
		log.DebugContext(ctx, "request refused", "kind", kind.String(), "error", err)
	}
	return statusOf(err, requestID(ctx))
}
