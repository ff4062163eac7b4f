// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type switchListOptions struct {
	active, ended, all bool
	within             time.Duration
	incident           string
	scope              engine.Scope
	watch              bool
}

func newSwitchListCmd(a *app) *cobra.Command {
	o := &switchListOptions{}
	cmd := &cobra.Command{
		Use:   "list [SCOPE]",
		Short: "Kill switches that are active, or ended lately",
		Example: `  policyctl switch list
  policyctl switch list --within 10m -o name`,
		Args:              maxArgs(1),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.scope, err = optionalScope(args); err != nil {
				return err
			}
			if o.active && (o.ended || o.all) || o.ended && o.all {
				return usagef("--active, --ended and --all exclude each other")
			}
			return a.once(cmd.Context(), o.watch, func(ctx context.Context) (*list, error) { return a.switches(ctx, o) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.active, "active", false, "active ones (default)")
	f.BoolVar(&o.ended, "ended", false, "those that ended within the last 24 h")
	f.BoolVar(&o.all, "all", false, "both")
	durationVar(f, &o.within, "within", 0, "only those that end within this time")
	f.StringVar(&o.incident, "incident", "", "only those of this incident")
	watchVar(cmd, &o.watch)
	return cmd
}

func (a *app) switches(ctx context.Context, o *switchListOptions) (*list, error) {
	req := &policydv1.ListSwitchesRequest{
		Active: !o.ended || o.all, Ended: o.ended || o.all, Incident: o.incident, Scope: string(o.scope),
	}
	if o.within > 0 {
		req.Within = durationpb.New(o.within)
	}
	resp, err := read(ctx, a, policydv1.AdminServiceClient.ListSwitches, req)
	if err != nil {
		return nil, err
	}
	return a.switchList(resp)
}

func (a *app) switchList(resp *policydv1.ListSwitchesResponse) (*list, error) {
	l := &list{
		kind: "KillSwitchList", revision: resp.GetRevision(), documents: true, empty: "no kill switches",
		columns: cols("ID", "ACTION", "SCOPE", "LEFT", "INCIDENT", "BY", "IN FORCE", "ENDS+", "REASON+"),
	}
	for _, st := range resp.GetSwitches() {
		o, err := switchObject(st)
		if err != nil {
			return nil, err
		}
		k := st.GetKillSwitch()
		left := shortDuration(st.GetLeft().AsDuration())
		if k.GetPhase() != policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
			left = enumWord(k.GetPhase().String(), "SWITCH_PHASE_")
		}
		l.items = append(l.items, item{name: k.GetId(), value: o, cells: []string{
			clean(k.GetId()), actionWord(k), switchScope(k), left, orDash(k.GetSpec().GetIncident()),
			orDash(k.GetCreatedBy().GetName()), a.inForce(st.GetProgress()),
			k.GetExpiresAt().AsTime().UTC().Format(time.RFC3339), orDash(k.GetSpec().GetReason()),
		}})
	}
	return l, nil
}

func newSwitchShowCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "One kill switch",
		Example:           "  policyctl switch show ks-7f3a",
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeSwitches,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showSwitch(cmd.Context(), args[0])
		},
	}
}

func (a *app) showSwitch(ctx context.Context, id string) error {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetSwitch, &policydv1.GetSwitchRequest{Id: id})
	if err != nil {
		return err
	}
	st := resp.GetStatus()
	o, err := switchObject(st)
	if err != nil {
		return err
	}
	return a.result(id, o, func() {
		k := st.GetKillSwitch()
		left := shortDuration(st.GetLeft().AsDuration()) + " left, until " + clock(k.GetExpiresAt().AsTime())
		if k.GetPhase() != policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
			left = "ended " + a.ago(k.GetEndedAt().AsTime()) + " ago, at " + clock(k.GetEndedAt().AsTime())
		}
		rows := [][]string{
			{"id", clean(k.GetId())}, {"action", actionWord(k)}, {"scope", switchScope(k)},
		}
		if e := k.GetSpec().GetExcept().GetValues(); len(e) > 0 {
			rows = append(rows, []string{"except", few(e)})
		}
		rows = append(rows, [][]string{
			{"phase", string(o.Switch.Phase)},
			{"time", left},
			{"incident", orDash(k.GetSpec().GetIncident())},
			{"reason", orDash(k.GetSpec().GetReason())},
			{"by", orDash(k.GetCreatedBy().GetName()) + " via " + orDash(k.GetCreatedBy().GetVia()) + ", " + a.ago(k.GetCreatedAt().AsTime()) + " ago"},
			{"restore over", engine.FormatDuration(o.Switch.Restore)},
			{"revision", fmt.Sprint(st.GetRevision())},
			{"in force", a.inForce(st.GetProgress())},
		}...)
		for _, line := range align(rows) {
			a.out.printf("%s\n", line)
		}
		if k.GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
			a.out.printf("\nExtend  policyctl switch extend %s --for 30m\nRevert  policyctl switch revert %s\n", clean(id), clean(id))
		}
	})
}
