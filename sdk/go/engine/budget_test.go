// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestBudget_vectors(t *testing.T) { runScripts(t, "budget.json") }

func TestO_BG_01_each_call_counts_once(t *testing.T) { runScripts(t, "budget.json", "O-BG-01") }

func TestO_BG_02_an_empty_budget_fills_again(t *testing.T) { runScripts(t, "budget.json", "O-BG-02") }

func TestO_BG_03_a_cancelled_retry_gives_back(t *testing.T) { runScripts(t, "budget.json", "O-BG-03") }

func TestO_BG_04_permits_are_reserved(t *testing.T) { runScripts(t, "budget.json", "O-BG-04") }

func TestO_BG_05_calls_that_ended_count_on(t *testing.T) { runScripts(t, "budget.json", "O-BG-05") }

func TestO_BG_08_nothing_allowed_is_no_retry(t *testing.T) { runScripts(t, "budget.json", "O-BG-08") }

func TestO_BG_06_concurrent_failures_share_the_budget_exactly(t *testing.T) {
	for round := range 50 {
		r := newRig(t, map[engine.Field]engine.Value{
			engine.BudgetRatio: engine.Micro(100_000), engine.BudgetMinRetriesPerSecond: engine.Micro(0),
		})
		const calls = 1000
		var begun, done sync.WaitGroup
		var retries, refused atomic.Int64
		begun.Add(calls)
		for range calls {
			done.Go(func() {
				c := r.begin(0)
				begun.Done()
				begun.Wait()
				switch d := c.Settle(0, answers(503)); {
				case d.Retry:
					retries.Add(1)
				case d.Code == engine.CodeBudget:
					refused.Add(1)
				}
			})
		}
		done.Wait()
		if retries.Load() != 100 || refused.Load() != 900 {
			t.Fatalf("round %d: %d retries, %d refused", round, retries.Load(), refused.Load())
		}
	}
}

func TestO_BG_07_no_interval_sees_two_windows(t *testing.T) {
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BudgetRatio: engine.Micro(100_000), engine.BudgetMinRetriesPerSecond: engine.Micro(0), engine.MaxAttempts: engine.Int(2),
	})
	var at []time.Duration // of retries
	for i := range 600 {
		now := time.Duration(i) * 100 * time.Millisecond
		if c := r.begin(now); c.Settle(engine.Instant(now), answers(503)).Retry {
			c.Resume(engine.Instant(now))
			c.Settle(engine.Instant(now), answers(503))
			at = append(at, now)
		}
	}
	if len(at) < 50 {
		t.Fatalf("only %d retries in 60 s", len(at))
	}
	for i, from := range at {
		n := 0
		for _, other := range at[i:] {
			if other < from+10*time.Second {
				n++
			}
		}
		if n > 11 {
			t.Errorf("%d retries in the 10 s from %s", n, from)
		}
	}
}

// Any mix of concurrent grants, cancellations and reloads: no permit is lost or made up.
func TestBudget_permits_are_conserved(t *testing.T) {
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BudgetRatio: engine.Micro(100_000), engine.BudgetMinRetriesPerSecond: engine.Micro(0),
		engine.BudgetTokensCapacity: engine.Micro(80 * engine.Million),
	})
	var holders []*engine.Call
	for range 1000 {
		r.begin(0)
	}
	for round := range 20 {
		var mu sync.Mutex
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				for range 100 {
					var c engine.Call
					r.Begin(&c, 0, engine.CallOptions{Idempotent: true})
					if c.Settle(0, answers(503)).Retry {
						mu.Lock()
						holders = append(holders, &c)
						mu.Unlock()
					}
				}
			})
		}
		done.Wait()
		s := r.Stats(0)
		if int64(len(holders)) != s.Budget.Used || s.Budget.Tokens != (80-s.Budget.Used)*engine.Million {
			t.Fatalf("round %d: %d permits held, %+v", round, len(holders), s.Budget)
		}
		for _, c := range holders[:len(holders)/2] {
			done.Go(func() { c.Abandon(0) })
		}
		done.Wait()
		holders = holders[len(holders)/2:]
	}
}

// slowBudget is the obvious model: every event with its slice, counted anew each time.
type slowBudget struct {
	calls, retries []int64 // slices
	width          int64
}

func (m *slowBudget) inWindow(events []int64, now int64) (n int64) {
	for _, slice := range events {
		if slice > now/m.width-10 {
			n++
		}
	}
	return n
}

func TestBudget_agrees_with_the_obvious_model(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { checkBudget(t, rand.New(rand.NewPCG(seed, 9))) })
	}
}

func checkBudget(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	ratio, floor := rnd.Int64N(engine.Million+1), rnd.Int64N(2*engine.Million)
	length := time.Second + time.Duration(rnd.Int64N(int64(10*time.Second)))
	capacity, credit, refill := 1+rnd.Int64N(20*engine.Million), rnd.Int64N(engine.Million), rnd.Int64N(3*engine.Million)
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BudgetRatio: engine.Micro(ratio), engine.BudgetMinRetriesPerSecond: engine.Micro(floor), engine.BudgetWindow: engine.Duration(length),
		engine.BudgetTokensCapacity: engine.Micro(capacity + 1000), engine.BudgetTokensSuccessCredit: engine.Micro(credit),
		engine.BudgetTokensRefillPerSecond: engine.Micro(refill), engine.BudgetTokensRetryCost: engine.Micro(engine.Million),
	})
	capacity += 1000
	m := slowBudget{width: int64(length / 10)}
	// Tokens in 10⁻¹⁵: millionths × nanoseconds per second.
	const unit = 1_000_000_000
	tokens, full, last := capacity*unit, capacity*unit, int64(0)
	type waiting struct {
		call  *engine.Call
		slice int64
	}
	var waits []waiting
	now := int64(0)
	for step := range 2000 {
		now += rnd.Int64N(int64(80 * time.Millisecond))
		tokens = min(full, tokens+(now-last)*refill)
		last = now
		if len(waits) > 0 && rnd.IntN(4) == 0 {
			i := rnd.IntN(len(waits))
			w := waits[i]
			waits = append(waits[:i], waits[i+1:]...)
			if rnd.IntN(2) == 0 {
				w.call.Abandon(engine.Instant(now))
				for j, slice := range m.retries {
					if slice == w.slice {
						m.retries = append(m.retries[:j], m.retries[j+1:]...)
						break
					}
				}
				tokens = min(full, tokens+engine.Million*unit)
			} else if d := w.call.Resume(engine.Instant(now)); !d.Proceed {
				t.Fatalf("step %d: resume %+v", step, *d)
			}
			continue
		}
		c := r.begin(time.Duration(now))
		m.calls = append(m.calls, now/m.width)
		if rnd.IntN(3) == 0 {
			c.Settle(engine.Instant(now), succeeds)
			tokens = min(full, tokens+credit*unit)
			continue
		}
		allowed := (floor*int64(length) + ratio*unit*m.inWindow(m.calls, now)) / 1_000_000_000_000_000
		want := m.inWindow(m.retries, now) < allowed && tokens/unit >= engine.Million
		d := c.Settle(engine.Instant(now), answers(503))
		if d.Retry != want {
			t.Fatalf("step %d at %s: %+v, want a retry: %v (allowed %d, used %d, tokens %d)", step, time.Duration(now), *d, want, allowed, m.inWindow(m.retries, now), tokens/unit)
		}
		if d.Retry {
			m.retries = append(m.retries, now/m.width)
			waits = append(waits, waiting{c, now / m.width})
			tokens -= engine.Million * unit
		}
	}
}

// Whatever is edited, tightened and released: what is left never grows at the edit.
func TestBudget_no_edit_refills(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	r := newRig(t, nil)
	now, left := time.Duration(0), int64(0)
	for step := range 3000 {
		now += time.Duration(rnd.Int64N(int64(300 * time.Millisecond)))
		for range rnd.IntN(20) {
			c := r.begin(now)
			if c.Settle(engine.Instant(now), answers(503)).Retry && rnd.IntN(3) == 0 {
				c.Abandon(engine.Instant(now))
			}
		}
		s := r.Stats(engine.Instant(now))
		left = s.Budget.Left
		p := r.policy
		p.Budget.Ratio = rnd.Int64N(engine.Million + 1)
		p.Budget.MinRetriesPerSecond = rnd.Int64N(5 * engine.Million)
		if rnd.IntN(3) == 0 {
			p.Budget.Window = time.Second + time.Duration(rnd.Int64N(int64(59*time.Second)))
		}
		var o engine.Overlay
		if rnd.IntN(2) == 0 {
			o = engine.Compose([]engine.Switch{{
				ID: "ks-1", Action: engine.TightenBudget, Scope: engine.Global, Percent: 100,
				Factor: rnd.Int64N(engine.Million), Ends: rigOrigin.Add(time.Hour),
			}}, "a/b/c", engine.Standard, "i")
		}
		r.Reload(&p, o, engine.ModeEnforce, engine.Instant(now))
		r.policy = p
		if s := r.Stats(engine.Instant(now)); s.Budget.Left > left {
			t.Fatalf("step %d: left %d, was %d: %+v", step, s.Budget.Left, left, s.Budget)
		}
	}
}
