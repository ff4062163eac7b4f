// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// FallbackMode is what a policy advises code to do when a call fails.
type FallbackMode string

// Modes of fallback.mode.
const (
	FallbackNone     FallbackMode = "none"      // no advice: the code's own choice
	FallbackCached   FallbackMode = "cached"    // the last good value, up to MaxAge; see LastGood
	FallbackStatic   FallbackMode = "static"    // a fixed answer
	FallbackFailFast FallbackMode = "fail-fast" // none: let the failure be seen
)

// Fallback is the advice of a policy. It never acts by itself: code that has a fallback asks
// for it.
type Fallback struct {
	Mode   FallbackMode
	MaxAge time.Duration // of FallbackCached
	// Status, ContentType and Body are the answer of FallbackStatic.
	Status            int
	ContentType, Body string
}

// Fallback is what the policy of the call advises.
func (e *Error) Fallback() Fallback {
	if e.why.policy == nil || e.why.policy.Extras == nil {
		return Fallback{Mode: FallbackNone}
	}
	p := &e.why.policy.Extras.Fallback
	return Fallback{Mode: FallbackMode(p.Kind.String()), MaxAge: p.MaxAge, Status: p.Status, ContentType: p.ContentType, Body: p.Body}
}

// answered counts a call that a fallback answered after all.
func (e *Error) answered() {
	if ep := e.why.ep; ep != nil {
		ep.answered(e.Attempts == 0)
	}
}

func (e *endpoint) answered(refused bool) {
	if refused {
		e.fellBackRefused.Add(1)
	} else {
		e.fellBack.Add(1)
	}
}

// StaticFallback lets a policy with fallback.mode static answer for the upstream: when the
// policy gave up on a GET or HEAD request, the caller gets the policy's status and body
// instead of the failure. [OutcomeOf] tells so by its Code.
func StaticFallback() TransportOption {
	return func(c *transportConfig) { c.static = true }
}

// fallBack replaces a failure by the policy's static answer, if there is one.
func (x *exchange) fallBack(resp *http.Response, err error) (*http.Response, error) {
	p := x.ep.Policy()
	if x.code == "" || x.passive || x.kept != nil || p.Extras == nil || p.Extras.Fallback.Kind != engine.FallbackStatic {
		return resp, err
	}
	if m := x.req.Method; m != "" && m != http.MethodGet && m != http.MethodHead {
		return resp, err
	}
	var e *Error
	if err != nil && !errors.As(err, &e) {
		return resp, err
	}
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	x.ep.answered(x.sends() == 0)
	return x.answer(&p.Extras.Fallback), nil
}

func (x *exchange) answer(f *engine.FallbackPolicy) *http.Response {
	r := x.record
	if r == nil { // refused
		r = &record{ep: x.ep, key: x.key, tries: few(x.tries), code: x.code, revision: x.revision}
		r.ended.Store(true)
	}
	of := &mark{Context: x.req.Context(), config: x.inherited, of: r, number: r.attempts}
	resp := &http.Response{
		Status: strconv.Itoa(f.Status) + " " + http.StatusText(f.Status), StatusCode: f.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, ContentLength: int64(len(f.Body)), Body: http.NoBody, Request: x.req.WithContext(of),
	}
	if f.ContentType != "" {
		resp.Header.Set("Content-Type", f.ContentType)
	}
	if f.Body != "" && x.req.Method != http.MethodHead {
		resp.Body = io.NopCloser(strings.NewReader(f.Body))
	}
	return resp
}
