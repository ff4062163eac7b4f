// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// PolicyStatus is a stored policy and who has it in force.
type PolicyStatus struct {
	Policy   *policy.Policy
	Progress Progress
}

// Policy returns the document at a scope.
func (s *Service) Policy(ctx context.Context, scope engine.Scope) (PolicyStatus, error) {
	if err := checkScope(scope); err != nil {
		return PolicyStatus{}, err
	}
	view := s.store.View()
	p, ok := view.Policies[scope]
	if !ok {
		err := fault.New(fault.NotFound, "policy_not_found", "there is no policy at %s", scope)
		if near := nearest(view, scope); len(near) > 0 {
			return PolicyStatus{}, err.WithHint("There is one at %s.", strings.Join(near, ", "))
		}
		return PolicyStatus{}, err.WithHint("What applies there is inherited; see effective %s.", scope)
	}
	others := s.ask(ctx)
	return PolicyStatus{Policy: p, Progress: s.policyProgress(p).heard(others)}, nil
}

// nearest returns a few scopes with policies that the caller may have meant.
func nearest(view *policy.View, scope engine.Scope) []string {
	last := string(scope[strings.LastIndexByte(string(scope), '/')+1:])
	var near []string
	for have := range view.Policies {
		if scope.Contains(have) || strings.HasSuffix(string(have), "/"+last) {
			near = append(near, string(have))
		}
	}
	slices.Sort(near)
	return near[:min(len(near), 5)]
}

// Policies lists the documents at scope and below it ("": all) that carry all of labels,
// sorted by scope.
func (s *Service) Policies(ctx context.Context, scope engine.Scope, labels map[string]string) (policy.Revision, []PolicyStatus, error) {
	if err := checkScopeFilter(scope); err != nil {
		return 0, nil, err
	}
	view := s.store.View()
	var found []*policy.Policy
	for at, p := range view.Policies {
		if (scope == "" || scope.Contains(at)) && hasLabels(p, labels) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *policy.Policy) int { return strings.Compare(string(a.Scope), string(b.Scope)) })
	others := s.ask(ctx)
	counts := s.policyProgresses(found)
	statuses := make([]PolicyStatus, len(found))
	for i, p := range found {
		statuses[i] = PolicyStatus{Policy: p, Progress: counts[i].heard(others)}
	}
	return view.Revision, statuses, nil
}

func hasLabels(p *policy.Policy, labels map[string]string) bool {
	for key, want := range labels {
		if have, ok := p.Metadata.Labels[key]; !ok || have != want {
			return false
		}
	}
	return true
}

// merger merges at many scopes of one set of policies and remembers the results. Not safe
// for concurrent use.
type merger struct {
	policies policy.Set
	merged   map[engine.Scope]engine.Effective
}

func newMerger(policies policy.Set) *merger {
	return &merger{policies: policies, merged: make(map[engine.Scope]engine.Effective)}
}

func (m *merger) at(scope engine.Scope) engine.Effective {
	if e, ok := m.merged[scope]; ok {
		return e
	}
	e := policy.Merge(m.policies, scope)
	m.merged[scope] = e
	return e
}

func (s *Service) policyProgress(p *policy.Policy) Progress {
	return policyConcern(p).report(s.fleet.Instances(p.Scope), 0).Progress
}

// policyProgresses looks at the fleet once for many policies.
func (s *Service) policyProgresses(policies []*policy.Policy) []Progress {
	counts := make([]Progress, len(policies))
	groups := cohorts(s.fleet.Instances(engine.Global))
	for i, p := range policies {
		counts[i] = policyConcern(p).progress(groups)
	}
	return counts
}

// Instance returns one instance of the fleet.
func (s *Service) Instance(ctx context.Context, id string) (fleet.Instance, error) {
	s.ask(ctx)
	in, ok := s.fleet.Instance(id)
	if !ok {
		return fleet.Instance{}, fault.New(fault.NotFound, "instance_not_found", "no instance %s is known", clip(id)).
			WithHint("Instances are forgotten an hour after they were last seen.")
	}
	return in, nil
}

// InstanceFilter selects instances; the zero value selects all.
type InstanceFilter struct {
	// Scope that reaches them.
	Scope engine.Scope
	// Service is "namespace/service" of the instance itself.
	Service    string
	State      fleet.State
	NotInForce bool
}

// InstanceList is what a filter selects, sorted by id.
type InstanceList struct {
	Revision  policy.Revision
	Instances []fleet.Instance
	// Peers are the other replicas; the instances of those that are silent are missing.
	Peers []fleet.Peer
}

// Instances lists instances.
func (s *Service) Instances(ctx context.Context, f InstanceFilter) (InstanceList, error) {
	if err := checkScopeFilter(f.Scope); err != nil {
		return InstanceList{}, err
	}
	others := s.ask(ctx)
	all := s.fleet.Instances(f.Scope)
	kept := slices.DeleteFunc(all, func(in fleet.Instance) bool {
		return f.Service != "" && serviceOf(&in) != f.Service ||
			f.State != "" && in.State != f.State ||
			f.NotInForce && in.State == fleet.Live
	})
	return InstanceList{Revision: s.store.View().Revision, Instances: kept, Peers: others}, nil
}
