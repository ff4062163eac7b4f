// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// A time line that jumps by hours, either way, as that of a machine that was asleep may: no
// arithmetic breaks, nothing is lost, and once time goes on the endpoint works as before.
func TestEndpoint_survives_a_clock_that_jumps(t *testing.T) {
	for seed := range uint64(200) {
		rnd := seeded(seed)
		r := newRig(t, map[engine.Field]engine.Value{
			engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.BreakerConsecutiveFailures: engine.Int(3),
			engine.BreakerRatioEnabled: engine.Bool(true), engine.BudgetSuccessGateEnabled: engine.Bool(true),
			engine.ConcurrencyEnabled: engine.Bool(true), engine.ConcurrencyLimit: engine.Int(5),
			engine.BreakerRecoverOver: engine.Duration(10 * time.Second), engine.TimeoutsOverall: engine.Duration(time.Minute),
		})
		r.random = rnd.Uint64
		now, latest := 100*time.Hour, 100*time.Hour
		var running []*engine.Call
		for range 400 {
			switch rnd.IntN(10) {
			case 0:
				now = max(0, now+time.Duration(rnd.Int64N(int64(10*time.Hour)))-5*time.Hour)
			default:
				now += time.Duration(rnd.Int64N(int64(time.Second)))
			}
			latest = max(latest, now)
			at := engine.Instant(now)
			if c := new(engine.Call); rnd.IntN(2) == 0 {
				if r.Begin(c, at, engine.CallOptions{Idempotent: true}).Proceed {
					running = append(running, c)
				}
			}
			if len(running) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(running))
				c := running[i]
				over := true
				switch rnd.IntN(5) {
				case 0:
					c.Abandon(at)
				case 1, 2:
					c.Settle(at, engine.Outcome{Kind: engine.OutcomeOK})
				default:
					d := *c.Settle(at, engine.Outcome{Kind: engine.OutcomeRetryable})
					if d.Wait < 0 || d.Wait > time.Hour {
						t.Fatalf("seed %d: a wait of %s", seed, d.Wait)
					}
					over = !d.Retry || !c.Resume(at).Proceed
				}
				if over {
					running = append(running[:i], running[i+1:]...)
				}
			}
			if s := r.Stats(at); s.Budget.Left < 0 || s.Budget.Used < 0 || s.Concurrency.Running != len(running) {
				t.Fatalf("seed %d: %d calls run, %+v", seed, len(running), s)
			}
		}
		for _, c := range running {
			c.Abandon(engine.Instant(now))
		}
		// From the latest moment on time goes on as it should.
		at := latest + 20*time.Minute
		good := 0
		for range 200 {
			c := new(engine.Call)
			if r.Begin(c, engine.Instant(at), engine.CallOptions{Idempotent: true}).Proceed {
				c.Settle(engine.Instant(at), engine.Outcome{Kind: engine.OutcomeOK})
				good++
			}
			at += time.Second
		}
		if s := r.Stats(engine.Instant(at)); good < 100 || s.Breaker.State != engine.BreakerClosed || s.Concurrency.Running != 0 {
			t.Fatalf("seed %d: %d of 200 calls, %+v", seed, good, s)
		}
	}
}
