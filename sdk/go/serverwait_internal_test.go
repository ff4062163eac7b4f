// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"net/http"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func FuzzServerWait(f *testing.F) {
	f.Add("120", `"default";r=0;t=30`)
	f.Add("Wed, 21 Oct 2015 07:28:02 GMT", `"a";r=0;t=99999999999999999999, "b";t=1;r=0`)
	f.Add("-5", ";;,=;r=;t=")
	f.Fuzz(func(t *testing.T, retryAfter, rateLimit string) {
		h := http.Header{}
		h["Retry-After"], h["Ratelimit"] = []string{retryAfter}, []string{rateLimit}
		w := serverWait(h, time.Unix(1445412480, 0))
		if w.For < 0 || w.Kind == engine.AskedNothing && w.For != 0 {
			t.Fatalf("%+v", w)
		}
	})
}
