// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Effective is a merged policy; Values maps a field path, "backoff.base" for example, to its
// value and origin.
type Effective struct {
	Endpoint string
	Revision int64
	Values   map[string]Value
}

// Value is a setting and where it comes from. The value is a bool, int64, float64, string,
// []string or time.Duration.
type Value struct {
	Value  any
	From   string // "global", "shop", "shop/payments", "built-in", "switch ks-7f3a", "ceiling global"
	Shadow []Shadow
}

// Shadow is a value that a more specific one hides.
type Shadow struct {
	Value any
	From  string
}

// Effective returns the merged policy for an endpoint with the origin of each value, as it
// is now: ceilings and active kill switches included. Settings without a value are absent.
func (c *Client) Effective(endpoint string) Effective {
	s := c.current.Load()
	scope := c.scopeOf(endpoint)
	if e := c.hosts.find(endpoint); e != nil && c.named.find(endpoint) == nil {
		c.mu.Lock()
		scope = e.scope
		c.mu.Unlock()
	}
	merged := s.effective(scope)
	out := Effective{Endpoint: endpoint, Revision: s.revision, Values: map[string]Value{}}
	for _, f := range engine.Fields() {
		r := merged.At(f)
		if !r.Present() {
			continue
		}
		v := Value{Value: plain(r.Value), From: r.From}
		for _, shadow := range r.Shadows {
			v.Shadow = append(v.Shadow, Shadow{Value: plain(shadow.Value), From: shadow.From})
		}
		if r.Clipped != nil {
			v.over(Shadow{Value: plain(*r.Clipped), From: r.From})
			v.From = "ceiling " + r.Ceiling.From
		}
		out.Values[f.Path()] = v
	}
	overlay := engine.Compose(s.switches, scope, merged.Criticality, c.cfg.instance)
	out.switched(overlay.At(time.Now()))
	return out
}

// over puts what v was on top of its shadows.
func (v *Value) over(s Shadow) { v.Shadow = append([]Shadow{s}, v.Shadow...) }

// switched lays what kill switches do over the values. The state of a forced breaker stands
// under breaker.forced; while calls come back, the shares let through stand under
// switch.retries and switch.calls.
func (e *Effective) switched(eff engine.Effects) {
	set := func(path string, value any, by *engine.Switch) {
		v := e.Values[path]
		if v.From != "" {
			v.over(Shadow{Value: v.Value, From: v.From})
		}
		v.Value, v.From = value, "switch "+by.ID
		e.Values[path] = v
	}
	if eff.RetryBy != nil {
		if eff.Retry == 0 {
			set(engine.MaxAttempts.Path(), int64(1), eff.RetryBy)
		} else {
			set("switch.retries", engine.Micro(eff.Retry).Float(), eff.RetryBy)
		}
	}
	if eff.FactorBy != nil {
		for _, f := range []engine.Field{
			engine.BudgetRatio, engine.BudgetMinRetriesPerSecond,
			engine.BudgetTokensCapacity, engine.BudgetTokensRefillPerSecond,
		} {
			if v, ok := e.Values[f.Path()].Value.(float64); ok {
				set(f.Path(), v*engine.Micro(eff.Factor).Float(), eff.FactorBy)
			}
		}
	}
	if eff.FirstBy != nil {
		set("switch.calls", engine.Micro(eff.First).Float(), eff.FirstBy)
		if eff.ForcedOpen {
			set("breaker.forced", "open", eff.FirstBy)
		}
	}
	if eff.ClosedBy != nil {
		set("breaker.forced", "closed", eff.ClosedBy)
	}
	if eff.HedgingBy != nil {
		set(engine.HedgingEnabled.Path(), false, eff.HedgingBy)
	}
}

// plain is a value as Go programs have it.
func plain(v engine.Value) any {
	switch v.Kind {
	case engine.KindBool:
		return v.True()
	case engine.KindInt:
		return v.Int
	case engine.KindDecimal:
		return v.Float()
	case engine.KindDuration:
		return v.Duration()
	case engine.KindSet:
		return append([]string{}, v.Set...)
	default:
		return v.Text
	}
}
