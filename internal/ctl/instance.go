// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func newInstanceCmd(a *app) *cobra.Command {
	show := &cobra.Command{
		Use:               "show ID",
		Short:             "What an instance obeys and reported last",
		Example:           "  policyctl instance show checkout-api-7c9f-x2",
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showInstance(cmd.Context(), args[0])
		},
	}
	return group("instance", "Look at one instance", show)
}

type endpointView struct {
	Endpoint   string           `json:"endpoint"`
	Calls      int64            `json:"calls"`
	Attempts   int64            `json:"attempts"`
	Failed     int64            `json:"failed"`
	Rescued    int64            `json:"rescued"`
	Rejected   int64            `json:"rejected"`
	Suppressed map[string]int64 `json:"suppressed,omitempty"`
	Breaker    string           `json:"breaker,omitempty"`
	BudgetLeft int64            `json:"budgetLeft"`
	Unmatched  bool             `json:"unmatched,omitempty"`
}

type instanceDetail struct {
	envelope
	instanceView
	ReportedAt *time.Time     `json:"reportedAt,omitempty"`
	Period     string         `json:"period,omitempty"`
	Endpoints  []endpointView `json:"endpoints"`
}

func (a *app) showInstance(ctx context.Context, id string) error {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetInstance, &policydv1.GetInstanceRequest{Id: id})
	if err != nil {
		return err
	}
	v := instanceDetail{
		envelope: kind("Instance"), instanceView: viewInstance(resp.GetInstance()),
		ReportedAt: timeView(resp.GetReportedAt()), Endpoints: []endpointView{},
	}
	if p := resp.GetReport().GetPeriod(); p != nil {
		v.Period = shortDuration(p.AsDuration())
	}
	for _, e := range resp.GetReport().GetEndpoints() {
		v.Endpoints = append(v.Endpoints, endpointView{
			e.GetEndpoint(), e.GetCalls(), e.GetAttempts(), e.GetFailed(), e.GetRescued(), e.GetRejected(),
			e.GetSuppressed(), e.GetBreaker(), e.GetBudgetLeft(), e.GetUnmatched(),
		})
	}
	return a.result(id, v, func() { a.printInstance(resp, &v) })
}

func (a *app) printInstance(resp *policydv1.GetInstanceResponse, v *instanceDetail) {
	in := resp.GetInstance()
	state := a.paintState(in.GetState())
	if in.GetSince() != nil {
		state += " for " + a.ago(in.GetSince().AsTime())
	}
	rows := [][]string{
		{"instance", clean(in.GetId())},
		{"service", orDash(serviceName(in))},
		{"sdk", orDash(sdkName(in))},
		{"state", state},
		{"revision", fmt.Sprintf("%d of %d", in.GetRevision(), in.GetWantedRevision())},
		{"mode", orDash(v.Mode)},
		{"targets", orDash(strings.Join(in.GetTargets(), ", "))},
		{"started from", orDash(in.GetSource())},
	}
	if in.GetLastSeen() != nil && in.GetState() == policydv1.InstanceState_INSTANCE_STATE_STALE {
		rows = append(rows, []string{"last seen", a.ago(in.GetLastSeen().AsTime()) + " ago"})
	}
	for _, line := range align(rows) {
		a.out.printf("%s\n", line)
	}
	for _, r := range in.GetRejected() {
		a.out.printf("%s %s revision %d: %s: %s\n", a.out.red("rejected"), clean(r.GetScope()), r.GetRevision(), clean(r.GetField()), clean(r.GetReason()))
	}
	if resp.GetReport() == nil {
		a.out.printf("\nno report yet\n")
		return
	}
	a.out.printf("\nreported %s ago, over %s\n", a.ago(resp.GetReportedAt().AsTime()), orDash(v.Period))
	l := &list{columns: cols("ENDPOINT", "CALLS", "ATTEMPTS", "FAILED", "RESCUED", "REJECTED", "BREAKER", "BUDGET LEFT", "SUPPRESSED")}
	for _, e := range v.Endpoints {
		l.items = append(l.items, item{cells: []string{
			clean(e.Endpoint), count(e.Calls), count(e.Attempts), count(e.Failed), count(e.Rescued), count(e.Rejected),
			orDash(e.Breaker), count(e.BudgetLeft), suppressedText(e.Suppressed),
		}})
	}
	a.printTable(l)
}

func suppressedText(by map[string]int64) string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(by)) {
		if by[code] > 0 {
			parts = append(parts, count(by[code])+" "+clean(code))
		}
	}
	return orDash(strings.Join(parts, ", "))
}
