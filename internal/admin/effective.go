// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Origin says where a value comes from: "built-in", a scope, or "switch ID". Revision, By
// and At are those of the document or switch.
type Origin struct {
	From     string
	Revision policy.Revision
	By       policy.Actor
	At       time.Time
}

// EffectiveValue is one setting at a scope.
type EffectiveValue struct {
	Field  engine.Field
	Value  engine.Value
	Origin Origin
	// Shadows are the values that this one hides, nearest first.
	Shadows []ShadowedValue
	// Ceiling is the scope of the ceiling that clipped the value, "" if none did. Then Origin
	// is of the document that asked for more, and its value the first of Shadows.
	Ceiling string
}

// ShadowedValue is a value that another one hides.
type ShadowedValue struct {
	Value  engine.Value
	Origin Origin
}

// EffectivePolicy is what applies at a scope now: merged documents, ceilings, then active
// switches.
type EffectivePolicy struct {
	Revision policy.Revision
	Scope    engine.Scope
	// Values in the order of documents; settings without a value are left out.
	Values []EffectiveValue
	// Switches that act on the whole scope, strictest first.
	Switches []*policy.Switch
	Progress Progress
}

// Effective returns what applies at a scope, whether or not it has a document of its own.
func (s *Service) Effective(ctx context.Context, scope engine.Scope) (*EffectivePolicy, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	view, now := s.store.View(), time.Now()
	merged := policy.Merge(view.Policies, scope)
	out := &EffectivePolicy{Revision: view.Revision, Scope: scope}
	for _, f := range engine.Fields() {
		r := merged.At(f)
		if !r.Present() {
			continue
		}
		v := EffectiveValue{Field: f, Value: r.Value, Origin: originOf(view, r.Origin), Ceiling: r.Ceiling.From}
		if r.Clipped != nil {
			v.Shadows = append(v.Shadows, ShadowedValue{*r.Clipped, v.Origin})
		}
		for _, sh := range r.Shadows {
			v.Shadows = append(v.Shadows, ShadowedValue{sh.Value, originOf(view, sh.Origin)})
		}
		out.Values = append(out.Values, v)
	}
	out.overlay(view, merged.Criticality, now)
	others := s.ask(ctx)
	out.Progress = s.effectiveProgress(view, out).heard(others)
	return out, nil
}

func originOf(view *policy.View, o engine.Origin) Origin {
	from := Origin{From: o.From, Revision: policy.Revision(o.Revision)}
	if p, ok := view.Policies[engine.Scope(o.From)]; ok && int64(p.Revision) == o.Revision {
		from.By, from.At = p.Metadata.UpdatedBy, p.Metadata.UpdatedAt
	}
	return from
}

// overlay lays the active switches over the merged values. A switch for some instances
// only is listed, but its effect differs by instance, so that no value shows it.
func (e *EffectivePolicy) overlay(view *policy.View, crit engine.Criticality, now time.Time) {
	var acting []engine.Switch
	for _, sw := range view.Switches {
		if !actsOn(sw, e.Scope, crit) || sw.Phase != policy.PhaseActive || !now.Before(sw.Ends) {
			continue
		}
		e.Switches = append(e.Switches, sw)
		if sw.Percent == allInstances && !sw.Drill {
			acting = append(acting, sw.Switch)
		}
	}
	slices.SortFunc(e.Switches, byStrictness)
	composed := engine.Compose(acting, e.Scope, crit, "")
	effects := composed.At(now)
	override := func(f engine.Field, by *engine.Switch, value func(engine.Value) engine.Value) {
		if by == nil {
			return
		}
		sw := view.Switches[by.ID]
		origin := Origin{From: "switch " + sw.ID, Revision: policy.Revision(sw.Revision), By: sw.CreatedBy, At: sw.CreatedAt}
		for i := range e.Values {
			if v := &e.Values[i]; v.Field == f {
				v.Shadows = slices.Insert(v.Shadows, 0, ShadowedValue{v.Value, v.Origin})
				v.Value, v.Origin = value(v.Value), origin
			}
		}
	}
	fixed := func(v engine.Value) func(engine.Value) engine.Value {
		return func(engine.Value) engine.Value { return v }
	}
	scaled := func(v engine.Value) engine.Value {
		return engine.Micro(scale(v.Int, effects.Factor))
	}
	override(engine.MaxAttempts, effects.RetryBy, fixed(engine.Int(1)))
	for _, f := range []engine.Field{
		engine.BudgetRatio, engine.BudgetMinRetriesPerSecond, engine.BudgetTokensCapacity, engine.BudgetTokensRefillPerSecond,
	} {
		override(f, effects.FactorBy, scaled)
	}
	switch {
	case effects.ForcedOpen:
		word := "forced-open"
		if effects.First > 0 {
			word += ", admits " + engine.Micro(effects.First).String()
		}
		override(engine.BreakerEnabled, effects.FirstBy, fixed(engine.Text(word)))
	case effects.ForcedClosed:
		override(engine.BreakerEnabled, effects.ClosedBy, fixed(engine.Text("forced-closed")))
	}
	override(engine.HedgingEnabled, effects.HedgingBy, fixed(engine.Bool(false)))
}

// scale multiplies two numbers in millionths.
func scale(n, factor int64) int64 {
	const million = engine.Million
	return n/million*factor + n%million*factor/million
}

// byStrictness orders the actions by what they leave: force-open first, force-closed last.
func byStrictness(a, b *policy.Switch) int {
	rank := func(sw *policy.Switch) int64 {
		switch sw.Action {
		case engine.ForceOpen:
			return sw.Admit
		case engine.DisableRetries:
			return 2 * engine.Million
		case engine.TightenBudget:
			return 3*engine.Million + sw.Factor
		case engine.DisableHedging:
			return 5 * engine.Million
		case engine.ForceClosed:
			return 6 * engine.Million
		}
		return 7 * engine.Million
	}
	if ra, rb := rank(a), rank(b); ra != rb {
		return int(min(max(ra-rb, -1), 1))
	}
	return strings.Compare(a.ID, b.ID)
}

// effectiveProgress counts who has the newest of what applies at the scope.
func (s *Service) effectiveProgress(view *policy.View, e *EffectivePolicy) Progress {
	c := &concern{scopes: []engine.Scope{e.Scope}, documents: make(map[string]policy.Revision)}
	for _, at := range e.Scope.Path() {
		if p, ok := view.Policies[at]; ok {
			c.revision = max(c.revision, p.Revision)
			c.documents[string(at)] = p.Revision
		}
	}
	for _, sw := range e.Switches {
		c.revision = max(c.revision, policy.Revision(sw.Revision))
		c.documents[sw.ID] = policy.Revision(sw.Revision)
	}
	return c.report(s.fleet.Instances(e.Scope), 0).Progress
}
