// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/policyd/policyd/sdk/go/engine"
)

func compiled(s engine.Settings) engine.Policy {
	return engine.Compile(engine.Merge(endpointScope, []engine.Document{{Scope: endpointScope, Settings: s}}))
}

func TestCompile_gives_the_built_in_policy(t *testing.T) {
	p := engine.Compile(engine.Merge(endpointScope, nil))
	if p.MaxAttempts != 3 || p.Observe || p.Criticality != engine.CriticalityUnspecified {
		t.Errorf("%+v", p)
	}
	if want := (engine.BackoffPolicy{Base: 200 * time.Millisecond, Max: 2 * time.Second, Multiplier: 2 * engine.Million, Jitter: engine.JitterFull}); p.Backoff != want {
		t.Errorf("backoff %+v", p.Backoff)
	}
	if p.Timeouts != (engine.TimeoutPolicy{}) {
		t.Errorf("timeouts %+v", p.Timeouts)
	}
	if want := (engine.BudgetPolicy{
		Ratio: 100_000, Window: 10 * time.Second, MinRetriesPerSecond: 200_000,
		Tokens:      engine.TokenPolicy{Capacity: 20 * engine.Million, SuccessCredit: 100_000, RetryCost: engine.Million},
		SuccessGate: engine.GatePolicy{Enabled: true, Window: 100, MinSuccessRate: 900_000, MinCalls: 20, MaxAge: time.Minute},
	}); p.Budget != want {
		t.Errorf("budget %+v", p.Budget)
	}
	if p.Breaker.Enabled || p.Breaker.Consecutive.Enabled || p.Breaker.Ratio.Enabled || p.Breaker.Slow.Enabled {
		t.Errorf("breaker %+v", p.Breaker)
	}
	if p.RetryOn.Network != engine.NetworkConnect|engine.NetworkReset {
		t.Errorf("network %b", p.RetryOn.Network)
	}
	if k := p.Idempotency.Key; k.Enabled || k.Auto || k.Quoted || k.Header != "Idempotency-Key" || !p.Idempotency.OnlyIfNotSent {
		t.Errorf("idempotency %+v", p.Idempotency)
	}
}

func TestCompile_statuses(t *testing.T) {
	p := compiled(engine.Settings{engine.RetryOnHTTP: engine.Set("408", "429", "5xx")})
	for status := -10; status < 1000; status++ {
		if want := status == 408 || status == 429 || status >= 500 && status <= 599; p.RetryOn.HTTP(status) != want {
			t.Errorf("status %d: %v", status, !want)
		}
	}
	one := compiled(engine.Settings{engine.RetryOnHTTP: engine.Set("599")})
	none := compiled(engine.Settings{engine.RetryOnHTTP: engine.Set()})
	for status := 0; status < 1000; status++ {
		if one.RetryOn.HTTP(status) != (status == 599) || none.RetryOn.HTTP(status) {
			t.Errorf("status %d", status)
		}
	}
}

func TestCompile_codes(t *testing.T) {
	p := compiled(engine.Settings{engine.RetryOnGRPC: engine.Set("unavailable", "resource-exhausted", "cancelled")})
	for code := range uint32(100) {
		if want := code == 14 || code == 8 || code == 1; p.RetryOn.GRPC(code) != want {
			t.Errorf("code %d: %v", code, !want)
		}
	}
	for _, word := range engine.RetryOnGRPC.Spec().Words {
		if code, ok := engine.GRPCCode(word); !ok || code == 0 {
			t.Errorf("%s is %d", word, code)
		}
	}
	if _, ok := engine.GRPCCode("UNAVAILABLE"); ok {
		t.Error("names are in lower case")
	}
}

func TestCompile_methods(t *testing.T) {
	p := compiled(engine.Settings{engine.IdempotencyMethods: engine.Set("GET", "POST", "PURGE", "MKCOL")})
	for method, want := range map[string]bool{
		"GET": true, "": true, "POST": true, "PURGE": true, "MKCOL": true,
		"PUT": false, "get": false, "PURG": false, "PURGE MKCOL": false, " ": false,
	} {
		if p.Idempotency.Repeats(method) != want {
			t.Errorf("%q: %v", method, !want)
		}
	}
}

func TestCompile_breaker_needs_a_rule_and_its_switch(t *testing.T) {
	rule := engine.Settings{engine.BreakerConsecutiveFailures: engine.Int(3)}
	if p := compiled(rule); !p.Breaker.Enabled || p.Breaker.Consecutive.Failures != 3 {
		t.Errorf("%+v", p.Breaker)
	}
	rule[engine.BreakerEnabled] = engine.Bool(false)
	if p := compiled(rule); p.Breaker.Enabled {
		t.Error("the breaker is on although its switch is off")
	}
	if p := compiled(engine.Settings{engine.BreakerEnabled: engine.Bool(true)}); p.Breaker.Enabled {
		t.Error("the breaker is on without a rule")
	}
}

func TestO_SE_06_the_engine_holds_to_its_limits_whatever_is_pushed(t *testing.T) {
	wild := engine.Settings{
		engine.MaxAttempts: engine.Int(1_000_000), engine.BackoffBase: engine.Duration(0), engine.BudgetRatio: engine.Micro(1000 * engine.Million),
	}
	if found := engine.Validate(endpointScope, wild); len(found) != 3 {
		t.Errorf("violations %v", found)
	}
	p := compiled(wild)
	if p.MaxAttempts != 5 || p.Backoff.Base != time.Millisecond || p.Budget.Ratio != 100_000 {
		t.Errorf("attempts %d, base %s, ratio %d", p.MaxAttempts, p.Backoff.Base, p.Budget.Ratio)
	}
}

func TestCompile_of_anything_keeps_every_number_in_bounds(t *testing.T) {
	for seed := range uint64(2000) {
		r := seeded(seed)
		p := engine.Compile(engine.Merge(endpointScope, randomDocuments(r, true)))
		b, g, h := p.Backoff, p.Budget.SuccessGate, p.Breaker.HalfOpen
		for name, holds := range map[string]bool{
			"attempts":   p.MaxAttempts >= 1 && p.MaxAttempts <= 10,
			"backoff":    b.Base >= time.Millisecond && b.Base <= b.Max && b.Max <= 5*time.Minute && b.Multiplier >= engine.Million,
			"jitter":     b.Jitter <= engine.JitterDecorrelated,
			"timeouts":   p.Timeouts.Attempt >= 0 && p.Timeouts.Overall >= 0 && p.Timeouts.Overall <= time.Hour,
			"ratio":      p.Budget.Ratio >= 0 && p.Budget.Ratio <= engine.Million,
			"window":     p.Budget.Window >= time.Second && p.Budget.Window <= time.Minute,
			"floor":      p.Budget.MinRetriesPerSecond >= 0 && p.Budget.MinRetriesPerSecond <= 1000*engine.Million,
			"tokens":     p.Budget.Tokens.Capacity > 0 && p.Budget.Tokens.RetryCost >= 0,
			"gate":       g.Window >= 10 && g.MinCalls >= 1 && g.MinCalls <= g.Window && g.MaxAge >= time.Second,
			"half-open":  h.Probes >= 1 && h.CloseAfter >= 1 && h.CloseAfter <= h.Probes && h.ProbeTimeout > 0,
			"reopen":     p.Breaker.Reopen.Multiplier >= engine.Million,
			"retryAfter": p.RetryAfter.Max > 0 && p.RetryAfter.Jitter >= 0 && p.RetryAfter.Jitter <= engine.Million,
			"ratio rule": p.Breaker.Ratio.Failures >= 1 && p.Breaker.Ratio.MinCalls >= 5 && p.Breaker.Ratio.Window >= time.Second,
			"404":        !p.RetryOn.HTTP(404) && !p.RetryOn.GRPC(0),
		} {
			if !holds {
				t.Fatalf("seed %d: %s: %+v", seed, name, p)
			}
		}
	}
}

func TestPolicy_is_small_and_comparable(t *testing.T) {
	if size := unsafe.Sizeof(engine.Policy{}); size > 640 {
		t.Errorf("a policy takes %d bytes of the 1.5 KiB per endpoint", size)
	}
	a, b := compiled(engine.Settings{engine.MaxAttempts: engine.Int(2)}), compiled(engine.Settings{engine.MaxAttempts: engine.Int(2)})
	if a != b {
		t.Error("equal policies differ")
	}
}
