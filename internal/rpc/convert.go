// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

// duration reads a duration; absent is 0.
func duration(path string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fault.Wrap(err, fault.Invalid, "invalid_document", path)
	}
	// Beyond 292 years it saturates, which every rule refuses.
	return d.AsDuration(), nil
}

func counts(m map[string]int) map[string]int64 {
	out := make(map[string]int64, len(m))
	for key, n := range m {
		out[key] = int64(n)
	}
	return out
}

func progressProto(p admin.Progress) *policydv1.Progress {
	return &policydv1.Progress{
		Target: int64(p.Target), InForce: int64(p.InForce), Behind: int64(p.Behind),
		Rejected: int64(p.Rejected), Stale: int64(p.Stale), SilentPeers: int64(p.Silent),
	}
}

func policyStatusProto(st *admin.PolicyStatus) *policydv1.VersionedPolicy {
	return &policydv1.VersionedPolicy{
		Policy: wire.PolicyProto(st.Policy), Revision: int64(st.Policy.Revision), Progress: progressProto(st.Progress),
	}
}

var changeKinds = map[admin.ChangeKind]policydv1.ChangeKind{ //nolint:gochecknoglobals // a table
	admin.Created:   policydv1.ChangeKind_CHANGE_KIND_CREATED,
	admin.Changed:   policydv1.ChangeKind_CHANGE_KIND_CHANGED,
	admin.Unchanged: policydv1.ChangeKind_CHANGE_KIND_UNCHANGED,
	admin.Deleted:   policydv1.ChangeKind_CHANGE_KIND_DELETED,
}

func changeResultProto(r *admin.ChangeResult) *policydv1.ChangeResult {
	out := &policydv1.ChangeResult{
		Scope: string(r.Scope), Kind: changeKinds[r.Kind],
		Revision: int64(r.Revision), PreviousRevision: int64(r.Previous),
		Endpoints: int64(r.Endpoints), Instances: int64(r.Instances), HiddenBy: r.HiddenBy,
	}
	for _, f := range r.Fields {
		out.Fields = append(out.Fields, &policydv1.FieldChange{Path: f.Path, Before: f.Before, After: f.After})
	}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, &policydv1.Finding{Code: f.Code, Level: string(f.Level), Path: f.Path, Message: f.Message})
	}
	return out
}

func originProto(o admin.Origin) *policydv1.Origin {
	return &policydv1.Origin{From: o.From, Revision: int64(o.Revision), By: wire.ActorProto(o.By), At: sdkwire.Timestamp(o.At)}
}

func effectiveValueProto(v *admin.EffectiveValue) *policydv1.EffectiveValue {
	out := &policydv1.EffectiveValue{
		Path: v.Field.Path(), Value: v.Value.String(), Origin: originProto(v.Origin), Ceiling: v.Ceiling,
	}
	for _, sh := range v.Shadows {
		out.Shadows = append(out.Shadows, &policydv1.ShadowedValue{Value: sh.Value.String(), Origin: originProto(sh.Origin)})
	}
	return out
}

func switchStatusProto(st *admin.SwitchStatus) *policydv1.SwitchStatus {
	return &policydv1.SwitchStatus{
		KillSwitch: wire.SwitchProto(st.Switch), Revision: st.Switch.Revision,
		Progress: progressProto(st.Progress), Left: durationpb.New(st.Left),
	}
}

func switchStatusesProto(all []admin.SwitchStatus) []*policydv1.SwitchStatus {
	out := make([]*policydv1.SwitchStatus, len(all))
	for i := range all {
		out[i] = switchStatusProto(&all[i])
	}
	return out
}

func previewProto(p *admin.SwitchPreview) *policydv1.SwitchPreview {
	return &policydv1.SwitchPreview{
		Instances: int64(p.Instances), Services: counts(p.Services),
		CallsPerSecond: p.CallsPerSecond, StopsPerSecond: p.StopsPerSecond, RescuedShare: p.RescuedShare,
		Unreached: p.Unreached, Overlaps: p.Overlaps,
	}
}

// instanceState reads a filter; unspecified is "".
func instanceState(wanted policydv1.InstanceState) (fleet.State, error) {
	if wanted == policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED {
		return "", nil
	}
	if state, ok := wire.State(wanted); ok {
		return state, nil
	}
	return "", fault.New(fault.Invalid, "state_unknown", "unknown instance state %d", wanted)
}

func instancesProto(all []fleet.Instance) []*policydv1.Instance {
	out := make([]*policydv1.Instance, len(all))
	for i := range all {
		out[i] = wire.InstanceProto(&all[i])
	}
	return out
}

func peersProto(all []fleet.Peer) []*policydv1.PeerStatus {
	out := make([]*policydv1.PeerStatus, len(all))
	for i, p := range all {
		out[i] = &policydv1.PeerStatus{
			Id: p.ID, Address: p.Address, Version: p.Version, StartedAt: sdkwire.Timestamp(p.StartedAt), Silent: p.Silent, Relay: p.Relay,
		}
	}
	return out
}

func silentPeers(all []fleet.Peer) []string {
	var silent []string
	for _, p := range all {
		if p.Silent {
			silent = append(silent, p.Address)
		}
	}
	return silent
}

func trafficProto(t *admin.Traffic) *policydv1.Traffic {
	return &policydv1.Traffic{
		CallsPerSecond: t.Calls, AttemptsPerSecond: t.Attempts, RetriesPerSecond: t.Retries,
		RescuedPerSecond: t.Rescued, RejectedPerSecond: t.Rejected, SuppressedPerSecond: t.Suppressed,
	}
}

func conflictProto(e *policy.ConflictError) *policydv1.Conflict {
	out := &policydv1.Conflict{
		Scope: string(e.Scope), ExpectedRevision: int64(e.Expected), CurrentRevision: int64(e.Current),
		By: wire.ActorProto(e.By), At: sdkwire.Timestamp(e.At),
	}
	if e.Policy != nil {
		out.Current = wire.PolicyProto(e.Policy)
	}
	return out
}
