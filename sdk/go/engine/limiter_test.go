// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestConcurrency_vectors(t *testing.T) { runScripts(t, "concurrency.json") }

func limited(limit, queue int64) map[engine.Field]engine.Value {
	return map[engine.Field]engine.Value{
		engine.ConcurrencyLimit: engine.Int(limit), engine.ConcurrencyQueue: engine.Int(queue),
		engine.ConcurrencyWhenFull: engine.Enum("wait"),
	}
}

// limiterModel is the limit as one would explain it: a set of running calls and a line.
type limiterModel struct {
	limit, queue int
	running      map[*engine.Call]bool
	line         []*engine.Call
}

func (m *limiterModel) begin(c *engine.Call) string {
	switch {
	case len(m.running) < m.limit && len(m.line) == 0:
		m.running[c] = true
		return "proceed"
	case len(m.line) < m.queue:
		m.line = append(m.line, c)
		return "queued"
	}
	return "refused"
}

func (m *limiterModel) move() {
	for len(m.line) > 0 && len(m.running) < m.limit {
		m.running[m.line[0]] = true
		m.line = m.line[1:]
	}
}

func (m *limiterModel) leave(c *engine.Call) {
	delete(m.running, c)
	m.line = slices.DeleteFunc(m.line, func(o *engine.Call) bool { return o == c })
	m.move()
}

// Any order of starts, ends, departures and edits gives the slots that the model gives.
func TestConcurrency_is_the_model(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		limit, queue := int64(1+rng.IntN(4)), int64(rng.IntN(4))
		r := newRig(t, limited(limit, queue))
		m := &limiterModel{limit: int(limit), queue: int(queue), running: map[*engine.Call]bool{}}
		var calls []*engine.Call // that hold a slot or a place
		entered := map[*engine.Call]bool{}
		for step := range 200 {
			at := engine.Instant(step) * engine.Instant(time.Millisecond)
			switch n := rng.IntN(10); {
			case n < 4:
				c := new(engine.Call)
				d := r.Begin(c, at, engine.CallOptions{Idempotent: true})
				got := "refused"
				switch {
				case d.Proceed:
					got, entered[c] = "proceed", true
				case d.Queued:
					got = "queued"
				}
				if want := m.begin(c); got != want {
					t.Fatalf("seed %d step %d: %s, want %s", seed, step, got, want)
				}
				if got != "refused" {
					calls = append(calls, c)
				}
			case n < 9 && len(calls) > 0:
				i := rng.IntN(len(calls))
				c := calls[i]
				switch {
				case entered[c] && rng.IntN(2) == 0:
					c.Settle(at, []engine.Outcome{succeeds, fails, cancelled, {Kind: engine.OutcomePanic}}[rng.IntN(4)])
				case !entered[c] && m.running[c] && rng.IntN(2) == 0:
					if !c.Enter(at).Proceed {
						t.Fatalf("seed %d step %d: a call with a slot is refused", seed, step)
					}
					entered[c] = true
					continue
				default:
					c.Abandon(at)
				}
				m.leave(c)
				calls = slices.Delete(calls, i, i+1)
			case n == 9:
				limit, queue = int64(1+rng.IntN(4)), int64(rng.IntN(4))
				p := rigPolicy(t, limited(limit, queue))
				r.Reload(&p, engine.Overlay{}, engine.ModeEnforce, at)
				m.limit, m.queue = int(limit), int(queue)
				m.move()
			}
			if s := r.Stats(at).Concurrency; s.Running != len(m.running) || s.Waiting != len(m.line) {
				t.Fatalf("seed %d step %d: %+v, want %d running, %d waiting", seed, step, s, len(m.running), len(m.line))
			}
			for _, c := range calls {
				if turn := c.Turn(); turn != nil && ready(turn) != m.running[c] {
					t.Fatalf("seed %d step %d: turn of a call is %v", seed, step, ready(turn))
				}
			}
		}
	}
}

func ready(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Many goroutines come, wait, give up and panic: never more than the limit run, and in the
// end no slot is held.
func TestConcurrency_no_slot_is_lost(t *testing.T) {
	const limit = 4
	r := newRig(t, limited(limit, 100))
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 200 {
				c := new(engine.Call)
				d := r.Begin(c, 0, engine.CallOptions{})
				if d.Queued {
					ctx, cancel := context.WithCancel(t.Context())
					if rng.IntN(3) == 0 {
						cancel()
					}
					select {
					case <-c.Turn():
						d = c.Enter(0)
					case <-ctx.Done():
						d = c.Abandon(0)
					}
					cancel()
				}
				if !d.Proceed {
					continue
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				running.Add(-1)
				c.Settle(0, []engine.Outcome{succeeds, fails, {Kind: engine.OutcomePanic}}[rng.IntN(3)])
				c.Abandon(0)
			}
		})
	}
	wg.Wait()
	if s := r.Stats(0).Concurrency; s.Running != 0 || s.Waiting != 0 || most.Load() > limit {
		t.Fatalf("%+v, %d at once", s, most.Load())
	}
}
