// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// rpc is one call of package policygrpc.
type rpc struct {
	call
	ctx     context.Context //nolint:containedctx // the caller's, as long as the call
	method  seam.Method
	config  *callConfig
	outer   *record // an attempt of the same endpoint is in progress around it
	attempt *mark
	sent    sent
	keyName string // metadata; empty when none is to be added
	keyText string
}

func newRPC(ctx context.Context, client any, method seam.Method) seam.Call {
	m := markOf(ctx)
	cfg := m.options()
	c, _ := client.(*Client)
	if c == nil {
		if c = Default(); cfg != nil && cfg.client != nil {
			c = cfg.client
		}
	}
	ep := c.matchGRPC(method.Name, method.Host) //nolint:contextcheck // the watch outlives the call that starts it
	x := &rpc{ctx: ctx, method: method, config: cfg}
	if outer := m.running(); outer != nil && outer.ep == ep {
		x.outer = outer
		return x
	}
	x.init(c, ep, m, cfg)
	return x
}

// Begin asks for the first attempt. A gRPC call is a POST; beside the policy's methods,
// the method's own declaration says whether it may be repeated.
func (x *rpc) Begin() error {
	if x.outer != nil {
		x.setKey(x.outer.key, &x.outer.ep.Policy().Idempotency.Key)
		return nil
	}
	p := x.ep.Policy()
	o := engine.CallOptions{}
	if p.PerHost() {
		o.Host = strings.ToLower(clipName(x.method.Host))
	}
	option := ""
	if x.config != nil {
		option = x.config.key
		o.Idempotent = x.config.repeat == repeatYes
	}
	if x.config == nil || x.config.repeat == repeatByRule {
		o.Idempotent = p.Idempotency.Repeats(http.MethodPost) || x.method.Repeats(x.method.Name)
	}
	if keys := &p.Idempotency.Key; option != "" || keys.Enabled {
		if set := x.given(keyHeader(keys)); set != "" {
			x.key = unquoteKey(set)
		} else if x.key = option; x.key == "" && keys.Auto && !o.Idempotent {
			x.key = newKey()
		}
		if x.setKey(x.key, keys); x.passive {
			x.keyName = ""
		}
		o.Keyed = x.key != ""
	}
	if err := x.begin(x.ctx, o); err != nil {
		return err
	}
	x.attempt = &x.record.first
	return nil
}

// keyHeader is the name of the metadata of a key.
func keyHeader(p *engine.KeyPolicy) string {
	return strings.ToLower(cmp.Or(p.Header, defaultKeyHeader))
}

// given is metadata that the caller has set, "" for none.
func (x *rpc) given(name string) string {
	md, _ := metadata.FromOutgoingContext(x.ctx)
	if values := md.Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// setKey has a key sent, unless the caller has set one.
func (x *rpc) setKey(key string, p *engine.KeyPolicy) {
	name := keyHeader(p)
	if key == "" || x.given(name) != "" {
		return
	}
	x.keyName, x.keyText = name, key
	if p.Quoted {
		if q, ok := quoteKey(key); ok {
			x.keyText = q
		}
	}
}

// Open readies the attempt in progress.
func (x *rpc) Open(stream bool) seam.Attempt {
	if x.outer != nil {
		return seam.Attempt{Context: x.ctx, Number: 1, Header: x.keyName, Key: x.keyText}
	}
	x.sent = sent{}
	if stream {
		x.arm(x.ctx, x.attempt, &x.sent)
	} else if d, overall, ok := x.limit(x.ctx); ok {
		x.sent.limit = x.cutShort(overall)
		x.attempt.Context, x.sent.cancel = context.WithTimeoutCause(x.ctx, d, x.sent.limit)
	}
	a := seam.Attempt{
		Context: x.attempt, Number: x.attempt.number, Header: x.keyName, Key: x.keyText,
		Replay: !x.quiet && !x.passive && x.attempt.number < x.tries,
	}
	if x.sent.timer != nil {
		a.Arrived = x.sent.timer.Stop
	}
	return a
}

// Settle takes the end of the attempt in progress.
func (x *rpc) Settle(r seam.Result) (bool, error) {
	if x.outer != nil {
		return false, r.Err
	}
	s := &x.sent
	s.err = r.Err
	x.close()
	again, err := x.after(x.ctx, nil, s, x.judge(&r), nil)
	if again {
		x.attempt = x.next(x.ctx)
		return true, nil
	}
	var e *Error
	if r.Lost && errors.As(err, &e) && e.Code == CodeBody {
		e.why.text = "more was sent than is kept for a repeat"
	}
	return false, err
}

// close ends the time limit of an attempt and notes whether it was reached. A stream that
// succeeded has begun to answer: its context lasts.
func (x *rpc) close() {
	s := &x.sent
	if s.cancel == nil {
		return
	}
	if s.timer != nil {
		if s.timer.Stop(); s.err == nil {
			return
		}
	}
	var cut *timeoutError
	if s.err != nil && x.ctx.Err() == nil && errors.As(context.Cause(x.attempt.Context), &cut) {
		s.cut = cut
		s.err = status.Error(codes.DeadlineExceeded, cut.Error())
	}
	s.cancel()
	s.cancel = nil
}

// judge says how an attempt ended, in the words of the engine.
func (x *rpc) judge(r *seam.Result) engine.Outcome {
	if r.Err == nil {
		return engine.Outcome{}
	}
	o := engine.Outcome{NotSent: r.NotSent, BodyLost: r.Lost, Server: r.Server}
	var own *judgedError
	code := status.Code(r.Err)
	switch {
	case errors.As(r.Err, &own): // of another interceptor
		o = own.outcome()
		o.BodyLost = r.Lost
	case x.sent.cut != nil:
		o.Kind = engine.OutcomeRetryable
	default:
		o.Kind, o.Code = engine.OutcomeGRPC, int(code)
	}
	if r.Committed && (o.Kind == engine.OutcomeRetryable || x.engine.Policy().RetryOn.GRPC(uint32(code))) {
		o.Kind = engine.OutcomeError
	}
	return o
}

// Drop ends a call that its caller has left, or that panicked, and what is left of one that
// is over.
func (x *rpc) Drop(panicked bool) {
	switch {
	case x.outer != nil:
		return
	case x.ended:
	case panicked:
		x.panicked()
	default:
		x.note(x.engine.Abandon(x.client.now()))
		x.end("")
	}
	x.release()
}

// release ends the context of the attempt in progress.
func (x *rpc) release() {
	if x.sent.timer != nil {
		x.sent.timer.Stop()
	}
	if x.sent.cancel != nil {
		x.sent.cancel()
	}
}

// GRPCStatus is what package status of gRPC finds: UNAVAILABLE for breaker_open,
// RESOURCE_EXHAUSTED for concurrency_limited, DEADLINE_EXCEEDED for deadline_exceeded, and
// for any other code the status of the last attempt, UNKNOWN if that had none.
func (e *Error) GRPCStatus() *status.Status {
	switch e.Code {
	case CodeBreaker:
		return status.New(codes.Unavailable, e.Error())
	case CodeConcurrency:
		return status.New(codes.ResourceExhausted, e.Error())
	case CodeDeadline:
		return status.New(codes.DeadlineExceeded, e.Error())
	default:
	}
	if s, ok := status.FromError(e.Err); ok && s.Code() != codes.OK {
		return s
	}
	return status.New(codes.Unknown, e.Error())
}
