// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"net/http"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// serverWait reads how long a server asks to wait: Retry-After, else the header RateLimit
// of an exhausted quota.
func serverWait(h http.Header, now time.Time) engine.ServerWait {
	if value := h.Get("Retry-After"); value != "" {
		if w := engine.ParseRetryAfter(value, now); w.Kind != engine.AskedNothing {
			return w
		}
	}
	if d, ok := engine.ParseRateLimit(h.Values("RateLimit")); ok {
		return engine.ServerWait{Kind: engine.AskedRetryAfter, For: d}
	}
	return engine.ServerWait{}
}
