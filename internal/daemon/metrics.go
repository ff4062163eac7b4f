// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"sync/atomic"

	"github.com/policyd/policyd/internal/admin"
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

func samples(st *store.Store, hub *push.Hub, registry *fleet.Registry, _ *admin.Service, backlog *backlog) []telemetry.Sample {
	view, stats, pushed := st.View(), st.Stats(), hub.Stats()
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
		{Name: "policyd_push_streams", Help: "Open watch streams.", Value: float64(pushed.Streams)},
	}
	states := map[fleet.State]int{fleet.Live: 0, fleet.Behind: 0, fleet.Rejected: 0, fleet.Stale: 0}
	for _, in := range registry.Instances(engine.Global) {
		states[in.State]++
	}
	for state, n := range states {
		out = append(out, telemetry.Sample{Name: "policyd_server_instances", Help: "Instances by state.", Value: float64(n), Label: "state", LabelValue: string(state)})
	}
	actions := map[engine.Action]int{}
	for _, a := range engine.Actions() {
		actions[a] = 0
	}
	for _, sw := range view.Switches {
		if sw.Phase == policy.PhaseActive {
			actions[sw.Action]++
		}
	}
	for action, n := range actions {
		out = append(out, telemetry.Sample{Name: "policyd_server_switches", Help: "Active kill switches by action.", Value: float64(n), Label: "action", LabelValue: string(action)})
	}
	return out
}
