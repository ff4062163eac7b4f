// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
)

// ValidateEffective returns the rules that documents break together: values above a ceiling,
// bounds that are looser than wider ones, requirements, and pairs of values that do not fit
// once merged. The path holds documents that apply at one scope, in any order; each
// violation names the document that breaks the rule. What each document breaks by itself is
// left to Validate.
func ValidateEffective(path []Document) []Violation {
	if len(path) == 0 {
		return nil
	}
	scope := path[0].Scope
	for _, d := range path {
		if d.Scope.Level() > scope.Level() {
			scope = d.Scope
		}
	}
	path = pathTo(scope, path)
	var found []Violation
	for i := range path {
		found = append(found, checkBounds(path[:i+1])...)
	}
	return append(found, ValidateMerged(Merge(scope, path))...)
}

// checkBounds checks the last document of a path against the bounds along it.
func checkBounds(path []Document) []Violation {
	d := &path[len(path)-1]
	c := checker{scope: d.Scope}
	wider := Merge(d.Scope, path[:len(path)-1])
	here := Merge(d.Scope, path)
	add := func(f Field, v Value, other Origin, rule, fix string) {
		c.add(f, v, rule+" ("+boundName(f, other)+")", fix)
		c.found[len(c.found)-1].Other = otherScope(other, d.Scope)
	}
	for f := CeilingsMaxAttempts; f <= RequirementsSuccessGate; f++ {
		v, ok := d.Settings[f]
		w := wider.At(f)
		if !ok || !w.Present() || d.Scope == Global || stricter(f, w.Value, v).Equal(v) {
			continue
		}
		add(f, v, w.Origin, "may only be stricter than "+w.Value.String(), "delete it, or set "+stricter(f, w.Value, v).String())
	}
	for _, cl := range ceilings {
		v, ok := d.Settings[cl.field]
		if bound := here.At(cl.bound); ok && v.Int > bound.Value.Int {
			add(cl.field, v, bound.Origin, "at most "+bound.Value.String(), "lower it; a ceiling of a wider scope cannot be passed")
		}
	}
	if v, ok := d.Settings[BackoffJitter]; ok {
		if allowed := here.At(RequirementsJitter); allowed.Present() && !allowed.Value.Has(v.Text) {
			add(BackoffJitter, v, allowed.Origin, "must be one of "+strings.Join(allowed.Value.Set, ", "), "")
		}
	}
	if v, ok := d.Settings[BudgetSuccessGateEnabled]; ok && !v.True() {
		if gate := here.At(RequirementsSuccessGate); gate.Value.True() {
			add(BudgetSuccessGateEnabled, v, gate.Origin, "the success gate may not be switched off", "delete the line")
		}
	}
	return c.found
}

func boundName(f Field, o Origin) string {
	word := "ceiling"
	if f == BackoffJitter || f == BudgetSuccessGateEnabled || f == RequirementsJitter || f == RequirementsSuccessGate {
		word = "requirement"
	}
	if o.From == BuiltIn {
		return "built-in " + word
	}
	return fmt.Sprintf("%s of %s", word, o.From)
}

// otherScope returns the scope of a document behind an origin, "" if there is none or it is
// the one at hand.
func otherScope(o Origin, here Scope) Scope {
	if o.From == BuiltIn || o.From == string(here) {
		return ""
	}
	return Scope(o.From)
}

// ValidateMerged returns the pairs of values from different documents that do not fit: the
// part of ValidateEffective that a change of any document on the path can break. The more
// specific of the two documents is named as the one that breaks the rule.
func ValidateMerged(e Effective) []Violation {
	var found []Violation
	for _, p := range pairs {
		low, high := e.At(p.low), e.At(p.high)
		if !low.Present() || !high.Present() || low.From == high.From || !p.broken(low.Value, high.Value) || p.idle(e) {
			continue
		}
		c := checker{scope: Scope(low.From)}
		at, other := low.Origin, high.Origin
		f, v, rule, fix := p.low, low.Value, p.rule(high.Value)+" ("+high.From+")", "lower it, or set "+p.high.Path()+" here too"
		if low.From == BuiltIn || high.From != BuiltIn && Scope(high.From).Level() > Scope(low.From).Level() {
			at, other = other, at
			f, v = p.high, high.Value
			rule = fmt.Sprintf("must be at least %s, %s (%s)", p.low.Path(), low.Value, low.From)
			if p.strict {
				rule = fmt.Sprintf("must be above %s, %s (%s)", p.low.Path(), low.Value, low.From)
			}
			fix = "raise it, or set " + p.low.Path() + " here too"
		}
		c.scope = Scope(at.From)
		c.add(f, v, rule, fix)
		c.found[0].Other = otherScope(other, c.scope)
		found = append(found, c.found...)
	}
	return found
}

// idle reports whether the pair is of a block that is off.
func (p pair) idle(e Effective) bool {
	s, ok := p.low.SwitchOf()
	return ok && !e.Value(s).True()
}
