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
	e := Effective{Scope: scope, values: make([]Resolved, NumFields)}
	for f := Field(1); f < numFields; f++ {
		if d := f.Spec().Default; d != nil {
			e.values[f] = Resolved{Value: *d, Origin: Origin{From: BuiltIn}}
		}
	}
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
		low, high := &e.values[p.low], &e.values[p.high]
		if p.follows && low.From == BuiltIn && p.broken(low.Value, high.Value) {
			low.Value = high.Value
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
	for f := Field(1); f < numFields; f++ {
		v, ok := d.Settings[f]
		if !ok {
			v, ok = impliedSwitch(d.Settings, f)
		}
		if !ok || f.Spec().Own && d.Scope != e.Scope {
			continue
		}
		e.set(f, v, origin)
	}
	if d.Criticality != CriticalityUnspecified {
		e.Criticality, e.CriticalityOrigin = d.Criticality, origin
	}
}

// set lays one value over the present one. Bounds for narrower scopes only tighten.
func (e *Effective) set(f Field, v Value, origin Origin) {
	old := e.values[f]
	if isBound(f) && old.Present() && origin.From != string(Global) {
		v = stricter(f, old.Value, v)
		if v.Equal(old.Value) {
			return
		}
	}
	var shadows []Shadow
	if old.Present() {
		shadows = append([]Shadow{{old.Value, old.Origin}}, old.Shadows...)
	}
	e.values[f] = Resolved{Value: v, Origin: origin, Shadows: shadows}
}

// impliedSwitch returns the value of a block's switch that a document implies by setting a
// field of the block. A breaker that a wider scope switched off comes back only by name.
func impliedSwitch(s Settings, f Field) (Value, bool) {
	if f == BreakerEnabled {
		return Value{}, false
	}
	for _, member := range blockMembers[f] {
		if _, ok := s[member]; ok {
			return Bool(true), true
		}
	}
	return Value{}, false
}

// blockMembers lists the fields of each block by the block's switch.
var blockMembers = func() map[Field][]Field {
	m := map[Field][]Field{}
	for f := Field(1); f < numFields; f++ {
		if s, ok := f.SwitchOf(); ok {
			m[s] = append(m[s], f)
		}
	}
	return m
}()

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
var ceilings = []struct{ field, bound Field }{
	{MaxAttempts, CeilingsMaxAttempts},
	{BudgetRatio, CeilingsBudgetRatio},
	{BudgetMinRetriesPerSecond, CeilingsMinRetriesPerSecond},
	{TimeoutsOverall, CeilingsTimeoutsOverall},
}

// clip applies ceilings and requirements to the merged values.
func (e *Effective) clip() {
	for _, c := range ceilings {
		value, bound := e.values[c.field], e.values[c.bound]
		if value.Present() && bound.Present() && value.Value.Int > bound.Value.Int {
			e.replace(c.field, bound.Value, bound.Origin)
		}
	}
	jitter := e.values[RequirementsJitter]
	if jitter.Present() && !jitter.Value.Has(e.values[BackoffJitter].Value.Text) {
		e.replace(BackoffJitter, Enum(preferredJitter(jitter.Value)), jitter.Origin)
	}
	gate := e.values[RequirementsSuccessGate]
	if gate.Value.True() && !e.values[BudgetSuccessGateEnabled].Value.True() {
		e.replace(BudgetSuccessGateEnabled, Bool(true), gate.Origin)
	}
}

func (e *Effective) replace(f Field, v Value, by Origin) {
	r, before := &e.values[f], e.values[f].Value
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
