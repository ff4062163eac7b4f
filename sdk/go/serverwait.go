// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"net/http"
	"strconv"
	"strings"
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
	if d, ok := quotaWait(h.Values("RateLimit")); ok {
		return engine.ServerWait{Kind: engine.AskedRetryAfter, For: d}
	}
	return engine.ServerWait{}
}

// quotaWait reads RateLimit fields such as `"default";r=0;t=30`: the longest t, in seconds,
// of a quota of which nothing remains.
func quotaWait(fields []string) (wait time.Duration, ok bool) {
	const longest = int64(time.Duration(1<<63-1) / time.Second)
	for _, field := range fields {
		for item := range strings.SplitSeq(field, ",") {
			remaining, seconds := int64(-1), int64(-1)
			for i, param := range strings.Split(item, ";") {
				name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
				n, err := strconv.ParseInt(value, 10, 64)
				if i == 0 || err != nil || n < 0 {
					continue
				}
				switch name {
				case "r":
					remaining = n
				case "t":
					seconds = min(n, longest)
				}
			}
			if remaining == 0 && seconds >= 0 {
				wait, ok = max(wait, time.Duration(seconds)*time.Second), true
			}
		}
	}
	return wait, ok
}
