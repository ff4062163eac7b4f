// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/telemetry"
	"github.com/policyd/policyd/sdk/go/engine"
)

// backlog is how many records wait in the outbox, counted now and then: a status or a scrape
// must not wait for the store.
type backlog struct {
	store *store.Store
	n     atomic.Int64
}

func (b *backlog) load() int64 { return b.n.Load() }

func (b *backlog) refresh(ctx context.Context) {
	if n, err := b.store.OutboxCount(ctx); err == nil {
		b.n.Store(n)
	}
}

func samples(st *store.Store, hub *push.Hub, registry *fleet.Registry, backlog *backlog) []telemetry.Sample {
	view, stats := st.View(), st.Stats()
	stale := 0.0
	if view.Stale {
		stale = 1
	}
	out := []telemetry.Sample{
		{Name: "policyd_store_revision", Help: "Revision of the view.", Value: float64(view.Revision)},
		{Name: "policyd_store_stale", Help: "1 while the view of the store may be out of date.", Value: stale},
		{Name: "policyd_store_policies", Help: "Policies in the view.", Value: float64(len(view.Policies))},
		{Name: "policyd_store_relists_total", Help: "Times the whole store was read; 1 in health.", Value: float64(stats.Relists), Counter: true},
		{Name: "policyd_store_drift_total", Help: "Documents that the comparison with the store had to repair; 0 in health.", Value: float64(stats.Drift), Counter: true},
		{Name: "policyd_store_unreadable", Help: "Values in the store that cannot be decoded.", Value: float64(stats.Unreadable)},
		{Name: "policyd_outbox_entries", Help: "Audit records that wait in the store.", Value: float64(backlog.load())},
		{Name: "policyd_outbox_dropped_total", Help: "Audit records dropped because too many waited.", Value: float64(stats.OutboxDropped), Counter: true},
	}
	return slices.Concat(out, pushSamples(hub, registry), switchSamples(view))
}

// pushSamples are those of the streams that are served.
func pushSamples(hub *push.Hub, registry *fleet.Registry) []telemetry.Sample {
	pushed := hub.Stats()
	out := []telemetry.Sample{
		{Name: "policyd_push_streams", Help: "Open watch streams.", Value: float64(pushed.Streams)},
		{Name: "policyd_push_refused_total", Help: "Watch streams turned away by the limits on their number and rate.", Value: float64(pushed.Refused), Counter: true},
		{Name: "policyd_push_cut_off_total", Help: "Watch streams ended because they confirmed nothing.", Value: float64(pushed.CutOff), Counter: true},
	}
	out = append(out, telemetry.Sample{
		Name: "policyd_server_propagation_seconds", Help: "Time from a change seen in the store to an instance's confirmation.",
		Histogram: histogramOf(pushed.Propagation),
	})
	// Those of this replica: the sum over replicas is the fleet.
	for state, n := range registry.LocalStates() {
		out = append(out, telemetry.Sample{
			Name: "policyd_server_instances", Help: "Instances of this replica by state.", Value: float64(n),
			Labels: []telemetry.Label{{Name: "state", Value: string(state)}},
		})
	}
	return out
}

// switchSamples counts the active switches. Series stay when they fall to zero.
func switchSamples(view *policy.View) []telemetry.Sample {
	type kind struct {
		action engine.Action
		level  engine.Level
	}
	active := map[kind]int{}
	for _, sw := range view.Switches {
		if sw.Phase == policy.PhaseActive {
			active[kind{sw.Action, sw.Scope.Level()}]++
		}
	}
	var out []telemetry.Sample
	for _, action := range engine.Actions() {
		for level := engine.LevelGlobal; level <= engine.LevelEndpoint; level++ {
			out = append(out, telemetry.Sample{
				Name: "policyd_server_switches", Help: "Active kill switches by action and kind of scope.",
				Value:  float64(active[kind{action, level}]),
				Labels: []telemetry.Label{{Name: "action", Value: string(action)}, {Name: "scope_kind", Value: level.String()}},
			})
		}
	}
	return out
}

func histogramOf(h push.Histogram) *telemetry.Histogram {
	out := &telemetry.Histogram{Buckets: make(map[float64]uint64, len(h.Bounds)), Sum: h.Sum.Seconds()}
	for i, n := range h.Buckets {
		out.Count += uint64(n)
		if i < len(h.Bounds) {
			out.Buckets[h.Bounds[i].Seconds()] = out.Count
		}
	}
	return out
}
