// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// changed returns the scopes that the batch writes or deletes.
func (b *batch) changed() []engine.Scope {
	var scopes []engine.Scope
	for i := range b.items {
		if b.items[i].kind() != Unchanged {
			scopes = append(scopes, b.items[i].scope)
		}
	}
	return scopes
}

// validate checks what would result against all rules of documents and sets.
func (b *batch) validate() error {
	changed := b.changed()
	broken := append(policy.ValidateSet(b.view.Policies, b.after, changed), sharedBudgets(b.after, changed)...)
	if len(broken) > 0 {
		return invalid("policy_invalid", broken...)
	}
	return nil
}

// sharedBudgets reports endpoints that set a part of a budget which their service shares
// among all its endpoints.
func sharedBudgets(set policy.Set, changed []engine.Scope) []fault.Violation {
	var found []fault.Violation
	shared := make(map[engine.Scope]engine.Resolved)
	for _, at := range policy.Below(set, changed...) {
		if at.Level() != engine.LevelEndpoint {
			continue
		}
		service := at.Parent()
		r, ok := shared[service]
		if !ok {
			r = policy.Merge(set, service).At(engine.BudgetScope)
			shared[service] = r
		}
		if r.Value.Text != "service" {
			continue
		}
		for _, f := range engine.Fields() {
			if v, sets := set[at].Settings[f]; sets && strings.HasPrefix(f.Path(), "budget.") {
				found = append(found, fault.Violation{
					Scope: string(at), Path: "spec." + f.Path(), Value: v.String(),
					Rule: fmt.Sprintf("the budget is shared by all endpoints of %s (budget.scope: service of %s)", service, r.Origin.From),
					Fix:  "set it at " + string(service) + ", or delete the line",
				})
			}
		}
	}
	return found
}

// A namespace may lose one policy in removalShare without a confirmation.
const removalShare = 5

// checkRemovals asks for a confirmation where a namespace would lose more than 20 % of its
// policies. The rule is the same for one deletion by name and for a prune: who deletes the
// only policy of a namespace confirms it too.
func (b *batch) checkRemovals(confirm string) error {
	had, lost := make(map[string]int), make(map[string]int)
	for scope := range b.view.Policies {
		had[confirmName(scope)]++
	}
	for i := range b.items {
		if it := &b.items[i]; it.after == nil {
			lost[confirmName(it.scope)]++
		}
	}
	var missing []string
	confirmed := strings.Split(confirm, ",")
	for name, n := range lost {
		if n*removalShare > had[name] && !slices.Contains(confirmed, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	name := missing[0]
	return fault.New(fault.Refused, "removal_unconfirmed",
		"this would delete %d of the %d policies of %s, more than 20 %%", lost[name], had[name], name).
		WithHint("If that is meant: --confirm=%s", strings.Join(missing, ","))
}

// confirmName is what an operator types: the namespace, or global for the global policy.
func confirmName(scope engine.Scope) string {
	if scope == engine.Global {
		return string(engine.Global)
	}
	return scope.Namespace()
}

// results describes each document of the batch.
func (s *Service) results(b *batch) []ChangeResult {
	changed := b.changed()
	im := s.impact(b)
	clipped := policy.NewlyClipped(b.view.Policies, b.after, changed)
	results := make([]ChangeResult, len(b.items))
	for i := range b.items {
		it := &b.items[i]
		r := ChangeResult{Scope: it.scope, Kind: it.kind()}
		if it.before != nil {
			r.Previous = it.before.Revision
		}
		if r.Kind == Unchanged {
			r.Revision = r.Previous
		} else {
			r.Fields = policy.Diff(it.before, it.after)
			r.Endpoints, r.Instances = im.of(it.scope)
			r.HiddenBy = hiddenBy(b, it.scope, r.Fields)
			r.Findings = append(clippedBy(clipped, it.scope), lint.Check(b.after, it.scope, im.facts(it.scope))...)
		}
		results[i] = r
	}
	return results
}

// clippedBy says whom the bounds of a document would clip from now on.
func clippedBy(clipped []policy.Clipped, scope engine.Scope) []lint.Finding {
	var found []lint.Finding
	for _, c := range clipped {
		if c.By.From == string(scope) && c.Scope != scope {
			found = append(found, lint.Finding{
				Code: "P101", Level: lint.LevelWarning, Scope: c.Scope, Path: "spec." + c.Field.Path(),
				Message: fmt.Sprintf("%s of %s is clipped from %s to %s", c.Field.Path(), c.Scope, c.Before, c.After),
			})
		}
	}
	return found
}

// impact is what is known of the endpoints and instances below the changed scopes.
type impact struct {
	affected  []engine.Scope // endpoints whose effective policy changes
	instances []reach
}

// reach is one instance with the traffic that it last reported.
type reach struct {
	targets []engine.Scope
	rates   []rates
}

func (s *Service) impact(b *batch) *impact {
	im := &impact{}
	now := time.Now()
	endpoints := make(map[engine.Scope]bool)
	changed := b.changed()
	if len(changed) == 0 {
		return im
	}
	under := func(at engine.Scope) bool {
		return at.Level() == engine.LevelEndpoint &&
			slices.ContainsFunc(changed, func(scope engine.Scope) bool { return scope.Contains(at) })
	}
	for _, set := range []policy.Set{b.view.Policies, b.after} {
		for at := range set {
			if under(at) {
				endpoints[at] = true
			}
		}
	}
	for _, in := range s.fleet.Instances(engine.Global) {
		if in.Gone {
			continue
		}
		r := reach{targets: in.Targets, rates: ratesOf(&in, now)}
		for i := range r.rates {
			if at := r.rates[i].scope; under(at) {
				endpoints[at] = true
			}
		}
		im.instances = append(im.instances, r)
	}
	all := make([]engine.Scope, 0, len(endpoints))
	for at := range endpoints {
		all = append(all, at)
	}
	im.affected = policy.Affected(b.view.Policies, b.after, all)
	return im
}

func (im *impact) of(scope engine.Scope) (endpoints, instances int) {
	for _, at := range im.affected {
		if scope.Contains(at) {
			endpoints++
		}
	}
	for i := range im.instances {
		if overlapsAny(im.instances[i].targets, scope) {
			instances++
		}
	}
	return endpoints, instances
}

func (im *impact) facts(scope engine.Scope) lint.Facts {
	var f lint.Facts
	for i := range im.instances {
		in := &im.instances[i]
		if overlapsAny(in.targets, scope) {
			f.Instances++
		}
		for j := range in.rates {
			if scope.Contains(in.rates[j].scope) {
				f.CallsPerSecond += in.rates[j].calls
			}
		}
	}
	return f
}

// overlapsAny reports whether a document of scope is visible to one who wants targets.
func overlapsAny(targets []engine.Scope, scope engine.Scope) bool {
	return scope == engine.Global || slices.ContainsFunc(targets, scope.Overlaps)
}

// hiddenBy returns the active switches under which a change of fields at scope shows no
// effect yet.
func hiddenBy(b *batch, scope engine.Scope, fields []policy.FieldChange) []string {
	var ids []string
	crit := policy.Merge(b.after, scope).Criticality
	for id, sw := range b.view.Switches {
		if sw.Phase != policy.PhaseActive || sw.Drill || !sw.Scope.Overlaps(scope) {
			continue
		}
		// A switch of a wider scope must act here; a narrower one acts on a part of it.
		if sw.Scope.Contains(scope) && !actsOn(sw, scope, crit) {
			continue
		}
		if slices.ContainsFunc(fields, func(c policy.FieldChange) bool {
			f, ok := engine.FieldByPath(c.Path)
			return ok && hides(sw, f)
		}) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// hides reports whether a switch makes a setting meaningless while it lasts.
func hides(sw *policy.Switch, f engine.Field) bool {
	block, _, _ := strings.Cut(f.Path(), ".")
	retry := slices.Contains([]string{"maxAttempts", "backoff", "retryOn", "retryAfter", "idempotency", "budget"}, block)
	switch sw.Action {
	case engine.DisableRetries:
		return retry
	case engine.TightenBudget:
		return block == "budget"
	case engine.ForceOpen:
		return block == "breaker" || sw.Admit == 0 && (retry || block == "timeouts")
	case engine.ForceClosed:
		return block == "breaker"
	case engine.DisableHedging:
		return block == "hedging"
	}
	return false
}
