// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestReload_vectors(t *testing.T) { runScripts(t, "reload.json") }
func TestRamp_vectors(t *testing.T)   { runScripts(t, "ramp.json") }

func TestO_RL_01_an_edit_keeps_an_open_breaker(t *testing.T) { runScripts(t, "reload.json", "O-RL-01") }

func TestO_RL_02_counts_go_on(t *testing.T) { runScripts(t, "reload.json", "O-RL-02") }

func TestO_RL_04_which_edits_empty_the_window(t *testing.T) { runScripts(t, "reload.json", "O-RL-04") }

func TestO_RL_03_the_same_policy_again_and_again(t *testing.T) {
	runScripts(t, "reload.json", "O-RL-03")
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BudgetRatio: engine.Micro(100_000), engine.BudgetMinRetriesPerSecond: engine.Micro(0),
		engine.BudgetWindow: engine.Duration(time.Minute), engine.MaxAttempts: engine.Int(2),
	})
	var at []time.Duration
	for i := range 3000 {
		now := time.Duration(i) * 100 * time.Millisecond
		if i%50 == 0 {
			same := r.policy
			r.Reload(&same, engine.Overlay{}, engine.ModeEnforce, engine.Instant(now))
		}
		if c := r.begin(now); c.Settle(engine.Instant(now), answers(503)).Retry {
			c.Resume(engine.Instant(now))
			c.Settle(engine.Instant(now), answers(503))
			at = append(at, now)
		}
	}
	for i, from := range at {
		n := 0
		for _, other := range at[i:] {
			if other < from+time.Minute {
				n++
			}
		}
		if n > 66 {
			t.Fatalf("%d retries in the minute from %s", n, from)
		}
	}
}

// No edit closes an open breaker or lengthens its open state, whatever is edited but the
// breaker's own switch.
func TestReload_no_edit_closes_a_breaker(t *testing.T) {
	rnd := rand.New(rand.NewPCG(14, 15))
	for range 300 {
		p := b0(t)
		r := rigOf(t, p)
		for range 10 {
			r.call(0, fails)
		}
		until := engine.Instant(5 * time.Second)
		for range 10 {
			p.MaxAttempts = 1 + rnd.IntN(5)
			p.Budget.Ratio = rnd.Int64N(engine.Million)
			p.Breaker.Ratio.Failures = 1 + rnd.Int64N(engine.Million)
			p.Breaker.Ratio.MinCalls = 5 + rnd.IntN(100)
			p.Breaker.Ratio.OpenFor = time.Second + time.Duration(rnd.Int64N(int64(10*time.Second)))
			p.Breaker.Ratio.Window = time.Second + time.Duration(rnd.Int64N(int64(time.Minute)))
			p.Breaker.HalfOpen.Probes = 1 + rnd.IntN(5)
			p.Breaker.Consecutive.Enabled = rnd.IntN(2) == 0
			p.Breaker.Ratio.Enabled = !p.Breaker.Consecutive.Enabled || rnd.IntN(2) == 0
			next := p
			next.Extras = nil
			if rnd.IntN(2) == 0 {
				next.Extras = &engine.Extras{BreakerPerHost: true}
			}
			r.Reload(&next, engine.Overlay{}, engine.ModeEnforce, engine.Instant(time.Second-1))
			var c engine.Call
			host := string(rune('a' + rnd.IntN(3)))
			if d := r.Begin(&c, engine.Instant(time.Second-1), engine.CallOptions{Host: host}); d.Proceed {
				t.Fatalf("a call to %s goes out after an edit", host)
			}
			s := r.Stats(engine.Instant(time.Second - 1))
			if s.Breaker.State != engine.BreakerOpen || s.Breaker.Until > until {
				t.Fatalf("%+v after an edit, was open until %s", s.Breaker, time.Duration(until))
			}
			until = s.Breaker.Until
		}
	}
}

// share counts how many of many tries pass.
func share(n int, try func() bool) float64 {
	passed := 0
	for range n {
		if try() {
			passed++
		}
	}
	return float64(passed) / float64(n)
}

func TestRamp_retries_come_back_over_the_restore_time(t *testing.T) {
	r := newRig(t, nil)
	r.random = rand.New(rand.NewPCG(16, 17)).Uint64
	sw := engine.Switch{
		ID: "ks-1", Action: engine.DisableRetries, Scope: engine.Global, Percent: 100,
		Ends: rigOrigin.Add(time.Minute), Restore: 2 * time.Minute,
	}
	o := engine.Compose([]engine.Switch{sw}, "a/b/c", engine.Standard, "instance-1")
	r.Reload(&r.policy, o, engine.ModeEnforce, 0)
	last := -1.0
	for at := 50 * time.Second; at <= 3*time.Minute+time.Second; at += 10 * time.Second {
		got := share(2000, func() bool {
			c := r.begin(at)
			d := c.Settle(engine.Instant(at), answers(503))
			if !d.Retry && (d.Code != engine.CodeDisabled || d.By == nil || d.By.ID != "ks-1") {
				t.Fatalf("%+v", *d)
			}
			return d.Retry
		})
		want := float64(engine.Share(&sw, "instance-1", rigOrigin.Add(at))) / engine.Million
		if got < want-0.05 || got > want+0.05 || got < last-0.05 {
			t.Errorf("at %s a share of %v, want %v", at, got, want)
		}
		last = got
	}
	if last != 1 {
		t.Errorf("at the end a share of %v", last)
	}
}

func TestRamp_first_attempts_come_back_over_the_restore_time(t *testing.T) {
	r := newRig(t, nil)
	r.random = rand.New(rand.NewPCG(18, 19)).Uint64
	sw := engine.Switch{
		ID: "ks-1", Action: engine.ForceOpen, Scope: engine.Global, Percent: 100,
		Ends: rigOrigin.Add(time.Minute), Restore: 2 * time.Minute,
	}
	o := engine.Compose([]engine.Switch{sw}, "a/b/c", engine.Standard, "instance-1")
	r.Reload(&r.policy, o, engine.ModeEnforce, 0)
	for at := 50 * time.Second; at <= 3*time.Minute+time.Second; at += 10 * time.Second {
		got := share(2000, func() bool { return !r.refused(at) })
		want := float64(engine.Share(&sw, "instance-1", rigOrigin.Add(at))) / engine.Million
		if got < want-0.05 || got > want+0.05 {
			t.Errorf("at %s a share of %v, want %v", at, got, want)
		}
		if s := r.Stats(engine.Instant(at)); (s.Breaker.State == engine.BreakerForcedOpen) != (at < time.Minute) {
			t.Errorf("%s at %s", s.Breaker.State, at)
		}
	}
}

// Everything at once, for the race detector; every call is counted exactly once.
func TestEndpoint_counts_are_exact_under_concurrency(t *testing.T) {
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BreakerConsecutiveFailures: engine.Int(20), engine.BreakerConsecutiveOpenFor: engine.Duration(time.Second),
		engine.BudgetRatio: engine.Micro(200_000), engine.BudgetSuccessGateEnabled: engine.Bool(true),
	})
	r.random = rand.Uint64
	var clock, calls, attempts atomic.Int64
	var workers, helpers sync.WaitGroup
	for w := range 4 {
		rnd := rand.New(rand.NewPCG(20, uint64(w)))
		workers.Go(func() {
			var c engine.Call
			for i := range 5000 {
				healthy := 95 - i/500%2*90 // in a hundred
				now := engine.Instant(clock.Add(int64(50 * time.Microsecond)))
				calls.Add(1)
				d := r.Begin(&c, now, engine.CallOptions{Idempotent: true})
				for d.Proceed {
					attempts.Add(1)
					switch n := rnd.IntN(100); {
					case n < healthy:
						if c.Succeed() {
							d = &engine.Decision{}
							continue
						}
						d = c.Settle(engine.Instant(clock.Load()), succeeds)
					case n < 98:
						d = c.Settle(engine.Instant(clock.Load()), answers(503))
					default:
						c.Abandon(engine.Instant(clock.Load()))
						d = &engine.Decision{}
					}
					if d.Retry {
						if rnd.IntN(5) == 0 {
							c.Abandon(engine.Instant(clock.Load()))
							break
						}
						d = c.Resume(engine.Instant(clock.Load()))
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	helpers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			p := r.policy
			now := engine.Instant(clock.Load())
			r.Reload(&p, engine.Overlay{}, engine.ModeEnforce, now)
			r.Stats(now)
		}
	})
	workers.Wait()
	close(stop)
	helpers.Wait()
	s := r.Stats(engine.Instant(clock.Load()))
	if s.Calls != uint64(calls.Load()) || s.Attempts() != uint64(attempts.Load()) ||
		s.OK+s.Rescued+s.Failed+s.Cancelled+s.Rejected != s.Calls {
		t.Errorf("%+v, of %d calls and %d attempts", s, calls.Load(), attempts.Load())
	}
	if s.Rejected == 0 || s.Rescued == 0 || s.Failed == 0 || s.Cancelled == 0 {
		t.Errorf("not everything happened: %+v", s)
	}
}

func TestTokens_a_permit_that_comes_back_is_worth_its_share_of_a_smaller_bucket(t *testing.T) {
	settings := func(capacity int64) map[engine.Field]engine.Value {
		return map[engine.Field]engine.Value{
			engine.BudgetTokensCapacity: engine.Micro(capacity * engine.Million), engine.BudgetTokensRetryCost: engine.Micro(10 * engine.Million),
			engine.BudgetTokensSuccessCredit: engine.Micro(0), engine.BudgetTokensEnabled: engine.Bool(true),
		}
	}
	r := newRig(t, settings(100))
	var waiting []*engine.Call
	for range 10 { // empties the bucket
		c := r.begin(0)
		if d := c.Settle(0, answers(503)); !d.Retry {
			t.Fatal(d.Code)
		}
		waiting = append(waiting, c)
	}
	p := rigPolicy(t, settings(20))
	r.Reload(&p, engine.Overlay{}, engine.ModeEnforce, 0)
	for i, c := range waiting {
		c.Abandon(0)
		s := r.Stats(0)
		if want := int64(i+1) * 2 * engine.Million; s.Budget.Tokens != want {
			t.Fatalf("%d permits came back as %d, want %d", i+1, s.Budget.Tokens, want)
		}
	}
}
