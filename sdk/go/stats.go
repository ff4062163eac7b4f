// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"slices"

	"github.com/policyd/policyd/sdk/go/engine"
)

// EndpointStats is what a client has counted for one target of calls, and the state of its
// breaker and budget. Counts grow from its first call on; they start anew when an endpoint
// that was not used for long had to go for others.
type EndpointStats struct {
	Endpoint string
	// Unmatched: no policy and no route names it; Endpoint is its host, or its service.
	Unmatched bool
	// Queued are the calls that wait in queues of package policyqueue to be sent later.
	Queued int
	engine.Stats
	// Fallbacks are the calls counted under Failed that a fallback answered: that of [DoOr],
	// a value of [LastGood], or [StaticFallback]. RejectedFallbacks are those of Rejected.
	Fallbacks, RejectedFallbacks uint64
}

// Suppressed is the number of retries, and refused calls, that c prevented; where the policy is
// observed only, of those that it would have prevented.
func (s *EndpointStats) Suppressed(c Code) uint64 { return s.Stats.Suppressed(engine.Code(c)) }

// Endpoints returns the counts of every endpoint in use, by name. It costs the calls in progress
// nothing and is meant for metrics: call it as often as those are read, not per call.
func (c *Client) Endpoints() []EndpointStats {
	now := c.now()
	endpoints := slices.Concat(c.snapshotOf(c.named), c.snapshotOf(c.hosts))
	all := make([]EndpointStats, len(endpoints))
	for i, e := range endpoints {
		stats := e.Endpoint.Stats(now)
		c.breakerTurned(e, stats.Change)
		stats.Change = nil // told
		all[i] = EndpointStats{Endpoint: e.name, Unmatched: e.unmatched, Queued: c.queues.kept(e), Stats: stats, Fallbacks: e.fellBack.Load(), RejectedFallbacks: e.fellBackRefused.Load()}
	}
	slices.SortStableFunc(all, func(a, b EndpointStats) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	return all
}

// snapshotOf returns the endpoints of a table.
func (c *Client) snapshotOf(t *table) []*endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.all()
}
