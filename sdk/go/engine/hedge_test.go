// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestHedging_vectors(t *testing.T) { runScriptsBeside(t, "hedging.json") }

// hedgeDelay is the delay after first attempts that took so long.
func hedgeDelay(t *testing.T, took []time.Duration) (time.Duration, bool) {
	t.Helper()
	r := newRig(t, map[engine.Field]engine.Value{engine.HedgingEnabled: engine.Bool(true)})
	at := time.Duration(0)
	for _, d := range took {
		c := r.begin(at)
		at += d
		if !c.Succeed() {
			c.Settle(engine.Instant(at), succeeds)
		}
	}
	return r.begin(at).HedgeAfter()
}

func TestHedging_quantiles(t *testing.T) {
	var vectors struct {
		scriptFile
		Quantiles []struct {
			Name string
			Took [][2]json.RawMessage
			Want *json.RawMessage
		}
	}
	readVectors(t, "hedging.json", &vectors)
	for _, tc := range vectors.Quantiles {
		t.Run(tc.Name, func(t *testing.T) {
			var took []time.Duration
			for _, g := range tc.Took {
				var n int
				if err := json.Unmarshal(g[1], &n); err != nil {
					t.Fatal(err)
				}
				took = append(took, slices.Repeat([]time.Duration{vectorDuration(t, g[0])}, n)...)
			}
			got, ok := hedgeDelay(t, took)
			if ok != (tc.Want != nil) || ok && got != vectorDuration(t, *tc.Want) {
				t.Fatalf("%v %v, want %s", got, ok, tc.Want)
			}
		})
	}
}

// The estimate is never below the exact 95th percentile, and at most a sixteenth above it.
func TestHedging_the_estimate_is_close(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		took := make([]time.Duration, 20+rng.IntN(900))
		for i := range took {
			took[i] = time.Millisecond + time.Duration(rng.ExpFloat64()*float64(rng.IntN(200)+1)*float64(time.Millisecond))
		}
		got, ok := hedgeDelay(t, took)
		exact := slices.Clone(took)
		slices.Sort(exact)
		p95 := exact[(len(exact)*95+99)/100-1]
		if !ok || got < p95 || float64(got) > float64(p95)*(1+1.0/16)+2048 {
			t.Fatalf("seed %d: %v of %d attempts, exactly %v", seed, got, len(took), p95)
		}
	}
}

// Losers are learnt from: hedging does not shorten its own delay.
func TestHedging_losers_keep_the_delay_up(t *testing.T) {
	r := newRig(t, map[engine.Field]engine.Value{engine.HedgingEnabled: engine.Bool(true)})
	at, slowest := time.Duration(0), time.Duration(0)
	for i := range 2000 {
		c := r.begin(at)
		after, ok := c.HedgeAfter()
		took := 10 * time.Millisecond
		if i%10 == 0 { // a tenth is slow
			took = time.Second
		}
		if ok && took > after {
			if !c.Hedge(engine.Instant(at + after)).Proceed {
				t.Fatal("no hedge")
			}
			took = after + 10*time.Millisecond
			c.SettleAttempt(engine.Instant(at+took), 2, succeeds)
		} else if !c.Succeed() {
			c.Settle(engine.Instant(at+took), succeeds)
		}
		slowest = max(slowest, after)
		at += took
	}
	if d, ok := r.begin(at).HedgeAfter(); !ok || d < 500*time.Millisecond {
		t.Fatalf("delay fell to %v", d)
	}
}

// Hedges and retries together never pass the budget, whatever happens to calls, and at the
// end of every call its attempts add up.
func TestHedging_never_passes_the_budget(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 5))
		r := newRig(t, map[engine.Field]engine.Value{
			engine.HedgingAfter: engine.Text("10ms"), engine.HedgingMax: engine.Int(2), engine.MaxAttempts: engine.Int(4),
			engine.BudgetRatio: engine.Micro(engine.Million / 5), engine.BudgetMinRetriesPerSecond: engine.Micro(0),
			engine.BudgetWindow: engine.Duration(time.Minute),
		})
		type running struct {
			c    *engine.Call
			live []int
		}
		var calls []*running
		began, sends := 0, 0
		for step := range 500 {
			at := engine.Instant(step) * engine.Instant(time.Millisecond)
			if rng.IntN(3) == 0 {
				calls = append(calls, &running{r.begin(time.Duration(at)), []int{1}})
				began++
				sends++
			}
			if len(calls) == 0 {
				continue
			}
			i := rng.IntN(len(calls))
			k := calls[i]
			ended := false
			switch n := rng.IntN(6); {
			case n < 2:
				if k.c.Hedge(at).Proceed {
					k.live = append(k.live, k.c.Attempts())
					sends++
				}
			case n == 2:
				k.c.Abandon(at)
				ended = true
			default:
				j := rng.IntN(len(k.live))
				d := k.c.SettleAttempt(at, k.live[j], []engine.Outcome{succeeds, answers(503), answers(503)}[rng.IntN(3)])
				switch {
				case d.Pending:
					k.live = slices.Delete(k.live, j, j+1)
				case d.Retry && k.c.Resume(at).Proceed:
					k.live = []int{k.c.Attempts()}
					sends++
				default:
					ended = true
				}
			}
			if ended {
				calls = slices.Delete(calls, i, i+1)
			}
			if sends-began > began/5 {
				t.Fatalf("seed %d step %d: %d sends for %d calls", seed, step, sends, began)
			}
		}
		s := r.Stats(engine.Instant(500 * time.Millisecond))
		if int(s.Attempts()) != sends || int(s.OK+s.Rescued+s.Failed+s.Cancelled)+len(calls) != began {
			t.Fatalf("seed %d: %d attempts, %d sends; %+v of %d calls, %d run", seed, s.Attempts(), sends, s, began, len(calls))
		}
	}
}

func TestHedging_what_became_of_hedges_adds_up(t *testing.T) {
	r := newRig(t, map[engine.Field]engine.Value{
		engine.MaxAttempts: engine.Int(3), engine.HedgingEnabled: engine.Bool(true), engine.HedgingAfter: engine.Text("10ms"),
	})
	hedged := func() *engine.Call {
		c := r.begin(0)
		if d := c.Hedge(engine.Instant(10 * time.Millisecond)); !d.Proceed {
			t.Fatalf("%+v", *d)
		}
		return c
	}
	at := engine.Instant(20 * time.Millisecond)
	hedged().SettleAttempt(at, 2, succeeds) // the hedge answers
	hedged().SettleAttempt(at, 1, succeeds) // and loses
	c := hedged()
	c.SettleAttempt(at, 2, answers(503)) // and fails
	c.SettleAttempt(at, 1, succeeds)
	c = hedged()
	c.SettleAttempt(at, 1, answers(503)) // the first fails, the hedge rescues
	c.SettleAttempt(at, 2, succeeds)
	hedged().Abandon(at) // all are left
	s := r.Stats(at)
	if s.Hedges != 5 || s.Hedged.Answered != 2 || s.Hedged.Rescued != 1 || s.Hedged.Failed != 1 || s.Hedged.Lost != 2 {
		t.Errorf("%+v", s)
	}
	if s.Hedged.Answered+s.Hedged.Failed+s.Hedged.Lost != s.Hedges || s.FirstFailed != 1 || s.RetriesFailed != 0 {
		t.Errorf("%+v", s)
	}
}
