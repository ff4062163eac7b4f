// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestGate_vectors(t *testing.T) { runScripts(t, "gate.json") }

func TestGate_agrees_with_the_obvious_model(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { checkGate(t, rand.New(rand.NewPCG(seed, 10))) })
	}
}

func checkGate(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	window, maxAge := 10+rnd.IntN(200), time.Second+time.Duration(rnd.Int64N(int64(20*time.Second)))
	minCalls, rate := 1+rnd.IntN(window), rnd.Int64N(engine.Million+1)
	r := newRig(t, map[engine.Field]engine.Value{
		engine.BudgetSuccessGateEnabled: engine.Bool(true), engine.BudgetSuccessGateWindow: engine.Int(int64(window)),
		engine.BudgetSuccessGateMinCalls: engine.Int(int64(minCalls)), engine.BudgetSuccessGateMinSuccessRate: engine.Micro(rate),
		engine.BudgetSuccessGateMaxAge: engine.Duration(maxAge), engine.MaxAttempts: engine.Int(2),
	})
	type ended struct {
		slice int64
		ok    bool
	}
	var calls []ended
	width := int64(maxAge / 10)
	now := int64(0)
	for step := range 1500 {
		now += rnd.Int64N(int64(40 * time.Millisecond))
		if rnd.IntN(300) == 0 {
			now += rnd.Int64N(int64(maxAge) * 2)
		}
		c := r.begin(time.Duration(now))
		if rnd.IntN(3) != 0 {
			c.Settle(engine.Instant(now), succeeds)
			calls = append(calls, ended{now / width, true})
			continue
		}
		known, ok := int64(0), int64(0)
		for _, e := range calls[max(0, len(calls)-window):] {
			if e.slice > now/width-10 {
				known++
				if e.ok {
					ok++
				}
			}
		}
		want := known < int64(minCalls) || ok*engine.Million >= known*rate
		d := c.Settle(engine.Instant(now), answers(503))
		if d.Retry != want {
			t.Fatalf("step %d: %+v, want a retry: %v (%d of %d)", step, *d, want, ok, known)
		}
		if d.Retry {
			c.Abandon(engine.Instant(now))
		}
		calls = append(calls, ended{now / width, false})
	}
}
