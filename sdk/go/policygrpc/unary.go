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
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

const (
	pushbackKey = "grpc-retry-pushback-ms"
	previousKey = "grpc-previous-rpc-attempts"
	baggageKey  = "baggage"
)

// unary is one unary call. Whoever is given its options may keep them, so it is not used again.
type unary struct {
	call   seam.Call
	method string
	cc     *grpc.ClientConn
	invoke grpc.UnaryInvoker
	opts   options
	room   [4]grpc.CallOption // for those of most calls and two of ours
	// of the last attempt
	trailer metadata.MD
	peer    peer.Peer
}

// run makes attempts until one is final. A panic, of an interceptor further in, is passed on
// once the attempt is settled.
func (u *unary) run(req, reply any) error {
	if err := u.call.Begin(); err != nil {
		return err
	}
	panicked := true
	defer func() { u.call.Drop(panicked) }()
	opts := append(append(u.room[:0], u.opts.call...), grpc.Trailer(&u.trailer), grpc.Peer(&u.peer))
	for {
		var again bool
		var err error
		if race := u.call.Race(); race != nil && copyable(req, reply) {
			again, err = u.race(race, req.(proto.Message), reply.(proto.Message))
		} else {
			a := u.call.Open(false)
			again, err = u.call.Settle(result(u.invoke(outgoing(&a), u.method, req, reply, u.cc, opts...), u.trailer, &u.peer))
		}
		if !again {
			panicked = false
			return err
		}
		u.opts.reset()
		u.trailer, u.peer = nil, peer.Peer{}
	}
}

func result(err error, trailer metadata.MD, from *peer.Peer) seam.Result {
	r := seam.Result{Err: err}
	if err != nil {
		r.NotSent = from.Addr == nil && status.Code(err) == codes.Unavailable
		r.Server = pushback(trailer)
	}
	return r
}

// answer is what one of several attempts came to.
type answer struct {
	reply           proto.Message
	header, trailer metadata.MD
	peer            peer.Peer
}

// copyable reports whether both messages are protobuf's: nothing is known of how to copy others.
func copyable(req, reply any) bool {
	_, in := req.(proto.Message)
	_, out := reply.(proto.Message)
	return in && out
}

// race makes an attempt, and others beside it while it is slow. None touches the caller's
// messages.
func (u *unary) race(race seam.Race, in, out proto.Message) (again bool, err error) {
	of, again, err := race(func(a seam.Attempt) func() seam.Result {
		ctx, req := outgoing(&a), proto.Clone(in)
		got := &answer{reply: out.ProtoReflect().New().Interface()}
		opts := append(u.opts.withoutResults(), grpc.Header(&got.header), grpc.Trailer(&got.trailer), grpc.Peer(&got.peer))
		return func() seam.Result {
			r := result(u.invoke(ctx, u.method, req, got.reply, u.cc, opts...), got.trailer, &got.peer)
			r.Own = got
			return r
		}
	})
	if got, ok := of.Own.(*answer); ok && !again {
		u.opts.fill(got)
		if of.Err == nil {
			proto.Reset(out)
			proto.Merge(out, got.reply)
		}
	}
	return again, err
}

// outgoing returns the context of an attempt with its metadata.
func outgoing(a *seam.Attempt) context.Context {
	ctx := a.Context
	if a.Baggage != nil {
		md, _ := metadata.FromOutgoingContext(ctx)
		if text, ok := a.Baggage(md.Get(baggageKey), a.Number); ok {
			md = md.Copy()
			if md == nil {
				md = metadata.MD{}
			}
			md.Set(baggageKey, text)
			ctx = metadata.NewOutgoingContext(ctx, md)
		}
	}
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
