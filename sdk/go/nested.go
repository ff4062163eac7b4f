// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"net/http"
	"strconv"
	"strings"
)

// baggageMember is the member of W3C baggage that marks an attempt; its value is the
// attempt's number.
const baggageMember = "policyd.attempt"

// maxBaggage is what the standard lets a header be; a longer one is left as it is.
const maxBaggage = 8192

// Incoming wraps the handler of a server, so that calls made for a request that arrives
// marked are sent once where the policy says nested.whenMarked: single-attempt: the caller
// repeats already, and retries at each level would multiply. It needs the request's context
// to be passed on.
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
	for _, header := range baggage {
		for header != "" {
			var member string
			member, header, _ = strings.Cut(header, ",")
			if attemptOf(member) > 0 {
				return WithCall(ctx, func(cfg *callConfig) { cfg.marked = true })
			}
		}
	}
	return ctx
}

// attemptOf returns the number that a member of baggage marks an attempt with, 0 for none.
func attemptOf(member string) int {
	member, _, _ = strings.Cut(member, ";") // properties
	name, value, _ := strings.Cut(member, "=")
	if strings.TrimSpace(name) != baggageMember {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// marks reports whether attempts tell the service that they may be repeated.
func (k *call) marks() bool {
	p := k.engine.Policy()
	return p.Extras != nil && p.Extras.Nested.Mark && !k.passive && !k.ep.unmatched && k.tries > 1
}

// setMark puts the number of an attempt into a copy of the request's baggage, in place of
// one that came from further up.
func setMark(req *http.Request, number int) {
	var members []string
	for _, header := range req.Header.Values("Baggage") {
		for _, member := range strings.Split(header, ",") {
			if strings.TrimSpace(member) != "" && attemptOf(member) == 0 {
				members = append(members, strings.TrimSpace(member))
			}
		}
	}
	members = append(members, baggageMember+"="+strconv.Itoa(number))
	if text := strings.Join(members, ","); len(text) <= maxBaggage {
		setHeader(req, headerKey{name: "Baggage", value: text})
	}
}
