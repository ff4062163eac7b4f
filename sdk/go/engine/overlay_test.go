// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func randomSwitches(r *rand.Rand, n int) []engine.Switch {
	switches := make([]engine.Switch, n)
	for i := range switches {
		sw := engine.Switch{
			ID: fmt.Sprintf("ks-%d", i), Action: engine.Actions()[r.IntN(5)], Scope: scopes[r.IntN(len(scopes))],
			Percent: []int{1, 50, 100, 100}[r.IntN(4)], Criticality: engine.Criticality(r.IntN(4)),
			Factor: r.Int64N(engine.Million + 1), Admit: r.Int64N(engine.Million + 1),
			Ends:    start.Add(time.Duration(r.IntN(10)) * time.Minute),
			Restore: []time.Duration{0, time.Nanosecond, time.Minute, time.Hour}[r.IntN(4)],
			Drill:   r.IntN(8) == 0,
		}
		if r.IntN(3) == 0 {
			sw.Except = []engine.Scope{scopes[r.IntN(len(scopes))]}
		}
		switches[i] = sw
	}
	return switches
}

// strictest composes at one moment by the words of the contract, without an overlay.
func strictest(switches []engine.Switch, crit engine.Criticality, now time.Time) engine.Effects {
	e := engine.NoEffects()
	better := func(a *engine.Switch, b *engine.Switch) bool {
		return b == nil || a.Ends.After(b.Ends) || a.Ends.Equal(b.Ends) && a.ID < b.ID
	}
	take := func(have *int64, by **engine.Switch, value int64, sw *engine.Switch) {
		if value < *have || value == *have && better(sw, *by) {
			*have, *by = value, sw
		}
	}
	for i := range switches {
		sw := &switches[i]
		if !sw.Selects(endpointScope, crit, "i-1") {
			continue
		}
		share := engine.Share(sw, "i-1", now)
		if share == engine.Million {
			continue
		}
		back := func(floor int64) int64 { return floor + (engine.Million-floor)*share/engine.Million }
		switch sw.Action {
		case engine.DisableRetries:
			take(&e.Retry, &e.RetryBy, back(0), sw)
		case engine.TightenBudget:
			take(&e.Factor, &e.FactorBy, back(sw.Factor), sw)
		case engine.ForceOpen:
			take(&e.First, &e.FirstBy, back(sw.Admit), sw)
			e.ForcedOpen = e.ForcedOpen || now.Before(sw.Ends)
		case engine.ForceClosed:
			e.ForcedClosed = true
			if better(sw, e.ClosedBy) {
				e.ClosedBy = sw
			}
		case engine.DisableHedging:
			e.HedgingOff = true
			if better(sw, e.HedgingBy) {
				e.HedgingBy = sw
			}
		}
	}
	if e.ForcedOpen {
		e.ForcedClosed, e.ClosedBy = false, nil
	}
	return e
}

func describe(e engine.Effects) string {
	return fmt.Sprint(e.Retry, e.First, e.Factor, e.ForcedOpen, e.ForcedClosed, e.HedgingOff,
		id(e.RetryBy), id(e.FirstBy), id(e.FactorBy), id(e.ClosedBy), id(e.HedgingBy))
}

func TestCompose_is_the_strictest_whatever_the_order(t *testing.T) {
	for seed := range uint64(500) {
		r := seeded(seed)
		switches := randomSwitches(r, 1+r.IntN(12))
		crit := engine.Criticality(r.IntN(4))
		a := engine.Compose(switches, endpointScope, crit, "i-1")
		b := engine.Compose(shuffled(r, switches), endpointScope, crit, "i-1")
		for range 40 {
			now := start.Add(time.Duration(r.Int64N(int64(80 * time.Minute))))
			want := describe(strictest(switches, crit, now))
			if got := describe(a.At(now)); got != want {
				t.Fatalf("seed %d at %s: %s\nwant %s", seed, now.Sub(start), got, want)
			}
			if got := describe(b.At(now)); got != want {
				t.Fatalf("seed %d at %s, shuffled: %s\nwant %s", seed, now.Sub(start), got, want)
			}
		}
	}
}

func TestCompose_lifting_one_switch_never_makes_another_stricter_or_lifts_it(t *testing.T) {
	for seed := range uint64(300) {
		r := seeded(seed)
		switches := randomSwitches(r, 6)
		lifted := r.IntN(len(switches))
		rest := append(append([]engine.Switch(nil), switches[:lifted]...), switches[lifted+1:]...)
		all := engine.Compose(switches, endpointScope, engine.Standard, "i-1")
		fewer := engine.Compose(rest, endpointScope, engine.Standard, "i-1")
		for minute := range 20 {
			now := start.Add(time.Duration(minute) * time.Minute)
			a, b := all.At(now), fewer.At(now)
			if b.Retry < a.Retry || b.First < a.First || b.Factor < a.Factor || b.ForcedOpen && !a.ForcedOpen || b.HedgingOff && !a.HedgingOff {
				t.Fatalf("seed %d: lifting made it stricter", seed)
			}
			if b.RetryBy != nil && a.Retry > b.Retry {
				t.Fatalf("seed %d: %s was lifted, too", seed, b.RetryBy.ID)
			}
		}
	}
}

func TestShare_rises_from_the_end_to_the_end_of_restore(t *testing.T) {
	sw := engine.Switch{ID: "ks-1", Action: engine.DisableRetries, Ends: start, Restore: 2 * time.Minute}
	starts := map[time.Duration]bool{}
	sum := make([]float64, 13) // share of a fleet every 10 s
	const fleet = 2000
	for i := range fleet {
		instance := fmt.Sprintf("i-%d", i)
		last, begun := int64(0), time.Duration(-1)
		for step := range 121 {
			after := time.Duration(step) * time.Second
			share := engine.Share(&sw, instance, start.Add(after))
			if share < last || share > engine.Million {
				t.Fatalf("%s: %d after %d", instance, share, last)
			}
			if share > 0 && begun < 0 {
				begun = after
			}
			last = share
			if step%10 == 0 {
				sum[step/10] += float64(share) / engine.Million / fleet
			}
		}
		starts[begun] = true
		if last != engine.Million || begun > 61*time.Second {
			t.Fatalf("%s begins after %s and ends at %d", instance, begun, last)
		}
		if engine.Share(&sw, instance, start.Add(-time.Hour)) != 0 || engine.Share(&sw, instance, start.Add(1000*time.Hour)) != engine.Million {
			t.Fatalf("%s is wrong far from the end", instance)
		}
	}
	if len(starts) < 50 {
		t.Errorf("the fleet starts at %d different seconds of 60", len(starts))
	}
	for i, share := range sum { // half of the fleet's ramp is at the middle
		if i == 6 && (share < 0.45 || share > 0.55) || i == 2 && share > 0.1 || i == 10 && share < 0.9 {
			t.Errorf("after %d s the fleet has %.2f back", i*10, share)
		}
	}
}

func TestOverlay_next_change_is_when_the_effects_change(t *testing.T) {
	for seed := range uint64(200) {
		r := seeded(seed)
		o := engine.Compose(randomSwitches(r, 5), endpointScope, engine.Standard, "i-1")
		if o.Empty() {
			if _, ok := o.NextChange(start); ok {
				t.Fatal("an empty overlay changes")
			}
			continue
		}
		now := start.Add(-time.Minute)
		for range 50 {
			next, ok := o.NextChange(now)
			if !ok {
				break
			}
			if !next.After(now) {
				t.Fatalf("seed %d: next change at %s is not after %s", seed, next, now)
			}
			now = next
		}
		if got, want := describe(o.At(now)), describe(engine.NoEffects()); got != want {
			t.Fatalf("seed %d: after the last change %s", seed, got)
		}
	}
}

func TestOverlay_does_not_allocate(t *testing.T) {
	o := engine.Compose(randomSwitches(seeded(3), 12), endpointScope, engine.Standard, "i-1")
	if n := testing.AllocsPerRun(100, func() { o.At(start) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCompose_keeps_few_of_many_switches(t *testing.T) {
	switches := make([]engine.Switch, engine.MaxActiveSwitches)
	for i := range switches {
		switches[i] = engine.Switch{ID: fmt.Sprint(i), Action: engine.DisableRetries, Scope: "global", Percent: 100, Ends: start.Add(time.Duration(i) * time.Second)}
	}
	o := engine.Compose(switches, endpointScope, engine.Standard, "i-1")
	changes := 0
	for now, ok := start.Add(-time.Second), true; ok; changes++ {
		now, ok = o.NextChange(now)
	}
	if changes > 3 {
		t.Errorf("%d changes of one effect: switches that others outlast are kept", changes)
	}
}

func BenchmarkOverlay(b *testing.B) {
	switches := []engine.Switch{{ID: "ks-1", Action: engine.DisableRetries, Scope: "global", Percent: 100, Ends: start.Add(time.Hour)}}
	o := engine.Compose(switches, endpointScope, engine.Standard, "i-1")
	b.ReportAllocs()
	for b.Loop() {
		o.At(start)
	}
}
