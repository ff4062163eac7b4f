// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"net/http"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/idkey"
)

// Do runs fn under the endpoint's policy, with the client of [Using], else [Default]. fn
// must honour its context, which carries the per-attempt timeout and ends when fn returns,
// and it must be fit to run several times, one after another (at once only with
// [Concurrent]): Do takes a call to be repeatable, unless
// [Idempotent](false) or the method in the endpoint's match.http says otherwise.
//
// Errors pass through unchanged unless the policy changed the outcome; then they are a
// *[Error] that wraps the last one. Which errors are worth a retry follows from the policy
// for errors of package net, for those that carry a gRPC status, and for those with a
// method StatusCode() int or HTTPStatusCode() int; [Retryable], [RetryAfter], [NotSent]
// and [Permanent] tell about others. A panic of fn is passed on.
//
// A function names no host: under breaker.per: host all calls of Do to an endpoint share one
// breaker.
//
// Where fn returns an *http.Response, its status is judged as [Transport] does: the last
// response is returned with a nil error, and its context lasts until its body is closed.
func Do[T any](ctx context.Context, endpoint string, fn func(context.Context) (T, error), opts ...CallOption) (T, error) {
	var r run
	r.prepare(ctx, endpoint, opts)
	if r.nested {
		return fn(ctx)
	}
	var none T
	if err := r.start(ctx); err != nil {
		return none, err
	}
	defer r.guard()
	_, response := any(&none).(**http.Response)
	for attempt := &r.record.first; ; attempt = r.next(ctx) {
		var v T
		var err error
		if after, ok := r.parallel(); ok {
			v = raceDo(ctx, &r, attempt, after, fn)
		} else {
			r.sent = sent{}
			r.open(ctx, attempt, response, &r.sent)
			v, err = fn(attempt) //nolint:contextcheck // attempt is ctx
			r.sent.shut(ctx, attempt, v, err)
		}
		again, err := r.after(ctx, nil, &r.sent, r.judge(), nil)
		switch {
		case again:
		case err != nil && response:
			return none, err
		default:
			return v, err
		}
	}
}

// DoOr is [Do] with a fallback. It runs only when the policy gave up, and is told why and,
// by [Error.Fallback], what the policy advises; what it returns is the result. Under
// fallback.mode fail-fast it does not run: the operator wants the failure seen.
func DoOr[T any](ctx context.Context, endpoint string, fn func(context.Context) (T, error), fallback func(context.Context, *Error) (T, error), opts ...CallOption) (T, error) {
	v, err := Do(ctx, endpoint, fn, opts...)
	var gaveUp *Error
	if err != nil && errors.As(err, &gaveUp) && gaveUp.Fallback().Mode != FallbackFailFast {
		if v, err = fallback(ctx, gaveUp); err == nil {
			gaveUp.answered()
		}
	}
	return v, err
}

// run is one call of Do.
type run struct {
	call
	nested bool // an attempt of a call around it that is counted already
	config *callConfig
	sent   sent // the attempt in progress
}

func (r *run) prepare(ctx context.Context, endpoint string, opts []CallOption) {
	m := markOf(ctx)
	r.config = m.options()
	if len(opts) > 0 {
		r.config = withOptions(r.config, opts)
	}
	var c *Client
	if r.config != nil {
		c = r.config.client
	}
	if c == nil {
		c = Default()
	}
	ep := c.endpoint(endpoint) //nolint:contextcheck // the watch outlives the call that starts it
	if outer := m.running(); outer != nil && outer.ep == ep {
		r.nested = true
		return
	}
	r.init(c, ep, m, r.config)
}

// start asks for the first attempt.
func (r *run) start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := r.ep.Policy()
	o := engine.CallOptions{Idempotent: r.client.repeats(r.ep, p)}
	if r.config != nil {
		r.key = r.config.key
		if r.config.repeat != repeatByRule {
			o.Idempotent = r.config.repeat == repeatYes
		}
	}
	if k := &p.Idempotency.Key; r.key == "" && k.Enabled && k.Auto && !o.Idempotent {
		r.key = idkey.New()
	}
	o.Keyed = r.key != ""
	return r.begin(ctx, o)
}

// repeats reports whether the calls of an endpoint may be repeated by their method: yes if
// it is not known, since who uses Do means them to be.
func (c *Client) repeats(ep *endpoint, p *engine.Policy) bool {
	doc := c.current.Load().documents[engine.Scope(ep.name)]
	if doc == nil {
		return true
	}
	method := doc.Settings[engine.MatchHTTPMethod].Text
	return method == "" || p.Idempotency.Repeats(method)
}

// open gives the attempt its context. It ends when fn returns, except that of a response,
// which has no deadline of its own, so that the body may take longer.
func (r *run) open(ctx context.Context, attempt *mark, response bool, s *sent) {
	if response {
		r.arm(ctx, attempt, s)
		return
	}
	if d, overall, ok := r.limit(ctx); ok {
		attempt.Context, s.cancel = context.WithTimeoutCause(ctx, d, r.cutShort(overall))
		return
	}
	attempt.Context, s.cancel = context.WithCancel(ctx)
}

// shut takes what fn returned and ends the attempt's time limit.
func (s *sent) shut(ctx context.Context, attempt *mark, v any, err error) {
	s.resp, _ = v.(*http.Response)
	s.err = err
	if s.err != nil {
		s.resp = nil
	}
	if s.timer != nil {
		s.disarm(ctx)
	} else if s.cancel != nil {
		var cut *timeoutError
		if err != nil && errors.As(context.Cause(attempt.Context), &cut) && ctx.Err() == nil { //nolint:contextcheck // attempt is ctx with a limit
			s.cut = cut
		}
		s.cancel()
		s.cancel = nil
	}
}

// guard settles the attempt of a fn that panicked.
func (r *run) guard() {
	if !r.ended {
		r.panicked()
		r.sent.discard()
	}
}

// judge says how an attempt ended, in the words of the engine.
func (r *run) judge() engine.Outcome {
	s := &r.sent
	if s.err == nil {
		if s.resp == nil {
			return engine.Outcome{}
		}
		return judgeResponse(s.resp)
	}
	var own *judgedError
	if errors.As(s.err, &own) {
		return own.outcome()
	}
	if s.cut != nil {
		return engine.Outcome{Kind: engine.OutcomeRetryable}
	}
	return judgeError(s.err)
}
