// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"maps"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// rig is an endpoint for tests in Go: no jitter, no gate and a wide budget unless set.
type rig struct {
	tb     testing.TB
	policy engine.Policy
	*engine.Endpoint
	random func() uint64
}

var rigOrigin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func rigPolicy(tb testing.TB, set map[engine.Field]engine.Value) engine.Policy {
	tb.Helper()
	s := engine.Settings{
		engine.BackoffJitter: engine.Enum("none"), engine.RetryOnHTTP: engine.Set("502", "503", "504"),
		engine.BudgetRatio: engine.Micro(engine.Million), engine.BudgetMinRetriesPerSecond: engine.Micro(1000 * engine.Million),
		engine.BudgetSuccessGateEnabled: engine.Bool(false),
		engine.BreakerReopenJitter:      engine.Micro(0), engine.BreakerRecoverOver: engine.Duration(0),
		engine.CeilingsMaxAttempts: engine.Int(10), engine.CeilingsBudgetRatio: engine.Micro(engine.Million),
		engine.CeilingsMinRetriesPerSecond: engine.Micro(1000 * engine.Million), engine.CeilingsTimeoutsOverall: engine.Duration(time.Hour),
	}
	maps.Copy(s, set)
	if v := engine.Validate(engine.Global, s); len(v) > 0 {
		tb.Fatalf("settings break rules: %v", v)
	}
	return engine.Compile(engine.Merge(engine.Global, []engine.Document{{Scope: engine.Global, Settings: s}}))
}

func newRig(tb testing.TB, set map[engine.Field]engine.Value) *rig {
	tb.Helper()
	return rigOf(tb, rigPolicy(tb, set))
}

func rigOf(tb testing.TB, p engine.Policy) *rig {
	tb.Helper()
	r := &rig{tb: tb, policy: p, random: func() uint64 { return 0 }}
	config := engine.Config{Origin: rigOrigin, Random: func() uint64 { return r.random() }}
	r.Endpoint = engine.NewEndpoint(config, &r.policy, engine.Overlay{}, 0)
	return r
}

// begin starts a call that must be let through.
func (r *rig) begin(at time.Duration) *engine.Call {
	r.tb.Helper()
	c := new(engine.Call)
	if d := r.Begin(c, engine.Instant(at), engine.CallOptions{Idempotent: true}); !d.Proceed {
		r.tb.Fatalf("refused at %s: %s", at, d.Code)
	}
	return c
}

// refused reports whether a call is refused.
func (r *rig) refused(at time.Duration) bool {
	var c engine.Call
	if !r.Begin(&c, engine.Instant(at), engine.CallOptions{Idempotent: true}).Proceed {
		return true
	}
	c.Abandon(engine.Instant(at))
	return false
}

// call starts a call and settles its first attempt.
func (r *rig) call(at time.Duration, o engine.Outcome) {
	r.tb.Helper()
	c := r.begin(at)
	c.Settle(engine.Instant(at), o)
}

func (r *rig) state(at time.Duration) engine.BreakerState {
	s := r.Stats(engine.Instant(at))
	return s.Breaker.State
}

var (
	succeeds  = engine.Outcome{}
	fails     = engine.Outcome{Kind: engine.OutcomeError}
	answers   = func(status int) engine.Outcome { return engine.Outcome{Kind: engine.OutcomeHTTP, Code: status} }
	cancelled = engine.Outcome{Kind: engine.OutcomeCancelled}
)
