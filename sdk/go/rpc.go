// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/engine"
	marks "github.com/policyd/policyd/sdk/go/internal/baggage"
	"github.com/policyd/policyd/sdk/go/internal/idkey"
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
			x.key = idkey.Unquote(set)
		} else if x.key = option; x.key == "" && keys.Auto && !o.Idempotent {
			x.key = idkey.New()
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
	return strings.ToLower(cmp.Or(p.Header, idkey.DefaultHeader))
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
		if q, ok := idkey.Quote(key); ok {
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
	return x.ready(x.ctx, x.attempt, &x.sent, stream)
}

// ready gives the attempt of m, in ctx, its time limit.
func (x *rpc) ready(ctx context.Context, m *mark, s *sent, stream bool) seam.Attempt {
	if stream {
		x.arm(ctx, m, s)
	} else if d, overall, ok := x.limit(ctx); ok {
		s.limit = x.cutShort(overall)
		m.Context, s.cancel = context.WithTimeoutCause(ctx, d, s.limit)
	}
	a := seam.Attempt{
		Context: m, Number: int(m.number), Header: x.keyName, Key: x.keyText,
		Replay: !x.quiet && !x.passive && int(m.number) < x.tries,
	}
	if x.marks() {
		a.Baggage = marks.Mark
	}
	if s.timer != nil {
		a.Arrived = s.timer.Stop
	}
	return a
}

// Settle takes the end of the attempt in progress.
func (x *rpc) Settle(r seam.Result) (bool, error) {
	if x.outer != nil {
		return false, r.Err
	}
	x.sent.err = r.Err
	x.sent.close(x.ctx, x.attempt)
	return x.conclude(&r)
}

// conclude settles the attempt that decides.
func (x *rpc) conclude(r *seam.Result) (bool, error) {
	again, err := x.after(x.ctx, nil, &x.sent, x.judge(&x.sent, r), nil)
	if again {
		x.attempt = x.next(x.ctx)
		return true, nil
	}
	if r.Lost {
		tooLong(err)
	}
	return false, err
}

// tooLong has an error say why what was sent cannot be sent again.
func tooLong(err error) {
	var e *Error
	if errors.As(err, &e) && e.Code == CodeBody {
		e.why.text = "more was sent than is kept for a repeat"
	}
}

// Race returns how to hedge the attempt in progress, nil if it is not.
func (x *rpc) Race() seam.Race {
	if x.outer != nil {
		return nil
	}
	after, ok := x.hedges()
	if !ok {
		return nil
	}
	return func(made func(seam.Attempt) func() seam.Result) (seam.Result, bool, error) {
		return x.race(after, made)
	}
}

// race makes the attempt in progress and, while it is slow, others beside it.
func (x *rpc) race(after time.Duration, made func(seam.Attempt) func() seam.Result) (of seam.Result, again bool, err error) {
	r := race{ctx: x.ctx}
	launch := func(m *mark) (func(), *entrant) {
		n := &entrant{}
		own := m.Context
		send := made(x.ready(own, m, &n.sent, false))
		return func() {
			result := send()
			n.value, n.sent.err = &result, result.Err
			n.sent.close(own, m)
		}, n
	}
	n := r.run(&x.call, x.attempt, after, launch, func(n *entrant) engine.Outcome {
		result, _ := n.value.(*seam.Result)
		return x.judge(&n.sent, result)
	})
	decides, _ := n.value.(*seam.Result)
	x.sent = n.sent
	again, err = x.conclude(decides)
	return *decides, again, err
}

// close ends the time limit of the attempt of m, in ctx, and notes whether it was reached. A
// stream that succeeded has begun to answer: its context lasts.
func (s *sent) close(ctx context.Context, m *mark) {
	if s.cancel == nil {
		return
	}
	if s.timer != nil {
		if s.timer.Stop(); s.err == nil {
			return
		}
	}
	var cut *timeoutError
	if s.err != nil && ctx.Err() == nil && errors.As(context.Cause(m.Context), &cut) { //nolint:contextcheck // m is ctx with a limit
		s.cut = cut
		s.err = status.Error(codes.DeadlineExceeded, cut.Error())
	}
	s.cancel()
	s.cancel = nil
}

// judge says how an attempt ended, in the words of the engine.
func (x *rpc) judge(s *sent, r *seam.Result) engine.Outcome {
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
	case s.cut != nil:
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
