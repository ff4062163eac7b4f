// SPDX-License-Identifier: Apache-2.0

package policygrpc

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

const (
	pushbackKey = "grpc-retry-pushback-ms"
	previousKey = "grpc-previous-rpc-attempts"
)

// unary is one unary call.
type unary struct {
	call seam.Call
	opts options
	// of the last attempt
	trailer metadata.MD
	peer    peer.Peer
}

// run makes attempts until one is final. A panic, of an interceptor further in, is passed on
// once the attempt is settled.
func (u *unary) run(invoke func(context.Context, []grpc.CallOption) error) error {
	if err := u.call.Begin(); err != nil {
		return err
	}
	panicked := true
	defer func() { u.call.Drop(panicked) }()
	opts := append(u.opts.call[:len(u.opts.call):len(u.opts.call)], grpc.Trailer(&u.trailer), grpc.Peer(&u.peer))
	for {
		a := u.call.Open(false)
		r := seam.Result{Err: invoke(outgoing(&a), opts)}
		if r.Err != nil {
			r.NotSent = u.peer.Addr == nil && status.Code(r.Err) == codes.Unavailable
			r.Server = pushback(u.trailer)
		}
		again, err := u.call.Settle(r)
		if !again {
			panicked = false
			return err
		}
		u.opts.reset()
		u.trailer, u.peer = nil, peer.Peer{}
	}
}

// outgoing returns the context of an attempt with its metadata.
func outgoing(a *seam.Attempt) context.Context {
	ctx := a.Context
	if a.Header != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, a.Header, a.Key)
	}
	if a.Number > 1 {
		ctx = metadata.AppendToOutgoingContext(ctx, previousKey, strconv.Itoa(a.Number-1))
	}
	return ctx
}

// pushback reads what the server asks for. More than one value is as bad as none that can
// be read.
func pushback(trailer metadata.MD) engine.ServerWait {
	switch values := trailer[pushbackKey]; len(values) {
	case 0:
		return engine.ServerWait{}
	case 1:
		return engine.ParsePushback(values[0])
	default:
		return engine.ServerWait{Kind: engine.AskedStop}
	}
}

// left gives the error of a call that its caller has left the caller's status: one that
// tells of an earlier failure as well would be read as that.
func left(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	return &leftError{err, status.FromContextError(ctx.Err()).Code()}
}

type leftError struct {
	err  error
	code codes.Code
}

func (e *leftError) Error() string { return e.err.Error() }
func (e *leftError) Unwrap() error { return e.err }

// GRPCStatus makes package status read it as the end of the caller's context.
func (e *leftError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }
