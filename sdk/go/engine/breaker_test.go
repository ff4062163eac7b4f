// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestBreaker_vectors(t *testing.T) { runScripts(t, "breaker.json") }

func TestO_BR_02_exactly_the_probes_pass(t *testing.T) { runScripts(t, "breaker.json", "O-BR-02") }

func TestO_BR_03_one_failed_probe_is_enough(t *testing.T) { runScripts(t, "breaker.json", "O-BR-03") }

func TestO_BR_04_no_verdict_gives_the_slot_back(t *testing.T) {
	runScripts(t, "breaker.json", "O-BR-04")
}

func TestO_BR_05_a_panic_is_a_failed_probe(t *testing.T) { runScripts(t, "breaker.json", "O-BR-05") }

func TestO_BR_06_who_walks_away_does_not_count(t *testing.T) {
	runScripts(t, "breaker.json", "O-BR-06")
}

func TestO_BR_07_results_of_before_are_ignored(t *testing.T) {
	runScripts(t, "breaker.json", "O-BR-07")
}

func TestO_BR_08_failures_after_the_opening(t *testing.T) { runScripts(t, "breaker.json", "O-BR-08") }

func TestO_BR_10_what_is_long_gone(t *testing.T) { runScripts(t, "breaker.json", "O-BR-10") }

func TestO_BR_13_a_probe_that_never_ends(t *testing.T) { runScripts(t, "breaker.json", "O-BR-13") }

func TestO_BR_17_the_verdict_of_half_open(t *testing.T) { runScripts(t, "breaker.json", "O-BR-17") }

// b0 is the breaker of the cases.
func b0(tb testing.TB) engine.Policy {
	tb.Helper()
	return rigPolicy(tb, map[engine.Field]engine.Value{
		engine.MaxAttempts:        engine.Int(1),
		engine.BreakerRatioWindow: engine.Duration(10 * time.Second), engine.BreakerRatioMinCalls: engine.Int(10),
		engine.BreakerRatioFailures: engine.Micro(500_000), engine.BreakerRatioOpenFor: engine.Duration(5 * time.Second),
		engine.BreakerHalfOpenProbes: engine.Int(1), engine.BreakerHalfOpenCloseAfter: engine.Int(1),
	})
}

func TestO_BR_01_one_probe_among_concurrent_callers(t *testing.T) {
	runScripts(t, "breaker.json", "O-BR-01")
	for round := range 100 {
		r := rigOf(t, b0(t))
		for range 10 {
			r.call(0, fails)
		}
		var passed atomic.Int64
		var start, done sync.WaitGroup
		start.Add(1)
		for range 50 {
			done.Go(func() {
				start.Wait()
				var c engine.Call
				if r.Begin(&c, engine.Instant(5*time.Second), engine.CallOptions{}).Proceed {
					passed.Add(1)
				}
			})
		}
		start.Done()
		done.Wait()
		if passed.Load() != 1 {
			t.Fatalf("round %d: %d passed", round, passed.Load())
		}
	}
}

func TestO_BR_09_a_burst_of_failures_among_many_successes(t *testing.T) {
	r := rigOf(t, b0(t))
	for i := range 10_000 {
		at := time.Second + time.Duration(i)*time.Millisecond
		o := succeeds
		if i >= 9100 {
			o = fails
		}
		r.call(at, o)
	}
	if s := r.state(11 * time.Second); s != engine.BreakerClosed {
		t.Errorf("%s at 9 %% failures", s)
	}
}

func TestO_BR_11_the_event_that_turns_the_slice_over(t *testing.T) {
	p := b0(t)
	p.Breaker.Ratio.MinCalls, p.Breaker.Ratio.Failures = 2, 100_000
	r := rigOf(t, p)
	r.call(100*time.Millisecond, succeeds)
	r.call(900*time.Millisecond, succeeds)
	r.call(1050*time.Millisecond, fails)
	if s := r.state(1050 * time.Millisecond); s != engine.BreakerOpen {
		t.Errorf("%s at 1 failure of 3", s)
	}
}

// Time comes in as instants, which are monotonic: at no step of the wall clock does the
// engine see another one. The ends of switches are distances from the origin as well.
func TestO_BR_12_wall_clock_steps_move_nothing(t *testing.T) {
	for name, origin := range map[string]time.Time{
		"now": time.Now(), "a clock that is a minute slow": time.Now().Add(-time.Minute).Round(0), "an hour fast": time.Now().Add(time.Hour).Round(0),
	} {
		t.Run(name, func(t *testing.T) {
			p := b0(t)
			e := engine.NewEndpoint(engine.Config{Origin: origin, Random: func() uint64 { return 0 }}, &p, engine.Overlay{}, 0)
			var c engine.Call
			for range 10 {
				e.Begin(&c, 0, engine.CallOptions{Idempotent: true})
				c.Settle(0, fails)
			}
			end := engine.Instant(5 * time.Second)
			if s := e.Stats(end - 1); s.Breaker.State != engine.BreakerOpen {
				t.Errorf("%s before its end", s.Breaker.State)
			}
			if s := e.Stats(end); s.Breaker.State != engine.BreakerHalfOpen {
				t.Errorf("%s at its end", s.Breaker.State)
			}
		})
	}
}

func TestO_BR_15_every_concurrent_failure_counts(t *testing.T) {
	p := b0(t)
	p.Breaker.Ratio.MinCalls = 100
	for round := range 200 {
		r := rigOf(t, p)
		var begun, done sync.WaitGroup
		begun.Add(100)
		for range 100 {
			done.Go(func() {
				c := r.begin(0)
				begun.Done()
				begun.Wait()
				c.Settle(0, fails)
			})
		}
		done.Wait()
		if s := r.Stats(0); s.Breaker.State != engine.BreakerOpen || s.Failed != 100 {
			t.Fatalf("round %d: %+v", round, s)
		}
	}
}

// A call in progress holds nothing: with attempts in flight every other event goes on.
func TestO_BR_16_nothing_is_held_during_an_attempt(t *testing.T) {
	r := rigOf(t, b0(t))
	var open []*engine.Call
	for range 10 {
		open = append(open, r.begin(0))
	}
	if s := r.Stats(0); s.Calls != 10 {
		t.Fatalf("%+v", s)
	}
	for _, c := range open {
		c.Settle(engine.Instant(time.Second), succeeds)
	}
	if s := r.Stats(engine.Instant(time.Second)); s.OK != 10 {
		t.Errorf("%+v", s)
	}
}

func TestO_BR_18_a_success_never_opens(t *testing.T) {
	runScripts(t, "breaker.json", "O-BR-18")
	p := b0(t)
	p.Breaker.Ratio.MinCalls = 4
	r := rigOf(t, p)
	for _, o := range []engine.Outcome{fails, fails, fails, succeeds} {
		r.call(0, o)
	}
	if s := r.state(0); s != engine.BreakerClosed {
		t.Fatalf("%s after the success", s)
	}
	r.call(0, fails)
	if s := r.state(0); s != engine.BreakerOpen {
		t.Errorf("%s after the next failure", s)
	}
}

// An endpoint is plain memory: no goroutine, no timer, nothing to close.
func TestO_BR_14_an_endpoint_owns_nothing_that_runs(t *testing.T) {
	p := b0(t)
	allocs := testing.AllocsPerRun(100, func() {
		e := engine.NewEndpoint(engine.Config{Origin: rigOrigin, Random: func() uint64 { return 0 }}, &p, engine.Overlay{}, 0)
		var c engine.Call
		e.Begin(&c, 0, engine.CallOptions{})
		c.Settle(0, succeeds)
	})
	if allocs > 8 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestBreaker_changes_are_told_once(t *testing.T) {
	r := rigOf(t, b0(t))
	var told []engine.BreakerChange
	note := func(c *engine.BreakerChange) {
		if c != nil {
			told = append(told, *c)
		}
	}
	for range 12 {
		var c engine.Call
		note(r.Begin(&c, 0, engine.CallOptions{}).Breaker)
		if c.Attempts() > 0 {
			note(c.Settle(0, fails).Breaker)
		}
	}
	s := r.Stats(engine.Instant(5 * time.Second))
	note(s.Change)
	var c engine.Call
	note(r.Begin(&c, engine.Instant(6*time.Second), engine.CallOptions{}).Breaker)
	note(c.Settle(engine.Instant(6*time.Second), succeeds).Breaker)
	o := engine.Compose([]engine.Switch{{ID: "ks-1", Action: engine.ForceOpen, Scope: engine.Global, Percent: 100, Ends: rigOrigin.Add(time.Hour)}}, "a/b/c", engine.Standard, "i")
	note(r.Reload(&r.policy, o, engine.ModeEnforce, engine.Instant(7*time.Second)))
	want := []engine.BreakerChange{
		{From: engine.BreakerClosed, To: engine.BreakerOpen, Rule: engine.RuleRatio, Until: engine.Instant(5 * time.Second)},
		{From: engine.BreakerOpen, To: engine.BreakerHalfOpen, Rule: engine.RuleRatio},
		{From: engine.BreakerHalfOpen, To: engine.BreakerClosed},
		{From: engine.BreakerClosed, To: engine.BreakerForcedOpen},
	}
	if len(told) != len(want) {
		t.Fatalf("told %+v", told)
	}
	for i := range want {
		got := told[i]
		if want[i].To == engine.BreakerForcedOpen && (got.By == nil || got.By.ID != "ks-1") {
			t.Errorf("forced open by %v", got.By)
		}
		got.By = nil
		if got != want[i] {
			t.Errorf("change %d: %+v, want %+v", i, got, want[i])
		}
	}
}
