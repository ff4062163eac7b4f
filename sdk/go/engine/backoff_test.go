// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

type vectorBackoff struct {
	Base, Max  json.RawMessage
	Multiplier float64
	Jitter     string
}

func (v vectorBackoff) policy(t *testing.T) engine.BackoffPolicy {
	t.Helper()
	m, _ := engine.Decimal(v.Multiplier)
	b := engine.BackoffPolicy{Base: vectorDuration(t, v.Base), Max: vectorDuration(t, v.Max), Multiplier: m.Int}
	for b.Jitter.String() != v.Jitter && v.Jitter != "" {
		b.Jitter++
	}
	return b
}

func TestBackoff_vectors(t *testing.T) {
	var vectors struct {
		Steps []struct {
			Name    string
			Backoff vectorBackoff
			Want    map[string]json.RawMessage
		}
		Waits []struct {
			Name, Why string
			Backoff   vectorBackoff
			N         int
			Previous  json.RawMessage
			Draw      uint64
			Want      json.RawMessage
		}
	}
	readVectors(t, "backoff.json", &vectors)
	for _, tc := range vectors.Steps {
		t.Run(tc.Name, func(t *testing.T) {
			b := tc.Backoff.policy(t)
			for n, want := range tc.Want {
				i, err := strconv.Atoi(n)
				if err != nil {
					t.Fatal(err)
				}
				if got := b.Step(i); got != vectorDuration(t, want) {
					t.Errorf("d(%d) = %s, want %s", i, got, want)
				}
			}
		})
	}
	for _, tc := range vectors.Waits {
		t.Run(tc.Name, func(t *testing.T) {
			b := tc.Backoff.policy(t)
			var previous time.Duration
			if tc.Previous != nil {
				previous = vectorDuration(t, tc.Previous)
			}
			if got := b.Wait(tc.N, previous, func() uint64 { return tc.Draw << 32 }); got != vectorDuration(t, tc.Want) {
				t.Errorf("wait = %s, want %s", got, tc.Want)
			}
		})
	}
}

// p0 is the backoff of the cases.
func p0(j engine.Jitter) engine.BackoffPolicy {
	return engine.BackoffPolicy{Base: 200 * time.Millisecond, Max: 3 * time.Second, Multiplier: 2 * engine.Million, Jitter: j}
}

func TestO_BO_01_the_wait_never_wraps(t *testing.T) {
	b := p0(engine.JitterNone)
	want := []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond}
	for n := 1; n <= 200; n++ {
		expect := 3 * time.Second
		if n <= len(want) {
			expect = want[n-1]
		}
		if got := b.Step(n); got != expect {
			t.Fatalf("d(%d) = %s, want %s", n, got, expect)
		}
	}
	slow := engine.BackoffPolicy{Base: time.Millisecond, Max: 5 * time.Minute, Multiplier: engine.Million + 1}
	last := time.Duration(0)
	for _, n := range []int{1, 1000, 1_000_000, 1 << 24} {
		if got := slow.Step(n); got < last || got <= 0 || got > slow.Max {
			t.Fatalf("d(%d) = %s after %s", n, got, last)
		} else {
			last = got
		}
	}
}

func TestO_BO_02_the_longest_wait_is_not_the_shortest(t *testing.T) {
	b := engine.BackoffPolicy{Base: 720 * time.Hour, Max: 720 * time.Hour, Multiplier: 10 * engine.Million}
	for _, n := range []int{1, 2, 100} {
		if got := b.Step(n); got != 720*time.Hour {
			t.Fatalf("d(%d) = %s", n, got)
		}
	}
}

func TestO_BO_03_jitter_stays_at_the_cap(t *testing.T) {
	b := p0(engine.JitterFull)
	r := rand.New(rand.NewPCG(1, 2))
	const draws = 10_000
	var sum time.Duration
	atCap := 0
	for range draws {
		w := b.Wait(10, 0, r.Uint64)
		if w < 0 || w > 3*time.Second {
			t.Fatalf("wait %s", w)
		}
		if w == 3*time.Second {
			atCap++
		}
		sum += w
	}
	if mean := sum / draws; mean < 1450*time.Millisecond || mean > 1550*time.Millisecond {
		t.Errorf("mean %s", mean)
	}
	if atCap > draws/200 {
		t.Errorf("%d of %d at the cap", atCap, draws)
	}
}

func TestO_BO_04_jitter_never_lifts_a_wait_above_the_cap(t *testing.T) {
	for _, j := range []engine.Jitter{engine.JitterNone, engine.JitterFull, engine.JitterEqual, engine.JitterDecorrelated} {
		b := engine.BackoffPolicy{Base: 100 * time.Millisecond, Max: 500 * time.Millisecond, Multiplier: 2 * engine.Million, Jitter: j}
		r := rand.New(rand.NewPCG(3, uint64(j)))
		for n := 1; n <= 20; n++ {
			var previous time.Duration
			for range 1000 {
				w := b.Wait(n, previous, r.Uint64)
				least := time.Duration(0)
				switch j {
				case engine.JitterNone:
					least = b.Step(n)
				case engine.JitterEqual:
					least = b.Step(n) / 2
				case engine.JitterDecorrelated:
					least = b.Base
				case engine.JitterFull:
				}
				if w < least || w > b.Max {
					t.Fatalf("%s: wait %d is %s", j, n, w)
				}
				previous = w
			}
		}
	}
}

func TestO_BO_05_the_first_retry_waits(t *testing.T) { runScripts(t, "order.json", "O-BO-05") }

func TestO_BO_06_multiplier_one_still_spreads(t *testing.T) {
	b := engine.BackoffPolicy{Base: 2 * time.Second, Max: 2 * time.Second, Multiplier: engine.Million, Jitter: engine.JitterFull}
	r := rand.New(rand.NewPCG(5, 6))
	seen := map[int64]bool{}
	for range 100 {
		w := b.Wait(1, 0, r.Uint64)
		if w < 0 || w > 2*time.Second {
			t.Fatalf("wait %s", w)
		}
		seen[w.Milliseconds()] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different waits", len(seen))
	}
}

func TestBackoff_a_cap_below_the_base_holds(t *testing.T) {
	for j := engine.JitterNone; j <= engine.JitterDecorrelated; j++ {
		b := engine.BackoffPolicy{Base: 3 * time.Second, Max: time.Second, Multiplier: 2 * engine.Million, Jitter: j}
		for _, draw := range []uint64{0, 1 << 63, 1<<64 - 1} {
			if w := b.Wait(3, 1<<62, func() uint64 { return draw }); w < 0 || w > time.Second {
				t.Errorf("%s: wait %s", j, w)
			}
		}
	}
}
