// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"net/http"
	"testing"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// BenchmarkTransport compares a call through Transport, with retries, budget, gate and
// breaker active and nothing failing, to the same in-memory transport without it.
func BenchmarkTransport(b *testing.B) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	bare := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		out := *resp
		out.Request = r
		return &out, nil
	})
	policy := set{
		engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.BreakerRatioEnabled: engine.Bool(true),
		engine.MatchHTTPPath: engine.Text("/v1/call"), engine.BudgetSuccessGateEnabled: engine.Bool(true),
	}
	limited := with(policy, set{engine.TimeoutsAttempt: ms(1000)})
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{
		{"bare", bare},
		{"matched by policy", newClient(b, policy).Transport(bare)},
		{"matched by route", newClient(b, policy).Transport(bare, policyd.Route("", "/v1/{name}", ep))},
		{"unmatched", newClient(b, nil).Transport(bare)},
		{"with a time limit", newClient(b, limited).Transport(bare)},
		{"off", newClient(b, policy, policyd.WithMode(policyd.Off)).Transport(bare)},
	} {
		b.Run(c.name, func(b *testing.B) {
			req := request(b, context.Background(), http.MethodGet, nil)
			b.ReportAllocs()
			for b.Loop() {
				r, err := c.rt.RoundTrip(req)
				if err != nil || r.StatusCode != 200 {
					b.Fatal(r, err)
				}
			}
		})
	}
	b.Run("refused", func(b *testing.B) {
		c := newClient(b, policy)
		put(c, policy, killSwitch(engine.ForceOpen, 1<<40))
		rt := c.Transport(bare)
		req := request(b, context.Background(), http.MethodGet, nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := rt.RoundTrip(req); err == nil {
				b.Fatal("not refused")
			}
		}
	})
}

// BenchmarkDo measures a call of a function that does nothing.
func BenchmarkDo(b *testing.B) {
	c := newClient(b, set{engine.BreakerConsecutiveEnabled: engine.Bool(true)})
	ctx := context.Background()
	fn := func(context.Context) (int, error) { return 1, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := policyd.Do(ctx, ep, fn, policyd.Using(c)); err != nil {
			b.Fatal(err)
		}
	}
}
