// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

const latchFor = 50 * time.Millisecond

// stormed is an endpoint whose breaker is open from 0 to 10 s, and that has refused so many
// calls by 1 s that it can be latched.
func stormed(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, set{engine.BreakerConsecutiveEnabled: engine.Bool(true)})
	if _, ok := r.Open(0, engine.Instant(10*time.Second)); !ok {
		t.Fatal("not opened")
	}
	for i := range 64 {
		if i > 0 {
			if _, ok := r.Latch(engine.Instant(time.Second), latchFor); ok {
				t.Fatalf("latched after %d refusals", i)
			}
		}
		if !r.refused(time.Second) {
			t.Fatal("not refused")
		}
	}
	return r
}

type set = map[engine.Field]engine.Value

// latched reports whether one of two calls in a row is refused without a look at the clock.
func (r *rig) latched() bool {
	r.tb.Helper()
	for range 2 {
		var c engine.Call
		d, as, ok := r.BeginLatched(&c)
		if !ok {
			r.refused(2 * time.Second)
			continue
		}
		if d.Proceed || d.Code != engine.CodeBreaker || d.Rule != engine.RuleConsecutive || d.RetryAt != engine.Instant(10*time.Second) {
			r.tb.Fatalf("%+v", *d)
		}
		if as != engine.Instant(time.Second) {
			r.tb.Fatalf("as of %d", as)
		}
		return true
	}
	return false
}

func TestLatch_refuses_without_the_clock_until_it_is_released(t *testing.T) {
	r := stormed(t)
	if _, ok := r.Latch(engine.Instant(time.Second), latchFor); !ok {
		t.Fatal("not latched")
	}
	if _, again := r.Latch(engine.Instant(time.Second), latchFor); again {
		t.Fatal("latched twice")
	}
	before := r.Stats(engine.Instant(time.Second)).Rejected
	for range 10 {
		if !r.latched() {
			t.Fatal("not latched")
		}
	}
	if n := r.Stats(engine.Instant(time.Second)).Rejected - before; n < 10 || n > 11 {
		t.Fatalf("%d refusals counted", n)
	}
}

func TestLatch_released_asks_for_the_time_again(t *testing.T) {
	r := stormed(t)
	release, ok := r.Latch(engine.Instant(time.Second), latchFor)
	if !ok || !r.latched() {
		t.Fatal("not latched")
	}
	release()
	if r.latched() {
		t.Fatal("still latched")
	}
	if !r.refused(10*time.Second-1) || r.refused(10*time.Second) {
		t.Fatal("the end of the open state has moved")
	}
}

func TestLatch_is_not_put_on_near_the_end(t *testing.T) {
	r := stormed(t)
	if _, ok := r.Latch(engine.Instant(10*time.Second-2*latchFor), latchFor); ok {
		t.Fatal("latched")
	}
	if _, ok := r.Latch(engine.Instant(10*time.Second-2*latchFor-1), latchFor); !ok {
		t.Fatal("not latched")
	}
}

// A change of policy or of switches, or the end by a probe, takes the latch with it at once.
func TestLatch_ends_with_what_it_was_put_on_for(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"the breaker is switched off": func(r *rig) {
			p := r.policy
			p.Breaker.Enabled = false
			r.Reload(&p, engine.Overlay{}, engine.ModeEnforce, engine.Instant(2*time.Second))
		},
		"a switch forces it closed": func(r *rig) {
			r.Reload(&r.policy, engine.Compose([]engine.Switch{{
				ID: "ks-1", Action: engine.ForceClosed, Scope: engine.Global, Percent: 100, Ends: rigOrigin.Add(time.Minute),
			}}, "a/b/c", engine.Standard, "instance-1"), engine.ModeEnforce, engine.Instant(2*time.Second))
		},
		"decisions are off": func(r *rig) {
			r.Reload(&r.policy, engine.Overlay{}, engine.ModeOff, engine.Instant(2*time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := stormed(t)
			if _, ok := r.Latch(engine.Instant(time.Second), latchFor); !ok || !r.latched() {
				t.Fatal("not latched")
			}
			change(r)
			if r.latched() || r.refused(2*time.Second) {
				t.Fatal("refused")
			}
		})
	}
}

// If nobody takes the latch off, at most 63 calls are refused that should not be.
func TestLatch_that_is_forgotten_does_little_harm(t *testing.T) {
	r := stormed(t)
	if _, ok := r.Latch(engine.Instant(time.Second), latchFor); !ok {
		t.Fatal("not latched")
	}
	late := 10 * time.Second
	for n := 0; ; n++ {
		var c engine.Call
		if _, _, ok := r.BeginLatched(&c); ok {
			if n > 63 {
				t.Fatalf("%d calls are refused after the end", n)
			}
			continue
		}
		if r.refused(late) {
			t.Fatal("the first call that is not latched is refused")
		}
		return
	}
}

func TestLatch_allocates_nothing_for_a_refusal(t *testing.T) {
	r := stormed(t)
	if _, ok := r.Latch(engine.Instant(time.Second), latchFor); !ok {
		t.Fatal("not latched")
	}
	var c engine.Call
	if n := testing.AllocsPerRun(200, func() {
		if _, _, ok := r.BeginLatched(&c); !ok {
			r.Begin(&c, engine.Instant(2*time.Second), engine.CallOptions{})
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
