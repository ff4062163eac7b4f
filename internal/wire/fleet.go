// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

var instanceStates = map[fleet.State]policydv1.InstanceState{ //nolint:gochecknoglobals // a table
	fleet.Live:     policydv1.InstanceState_INSTANCE_STATE_LIVE,
	fleet.Behind:   policydv1.InstanceState_INSTANCE_STATE_BEHIND,
	fleet.Rejected: policydv1.InstanceState_INSTANCE_STATE_REJECTED,
	fleet.Stale:    policydv1.InstanceState_INSTANCE_STATE_STALE,
}

// State returns the state that a number stands for.
func State(number policydv1.InstanceState) (fleet.State, bool) {
	for state, n := range instanceStates {
		if n == number {
			return state, true
		}
	}
	return "", false
}

// StateProto returns the number of a state.
func StateProto(state fleet.State) policydv1.InstanceState { return instanceStates[state] }

var modes = map[string]policydv1.Mode{ //nolint:gochecknoglobals // a table
	"enforce": policydv1.Mode_MODE_ENFORCE,
	"observe": policydv1.Mode_MODE_OBSERVE,
	"off":     policydv1.Mode_MODE_OFF,
}

// InstanceProto returns the message of an instance, without its report.
func InstanceProto(in *fleet.Instance) *policydv1.Instance {
	out := &policydv1.Instance{
		Id: in.ID, Namespace: in.Namespace, Service: in.Service, SdkLanguage: in.SDKLanguage, SdkVersion: in.SDKVersion,
		Mode: modes[in.Mode], State: instanceStates[in.State], Since: sdkwire.Timestamp(in.Since),
		Revision: in.Revision, WantedRevision: in.Wanted, ConnectedAt: sdkwire.Timestamp(in.ConnectedAt),
		LastSeen: sdkwire.Timestamp(in.LastSeen), Source: in.Source, Resumed: in.Resumed,
	}
	for _, target := range in.Targets {
		out.Targets = append(out.Targets, string(target))
	}
	for _, r := range in.Rejected {
		out.Rejected = append(out.Rejected, &policydv1.Rejection{Scope: r.Scope, Revision: r.Revision, Field: r.Field, Reason: r.Reason})
	}
	return out
}

// Instance is the opposite of InstanceProto. What a message cannot say is left zero.
func Instance(m *policydv1.Instance) fleet.Instance {
	in := fleet.Instance{
		Identity: fleet.Identity{
			ID: m.GetId(), Namespace: m.GetNamespace(), Service: m.GetService(),
			SDKLanguage: m.GetSdkLanguage(), SDKVersion: m.GetSdkVersion(), Source: m.GetSource(),
		},
		State: fleet.Stale, Since: sdkwire.Time(m.GetSince()), Revision: m.GetRevision(), Wanted: m.GetWantedRevision(),
		ConnectedAt: sdkwire.Time(m.GetConnectedAt()), LastSeen: sdkwire.Time(m.GetLastSeen()), Resumed: m.GetResumed(),
	}
	if state, ok := State(m.GetState()); ok {
		in.State = state
	}
	for mode, number := range modes {
		if number == m.GetMode() {
			in.Mode = mode
		}
	}
	for _, target := range m.GetTargets() {
		in.Targets = append(in.Targets, engine.Scope(target))
	}
	for _, r := range m.GetRejected() {
		in.Rejected = append(in.Rejected, fleet.Rejection{
			Scope: r.GetScope(), Revision: r.GetRevision(), Field: r.GetField(), Reason: r.GetReason(),
		})
	}
	return in
}

// ReportProto returns the message of a report.
func ReportProto(r *fleet.Report) *policydv1.Report {
	out := &policydv1.Report{Period: durationpb.New(r.Period)}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		out.Endpoints = append(out.Endpoints, &policydv1.EndpointReport{
			Endpoint: e.Endpoint, Calls: e.Calls, Attempts: e.Attempts, Failed: e.Failed, Rescued: e.Rescued,
			Rejected: e.Rejected, Suppressed: e.Suppressed, Breaker: e.Breaker, BudgetLeft: e.BudgetLeft, Unmatched: e.Unmatched,
		})
	}
	return out
}

// Report is the opposite of ReportProto.
func Report(m *policydv1.Report) *fleet.Report {
	r := &fleet.Report{Period: m.GetPeriod().AsDuration(), Endpoints: make([]fleet.EndpointReport, 0, len(m.GetEndpoints()))}
	for _, e := range m.GetEndpoints() {
		r.Endpoints = append(r.Endpoints, fleet.EndpointReport{
			Endpoint: e.GetEndpoint(), Calls: e.GetCalls(), Attempts: e.GetAttempts(), Failed: e.GetFailed(),
			Rescued: e.GetRescued(), Rejected: e.GetRejected(), Suppressed: e.GetSuppressed(),
			Breaker: e.GetBreaker(), BudgetLeft: e.GetBudgetLeft(), Unmatched: e.GetUnmatched(),
		})
	}
	return r
}
