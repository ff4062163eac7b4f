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

func TestServiceBudget_vectors(t *testing.T) { runScripts(t, "service-budget.json") }

var sharedSettings = map[engine.Field]engine.Value{
	engine.BudgetScope: engine.Enum("service"), engine.BudgetRatio: engine.Micro(engine.Million / 10),
	engine.BudgetMinRetriesPerSecond: engine.Micro(0), engine.BudgetWindow: engine.Duration(time.Minute),
}

func service(t *testing.T, n int) []*engine.Endpoint {
	t.Helper()
	p := rigPolicy(t, sharedSettings)
	config := engine.Config{Origin: rigOrigin, Random: func() uint64 { return 0 }}
	s := engine.NewSharedBudget(config, &p, engine.Overlay{}, 0)
	all := make([]*engine.Endpoint, n)
	for i := range all {
		all[i] = engine.NewEndpoint(config, &p, engine.Overlay{}, 0)
		all[i].Share(s)
	}
	return all
}

// Whatever the endpoints do, in any order, their retries together are those of one count.
func TestServiceBudget_is_one_count(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 6))
		endpoints := service(t, 3)
		calls, held := 0, 0
		var running, waiting []*engine.Call
		for step := range 400 {
			at := engine.Instant(step) * engine.Instant(time.Millisecond)
			switch n := rng.IntN(4); {
			case n == 0 || len(running)+len(waiting) == 0:
				c := new(engine.Call)
				if !endpoints[rng.IntN(3)].Begin(c, at, engine.CallOptions{Idempotent: true}).Proceed {
					t.Fatal("refused")
				}
				calls++
				running = append(running, c)
			case n == 1 && len(waiting) > 0:
				c := waiting[0]
				waiting = waiting[1:]
				if rng.IntN(2) == 0 {
					c.Abandon(at)
					held--
				} else if c.Resume(at).Proceed {
					running = append(running, c)
				}
			case len(running) > 0:
				c := running[0]
				running = running[1:]
				d := c.Settle(at, answers(503))
				if may := held+1 <= calls/10; d.Retry && !may || d.Code == engine.CodeBudget && may {
					t.Fatalf("seed %d step %d: %+v with %d of %d calls", seed, step, d, held, calls)
				}
				if d.Retry {
					held++
					waiting = append(waiting, c)
				}
			}
		}
	}
}

func TestServiceBudget_concurrent_endpoints_never_pass_it(t *testing.T) {
	endpoints := service(t, 4)
	var calls, retries atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				c := new(engine.Call)
				endpoints[i%4].Begin(c, 0, engine.CallOptions{Idempotent: true})
				calls.Add(1)
				if c.Settle(0, answers(503)).Retry && c.Resume(0).Proceed {
					retries.Add(1)
					c.Settle(0, succeeds)
				}
			}
		})
	}
	wg.Wait()
	if got, most := retries.Load(), calls.Load()/10; got > most || got < most-2 {
		t.Fatalf("%d retries of %d calls", retries.Load(), calls.Load())
	}
	s := endpoints[0].Stats(0)
	if s.Budget.Used != retries.Load() {
		t.Fatalf("%+v", s.Budget)
	}
}
