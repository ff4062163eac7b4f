// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"net/http"

	"github.com/policyd/policyd/sdk/go/engine"
	marks "github.com/policyd/policyd/sdk/go/internal/baggage"
)

// Incoming wraps the handler of a server, so that calls made for a request that arrives
// marked are sent once where the policy says nested.whenMarked: single-attempt: the caller
// repeats already, and retries at each level would multiply. It needs the request's context
// to be passed on. Where nested.mark is on, such calls are marked as well: whatever is further
// down leaves repeating to the top of the chain.
func Incoming(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx := WithIncoming(r.Context(), r.Header.Values("Baggage")...); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// WithIncoming is [Incoming] for servers of other kinds: baggage is the value, or values, of
// the request's W3C baggage. Without a mark in it ctx is returned as it is.
func WithIncoming(ctx context.Context, baggage ...string) context.Context {
	if marks.Marked(baggage...) {
		return WithCall(ctx, func(cfg *callConfig) { cfg.marked = true })
	}
	return ctx
}

// marks reports whether attempts tell the service that they may be repeated, by this call or
// by one further up: a chain of services repeats at its top alone.
func (k *call) marks() bool {
	p := k.engine.Policy()
	return p.Extras != nil && p.Extras.Nested.Mark && !k.passive && (k.tries > 1 || k.repeated) && k.known()
}

// known reports whether a policy names where the call goes: its endpoint, or the host of a
// service. Anything else may be out of the house.
func (k *call) known() bool {
	return !k.ep.unmatched || k.client.current.Load().matcher.HTTP("", k.ep.name, noPath).Scope.Level() == engine.LevelService
}

// setMark puts the number of an attempt into a copy of the request's baggage.
func setMark(req *http.Request, number int) {
	if text, ok := marks.Mark(req.Header.Values(marks.Name), number); ok {
		setHeader(req, marks.Name, text)
	}
}
