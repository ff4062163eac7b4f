// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Status is everything at a glance.
type Status struct {
	Revision   policy.Revision
	Epoch      policy.Epoch
	ServerTime time.Time
	// StoreStale: the view is older than it should be, as of StoreAsOf; writes may fail.
	StoreStale bool
	StoreAsOf  time.Time
	Switches   []SwitchStatus
	Fleet      Progress
	Traffic    Traffic
	Breakers   []BreakerSummary
	Version    string
	// Peers are the other replicas of policyd, and relays.
	Peers []fleet.Peer
	// Backlog counts the records that wait for the audit log.
	Backlog int64
	// RelayOf is the address that a relay follows; "": this policyd has a store.
	RelayOf string
}

// Traffic sums the last reports, per second.
type Traffic struct {
	Calls, Attempts, Retries, Rescued, Rejected float64
	Suppressed                                  map[string]float64
}

// BreakerSummary counts the instances by the state of one endpoint's breaker.
type BreakerSummary struct {
	Endpoint string
	States   map[string]int
}

// Status returns what is going on at a scope and below it; "": everywhere.
func (s *Service) Status(ctx context.Context, scope engine.Scope) (*Status, error) {
	if err := checkScopeFilter(scope); err != nil {
		return nil, err
	}
	if scope == "" {
		scope = engine.Global
	}
	others := s.ask(ctx)
	view, now := s.store.View(), time.Now()
	st := &Status{
		Revision: view.Revision, Epoch: view.Epoch, ServerTime: now,
		StoreStale: view.Stale, StoreAsOf: view.AsOf, Version: s.version, Peers: others,
		Traffic: Traffic{Suppressed: make(map[string]float64)},
	}
	if s.relayOf != nil {
		st.RelayOf = s.relayOf()
	}
	if s.backlog != nil {
		st.Backlog = s.backlog()
	}
	var active []*policy.Switch
	for _, sw := range view.Switches {
		if sw.Scope.Overlaps(scope) {
			active = append(active, sw)
		}
	}
	slices.SortFunc(active, bySwitchEnd)
	st.Switches = s.switchStatuses(active, others, now)
	breakers := make(map[string]map[string]int)
	for _, in := range s.fleet.Instances(scope) {
		if in.Gone {
			continue
		}
		st.Fleet.count(in.State, 1)
		if in.State == fleet.Stale {
			continue
		}
		for _, r := range ratesOf(&in, now) {
			if scope.Contains(r.scope) {
				st.Traffic.add(&r)
				noteBreaker(breakers, &r)
			}
		}
	}
	st.Fleet = st.Fleet.heard(others)
	for endpoint, states := range breakers {
		st.Breakers = append(st.Breakers, BreakerSummary{Endpoint: endpoint, States: states})
	}
	slices.SortFunc(st.Breakers, func(a, b BreakerSummary) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	return st, nil
}

func (t *Traffic) add(r *rates) {
	t.Calls += r.calls
	t.Attempts += r.attempts
	t.Retries += r.retries()
	t.Rescued += r.rescued
	t.Rejected += r.rejected
	for code, n := range r.suppressed {
		t.Suppressed[code] += n
	}
}

func noteBreaker(breakers map[string]map[string]int, r *rates) {
	if r.breaker == "" || r.unmatched {
		return
	}
	states, ok := breakers[string(r.scope)]
	if !ok {
		states = make(map[string]int)
		breakers[string(r.scope)] = states
	}
	states[r.breaker]++
}
