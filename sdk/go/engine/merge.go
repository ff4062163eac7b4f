// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
)

// Merge returns the effective policy at scope: built-in ← global ← namespace ← service ←
// endpoint, field by field, then ceilings. Documents may come in any order; those that do
// not contain scope are ignored. A ceiling clips values that are set or built in; a
// setting without a value, such as timeouts.overall, stays without one.
func Merge(scope Scope, documents []Document) Effective {
	path := pathTo(scope, documents)
	size := 0
	for i := range path {
		size += len(path[i].Settings)
	}
	e := Effective{Scope: scope, merged: &merged{set: make([]Resolved, 0, size+4)}}
	for i := range path {
		e.lay(&path[i])
	}
	e.follow()
	e.clip()
	return e
}

// follow keeps built-in values that only make sense up to another setting below it, so
// that a document may set the other one alone.
func (e *Effective) follow() {
	for _, p := range pairs {
		low, high := e.merged.value(p.low), e.merged.value(p.high)
		if p.follows && low.From == BuiltIn && p.broken(low.Value, high.Value) {
			e.merged.slot(p.low).Value = high.Value
		}
	}
}

// pathTo returns the documents that apply at scope, widest first.
func pathTo(scope Scope, documents []Document) []Document {
	path := make([]Document, 0, 4)
	for _, d := range documents {
		if d.Scope.Contains(scope) {
			path = append(path, d)
		}
	}
	slices.SortStableFunc(path, func(a, b Document) int { return cmp.Compare(a.Scope.Level(), b.Scope.Level()) })
	return path
}

// lay puts a document over what is there.
func (e *Effective) lay(d *Document) {
	origin := Origin{From: string(d.Scope), Revision: d.Revision}
	for f, v := range d.Settings {
		if f >= numFields || f.Spec().Own && d.Scope != e.Scope {
			continue
		}
		e.set(f, v, origin)
		if block := blockSwitches[f]; block != 0 {
			if _, explicit := d.Settings[block]; !explicit {
				e.set(block, Bool(true), origin)
			}
		}
	}
	if d.Criticality != CriticalityUnspecified {
		e.Criticality, e.CriticalityOrigin = d.Criticality, origin
	}
}

// blockSwitches holds, by field, the switch of the block that setting the field switches
// on; 0 for none. A breaker that a wider scope switched off comes back only by name.
var blockSwitches = func() (t [NumFields]Field) { //nolint:gochecknoglobals // compiled table
	for f := Field(1); f < numFields; f++ {
		if block, member := f.SwitchOf(); member && block != BreakerEnabled {
			t[f] = block
		}
	}
	return t
}()

// set lays one value over the present one. Bounds for narrower scopes only tighten.
func (e *Effective) set(f Field, v Value, origin Origin) {
	r := e.merged.slot(f)
	if r.Origin == origin {
		return // a block that several of its fields switch on
	}
	if isBound(f) && r.Present() && origin.From != string(Global) {
		v = stricter(f, r.Value, v)
		if v.Equal(r.Value) {
			return
		}
	}
	var shadows []Shadow
	if r.Present() {
		shadows = append([]Shadow{{r.Value, r.Origin}}, r.Shadows...)
	}
	*r = Resolved{Value: v, Origin: origin, Shadows: shadows}
}

func isBound(f Field) bool { return f >= CeilingsMaxAttempts && f <= RequirementsSuccessGate }

// stricter combines two values of a bound.
func stricter(f Field, a, b Value) Value {
	switch f.Spec().Kind {
	case KindSet:
		common := Value{Kind: KindSet}
		for _, item := range a.Set {
			if b.Has(item) {
				common.Set = append(common.Set, item)
			}
		}
		return common
	case KindBool:
		return Bool(a.True() || b.True())
	default:
		if b.Int < a.Int {
			return b
		}
		return a
	}
}

// ceilings pairs settings with the bounds that clip them.
var ceilings = []struct{ field, bound Field }{ //nolint:gochecknoglobals // compiled table
	{MaxAttempts, CeilingsMaxAttempts},
	{BudgetRatio, CeilingsBudgetRatio},
	{BudgetMinRetriesPerSecond, CeilingsMinRetriesPerSecond},
	{TimeoutsOverall, CeilingsTimeoutsOverall},
}

// clip applies ceilings and requirements to the merged values.
func (e *Effective) clip() {
	for _, c := range ceilings {
		value, bound := e.merged.value(c.field), e.merged.value(c.bound)
		if value.Present() && bound.Present() && value.Value.Int > bound.Value.Int {
			e.replace(c.field, bound.Value, bound.Origin)
		}
	}
	jitter := e.merged.value(RequirementsJitter)
	if jitter.Present() && !jitter.Value.Has(e.merged.value(BackoffJitter).Value.Text) {
		e.replace(BackoffJitter, Enum(preferredJitter(jitter.Value)), jitter.Origin)
	}
	gate := e.merged.value(RequirementsSuccessGate)
	if gate.Value.True() && !e.merged.value(BudgetSuccessGateEnabled).Value.True() {
		e.replace(BudgetSuccessGateEnabled, Bool(true), gate.Origin)
	}
}

func (e *Effective) replace(f Field, v Value, by Origin) {
	r := e.merged.slot(f)
	before := r.Value
	r.Value, r.Ceiling, r.Clipped = v, by, &before
}

// preferredJitter returns the mode that replaces a forbidden one: full, or where that is
// forbidden too, the first allowed one. Full also if nothing is left.
func preferredJitter(allowed Value) string {
	for _, word := range []string{"full", "equal", "decorrelated", "none"} {
		if allowed.Has(word) {
			return word
		}
	}
	return "full"
}
