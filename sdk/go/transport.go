// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/idkey"
	"github.com/policyd/policyd/sdk/go/internal/netfail"
	"github.com/policyd/policyd/sdk/go/internal/replay"
)

// defaultMaxReplay is how much of a request body is kept in memory for a repeat.
const defaultMaxReplay = 1 << 20

// Transport wraps base (nil means http.DefaultTransport) with the policies of [Default],
// or of the client that [Using] put into a request's context.
//
// The contract of http.RoundTripper is kept to the letter: the request is left as it is, a
// response of any status is returned with its body unread and a nil error, and an *Error
// only when no response was obtained. CloseIdleConnections reaches base.
//
// The timeouts of a policy bound the time until a response's headers are there. Its body
// may take as long as the request's context allows: it can be a stream. The body has to be
// closed, as ever.
//
// Under breaker.per: host an endpoint has a breaker for each host of request URLs, with its
// port unless that is the scheme's own. Such calls, as those under a concurrency limit, take
// the endpoint's lock.
func Transport(base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	return newTransport(nil, base, opts)
}

// Transport is the function [Transport] with the policies of c.
func (c *Client) Transport(base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	return newTransport(c, base, opts)
}

type transport struct {
	client *Client // nil: Default
	base   http.RoundTripper
	cfg    transportConfig
	routes routeTable
}

func newTransport(c *Client, base http.RoundTripper, opts []TransportOption) *transport {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{client: c, base: base, cfg: transportConfig{maxReplay: defaultMaxReplay}}
	for _, opt := range opts {
		if opt != nil {
			opt(&t.cfg)
		}
	}
	return t
}

// CloseIdleConnections closes what base keeps for later, if it can.
func (t *transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// exchange is one call over HTTP.
type exchange struct {
	call
	base   http.RoundTripper
	req    *http.Request // the caller's
	body   *replay.Body  // nil for an empty one
	header *idkey.Header // to be added; nil for none
}

// RoundTrip makes a call under the policy of its endpoint.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	m := markOf(ctx)
	cfg := m.options()
	c := t.client
	if c == nil {
		if c = Default(); cfg != nil && cfg.client != nil {
			c = cfg.client
		}
	}
	if req.URL == nil {
		return t.base.RoundTrip(req) // which knows what to say
	}
	var ep *endpoint
	if r := m.resend(); r != nil {
		ep = c.keptEndpoint(r.Name, r.Unmatched) //nolint:contextcheck // the watch outlives the call that starts it
	} else {
		ep = t.endpoint(c, req) //nolint:contextcheck // as above
	}
	if outer := m.running(); outer != nil && outer.ep == ep {
		return t.base.RoundTrip(outer.withKey(req)) // an attempt of a call that is counted already
	}
	x := exchange{base: t.base, req: req}
	x.http = true
	x.init(c, ep, m, cfg)
	if err := x.start(ctx, cfg, t.cfg.maxReplay); err != nil {
		if t.cfg.static {
			return x.fallBack(nil, err) //nolint:contextcheck // the request's
		}
		return nil, err
	}
	resp, err := x.run(ctx)
	if t.cfg.static {
		return x.fallBack(resp, err) //nolint:contextcheck // the request's
	}
	return resp, err
}

// start asks for the first attempt. When it is refused, the body is closed.
func (x *exchange) start(ctx context.Context, cfg *callConfig, maxReplay int64) error {
	p := x.ep.Policy()
	o := engine.CallOptions{Idempotent: p.Idempotency.Repeats(x.req.Method)}
	if p.PerHost() {
		o.Host = authority(x.req.URL)
	}
	option := ""
	if cfg != nil {
		option = cfg.key
		if cfg.repeat != repeatByRule {
			o.Idempotent = cfg.repeat == repeatYes
		}
	}
	if option != "" || p.Idempotency.Key.Enabled {
		h := idkey.Of(x.req, option, o.Idempotent, &p.Idempotency.Key)
		if x.key = h.Key; h.Name != "" && !x.passive {
			x.header = &h
		}
		o.Keyed = x.key != ""
	}
	if x.req.Body != nil {
		x.body = replay.New(x.req, x.replayLimit(o, maxReplay))
	}
	if err := x.beginOr(ctx, x.req.Cancel, o); err != nil { //nolint:staticcheck // callers may still set Cancel
		x.body.Done()
		return err
	}
	return nil
}

// replayLimit is how much of a body is kept: nothing, unless the call may be repeated.
// What was not touched can be sent in any case.
func (x *exchange) replayLimit(o engine.CallOptions, limit int64) int64 {
	switch {
	case x.passive || x.quiet:
		return -1
	case !o.Idempotent && !o.Keyed:
		return 0
	}
	return limit
}

// run makes attempts until one is final. A panic, of base or of the request's body, is
// passed on once the attempt is settled.
func (x *exchange) run(ctx context.Context) (*http.Response, error) {
	var s sent
	defer x.guard(&s)
	body := x.body.First()
	for attempt := &x.record.first; ; attempt = x.next(ctx) {
		s = sent{}
		if after, ok := x.hedges(); ok && x.body.Parallel() {
			s = x.race(ctx, attempt, body, after)
		} else {
			s = x.send(ctx, attempt, body)
		}
		again, err := x.after(ctx, x.req.Cancel, &s, x.judge(&s), x.body.Prepare) //nolint:staticcheck // callers may still set Cancel
		if !again {
			x.body.Done()
			if err != nil {
				return nil, err
			}
			return s.resp, nil
		}
		body = x.body.Next()
	}
}

// guard leaves nothing open behind a panic.
func (x *exchange) guard(s *sent) {
	if !x.ended {
		x.panicked()
		x.body.Drop()
		s.discard()
	}
}

// send makes one attempt.
func (x *exchange) send(ctx context.Context, attempt *mark, body io.ReadCloser) (s sent) {
	x.arm(ctx, attempt, &s)
	s.req = x.request(attempt, body) //nolint:contextcheck // attempt is ctx
	s.trip(ctx, x.base)
	return s
}

// trip sends the request of an attempt and awaits its answer.
func (s *sent) trip(ctx context.Context, base http.RoundTripper) {
	s.resp, s.err = base.RoundTrip(s.req) //nolint:bodyclose // the caller does, or discard
	switch {
	case s.err == nil && s.resp == nil:
		s.err = errNoResponse
	case s.err != nil && s.resp != nil: // against the contract, but bodies must not leak
		s.fail(s.err)
	}
	s.disarm(ctx)
}

var errNoResponse = errors.New("policyd: the transport returned neither a response nor an error")

// request is the caller's request in the context of an attempt, with the key.
func (x *exchange) request(attempt *mark, body io.ReadCloser) *http.Request {
	req := x.first
	if x.first = nil; req != nil {
		*req = *x.req.WithContext(attempt) // without another allocation
	} else {
		req = x.req.WithContext(attempt)
	}
	if body != nil {
		req.Body = body
	}
	if x.header != nil {
		setHeader(req, x.header.Name, x.header.Value)
	}
	if x.marks() {
		setMark(req, int(attempt.number))
	}
	return req
}

// setHeader changes a copy of the headers: the caller's are its own.
func setHeader(req *http.Request, name, value string) {
	if req.Header = req.Header.Clone(); req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set(name, value)
}

// withKey returns a request that bears the key of the call around it.
func (r *record) withKey(req *http.Request) *http.Request {
	if r.key == "" || r.passive {
		return req
	}
	h := idkey.Of(req, r.key, false, &r.ep.Policy().Idempotency.Key)
	if h.Name == "" {
		return req
	}
	req = req.WithContext(req.Context())
	setHeader(req, h.Name, h.Value)
	return req
}

// judge says how an attempt ended, in the words of the engine.
func (x *exchange) judge(s *sent) engine.Outcome {
	var o engine.Outcome
	switch {
	case s.err == nil:
		if o = judgeResponse(s.resp); o.Kind == engine.OutcomeOK {
			return o
		}
	case s.cut != nil:
		o.Kind = engine.OutcomeRetryable
	default:
		kind, notSent := netfail.Of(s.err)
		if kind == 0 && errors.Is(s.err, io.EOF) {
			kind = engine.NetworkReset
		}
		if o.Kind = engine.OutcomeError; kind != 0 {
			o.Kind, o.Network, o.NotSent = engine.OutcomeNetwork, kind, notSent
		}
	}
	o.BodyLost = !x.body.Replayable()
	return o
}
