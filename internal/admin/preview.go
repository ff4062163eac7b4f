// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// SwitchPreview says what a switch would do, from the last reports of the fleet.
type SwitchPreview struct {
	// Instances reached, those without a connection included.
	Instances int
	// Services counts them by the calling service.
	Services map[string]int
	// CallsPerSecond to the endpoints that the switch acts on.
	CallsPerSecond float64
	// StopsPerSecond are the retries (disable-retries, tighten-budget) or calls (force-open)
	// that would no longer go out.
	StopsPerSecond float64
	// RescuedShare of the calls succeeds only on a retry now.
	RescuedShare float64
	// Unreached are instances without a live connection, by name.
	Unreached []string
	// Overlaps are the active switches on overlapping scopes.
	Overlaps []string
}

// An instance reports every 10 s; older reports say nothing about now.
const reportMaxAge = 45 * time.Second

func (s *Service) preview(view *policy.View, sw *policy.Switch, now time.Time) SwitchPreview {
	p := SwitchPreview{Services: make(map[string]int)}
	m := newMerger(view.Policies)
	rescued := 0.0
	for _, in := range s.fleet.Instances(sw.Scope) {
		if in.Gone || !takesPart(sw, &in) {
			continue
		}
		p.Instances++
		p.Services[serviceOf(&in)]++
		if in.State == fleet.Stale {
			p.Unreached = append(p.Unreached, in.ID)
			continue
		}
		for _, r := range ratesOf(&in, now) {
			e := m.at(r.scope)
			if !actsOn(sw, r.scope, e.Criticality) {
				continue
			}
			p.CallsPerSecond += r.calls
			p.StopsPerSecond += stops(sw, &r, e)
			rescued += r.rescued
		}
	}
	if p.CallsPerSecond > 0 {
		p.RescuedShare = min(rescued/p.CallsPerSecond, 1)
	}
	for _, other := range view.Switches {
		if other.ID != sw.ID && other.Phase == policy.PhaseActive && other.Scope.Overlaps(sw.Scope) {
			p.Overlaps = append(p.Overlaps, other.ID)
		}
	}
	slices.Sort(p.Overlaps)
	return p
}

func serviceOf(in *fleet.Instance) string {
	return strings.Trim(in.Namespace+"/"+in.Service, "/")
}

// actsOn leaves instances aside.
func actsOn(sw *policy.Switch, endpoint engine.Scope, crit engine.Criticality) bool {
	whole := sw.Switch
	whole.Drill, whole.Percent = false, allInstances
	return whole.Selects(endpoint, crit, "")
}

// stops estimates what a switch would stop per second on one endpoint of one instance.
func stops(sw *policy.Switch, r *rates, e engine.Effective) float64 {
	switch sw.Action {
	case engine.DisableRetries:
		return r.retries()
	case engine.TightenBudget:
		allowed := e.Value(engine.BudgetMinRetriesPerSecond).Float() + e.Value(engine.BudgetRatio).Float()*r.calls
		return max(0, r.retries()-allowed*float64(sw.Factor)/engine.Million)
	case engine.ForceOpen:
		return r.firsts() * float64(engine.Million-sw.Admit) / engine.Million
	case engine.ForceClosed, engine.DisableHedging:
		return 0
	}
	return 0
}

// rates are one endpoint's report per second.
type rates struct {
	scope                                      engine.Scope
	calls, attempts, failed, rescued, rejected float64
	suppressed                                 map[string]float64
	breaker                                    string
	unmatched                                  bool
}

// firsts are calls that were sent at all.
func (r *rates) firsts() float64 { return max(0, r.calls-r.rejected) }

func (r *rates) retries() float64 { return max(0, r.attempts-r.firsts()) }

// ratesOf reads an instance's last report, if it is not too old. A call that matched no
// endpoint counts at the scope that the instance itself belongs to.
func ratesOf(in *fleet.Instance, now time.Time) []rates {
	if in.Report == nil || in.Report.Period <= 0 || now.Sub(in.ReportedAt) > reportMaxAge {
		return nil
	}
	per := in.Report.Period.Seconds()
	all := make([]rates, 0, len(in.Report.Endpoints))
	for i := range in.Report.Endpoints {
		e := &in.Report.Endpoints[i]
		r := rates{
			scope: engine.Scope(e.Endpoint), breaker: e.Breaker, unmatched: e.Unmatched,
			calls: float64(e.Calls) / per, attempts: float64(e.Attempts) / per, failed: float64(e.Failed) / per,
			rescued: float64(e.Rescued) / per, rejected: float64(e.Rejected) / per,
			suppressed: make(map[string]float64, len(e.Suppressed)),
		}
		for code, n := range e.Suppressed {
			r.suppressed[code] = float64(n) / per
		}
		if _, err := engine.ParseScope(e.Endpoint); err != nil || e.Unmatched {
			r.scope, r.unmatched = ownScope(in), true
		}
		all = append(all, r)
	}
	return all
}

func ownScope(in *fleet.Instance) engine.Scope {
	if scope, err := engine.ParseScope(in.Namespace); err == nil {
		return scope
	}
	return engine.Global
}
