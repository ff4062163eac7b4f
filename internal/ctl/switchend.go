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

type extendOptions struct {
	id   string
	by   time.Duration
	wait waitFlags
}

func newExtendCmd(a *app) *cobra.Command {
	o := &extendOptions{}
	cmd := &cobra.Command{
		Use:   "extend ID --for DUR",
		Short: "Let a kill switch last longer",
		Long:  "Lets a kill switch last longer, counted from the later of now and its present end.",
		Example: `  policyctl switch extend ks-7f3a --for 30m
  policyctl switch extend inc-2481-payments --for 1h --no-wait`,
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeSwitches,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.id = args[0]; o.by <= 0 {
				return usagef("--for is missing: by how much, 30m for example")
			}
			return a.extendSwitch(cmd.Context(), o)
		},
	}
	durationVar(cmd.Flags(), &o.by, "for", 0, "time that is added (required)")
	addWaitFlags(cmd, &o.wait)
	return cmd
}

func (a *app) extendSwitch(ctx context.Context, o *extendOptions) error {
	if err := a.banner(); err != nil {
		return err
	}
	resp, err := write(ctx, a, policydv1.AdminServiceClient.ExtendSwitch,
		&policydv1.ExtendSwitchRequest{Id: o.id, By: durationpb.New(o.by), Via: via})
	if err != nil {
		return err
	}
	st := resp.GetStatus()
	if a.human() {
		a.done("%s %s ends at %s, %s from now, revision %d\n", a.out.green("✓"), clean(o.id),
			clock(st.GetKillSwitch().GetExpiresAt().AsTime()), shortDuration(st.GetLeft().AsDuration().Round(time.Second)), st.GetRevision())
	}
	end, err := a.afterWrite(ctx, &o.wait, st.GetRevision(), o.id)
	if err != nil {
		return err
	}
	if end != nil && end.last != nil {
		st.Progress = end.progress()
	}
	object, err := switchObject(st)
	if err != nil {
		return err
	}
	if err := a.result(o.id, object, func() {}); err != nil {
		return err
	}
	return a.reportWrite(end, st.GetRevision())
}

type revertOptions struct {
	ids      []string
	incident string
	scope    string
	yes      bool
	wait     waitFlags
}

func newRevertCmd(a *app) *cobra.Command {
	o := &revertOptions{}
	cmd := &cobra.Command{
		Use:   "revert (ID… | --incident ID | --scope SCOPE)",
		Short: "End kill switches now",
		Long:  "Ends kill switches now. What they took away comes back over their restore time.",
		Example: `  policyctl switch revert ks-7f3a
  policyctl switch revert --incident INC-2481 --yes`,
		ValidArgsFunction: a.completeSwitches,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.ids = args
			given := 0
			for _, is := range []bool{len(args) > 0, o.incident != "", o.scope != ""} {
				if is {
					given++
				}
			}
			if given != 1 {
				return usagef("name the switches by one of ID, --incident and --scope").hint("See:  policyctl switch list")
			}
			if o.scope != "" {
				if _, err := scopeArg(o.scope); err != nil {
					return err
				}
			}
			return a.revertSwitches(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.incident, "incident", "", "all switches of this incident")
	f.StringVar(&o.scope, "scope", "", "all switches at this scope and below")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	addWaitFlags(cmd, &o.wait)
	_ = cmd.RegisterFlagCompletionFunc("scope", a.completeScopes)
	return cmd
}

func (a *app) revertSwitches(ctx context.Context, o *revertOptions) error {
	if err := a.banner(); err != nil {
		return err
	}
	if len(o.ids) == 0 && !o.yes {
		if err := a.confirmRevert(ctx, o); err != nil {
			return err
		}
	}
	resp, err := write(ctx, a, policydv1.AdminServiceClient.RevertSwitches,
		&policydv1.RevertSwitchesRequest{Ids: o.ids, Incident: o.incident, Scope: o.scope, Via: via})
	if err != nil {
		return err
	}
	if a.human() {
		for _, st := range resp.GetSwitches() {
			a.printReverted(st, resp.GetRevision())
		}
	}
	end, err := a.afterWrite(ctx, &o.wait, resp.GetRevision(), "revert")
	if err != nil {
		return err
	}
	l, err := a.switchList(&policydv1.ListSwitchesResponse{Revision: resp.GetRevision(), Switches: resp.GetSwitches()})
	if err != nil {
		return err
	}
	if !a.human() {
		if err := a.show(l); err != nil {
			return err
		}
	}
	return a.reportWrite(end, resp.GetRevision())
}

func (a *app) printReverted(st *policydv1.SwitchStatus, revision int64) {
	k := st.GetKillSwitch()
	if revision == 0 || st.GetRevision() != revision {
		a.done("%s %s had ended already\n", a.out.green("✓"), clean(k.GetId()))
		return
	}
	back := ""
	if over := k.GetSpec().GetRestore().GetOver().AsDuration(); over > 0 {
		what := map[policydv1.SwitchAction]string{
			policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES: "retries come",
			policydv1.SwitchAction_SWITCH_ACTION_TIGHTEN_BUDGET:  "budgets come",
			policydv1.SwitchAction_SWITCH_ACTION_FORCE_OPEN:      "calls come",
		}[k.GetSpec().GetAction()]
		if what != "" {
			back = fmt.Sprintf("; %s back over %s", what, engine.FormatDuration(over))
		}
	}
	a.done("%s %s is reverted, revision %d%s\n", a.out.green("✓"), clean(k.GetId()), revision, back)
}

// confirmRevert shows what a selection would end.
func (a *app) confirmRevert(ctx context.Context, o *revertOptions) error {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.ListSwitches,
		&policydv1.ListSwitchesRequest{Active: true, Incident: o.incident, Scope: o.scope})
	if err != nil {
		return err
	}
	n := int64(0)
	for _, st := range resp.GetSwitches() {
		if k := st.GetKillSwitch(); k.GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
			n++
			a.say("  %s  %s  %s\n", clean(k.GetId()), actionWord(k), switchScope(k))
		}
	}
	if n == 0 {
		return nil // policyd says that there is none
	}
	return a.confirm(ctx, "Revert "+plural(n, "switch", "switches")+"?", "--yes")
}
