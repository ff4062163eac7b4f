// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type fleetOptions struct {
	scope      engine.Scope
	service    string
	state      policydv1.InstanceState
	notInForce bool
	watch      bool
}

func newFleetCmd(a *app) *cobra.Command {
	o, state := &fleetOptions{}, ""
	cmd := &cobra.Command{
		Use:   "fleet [SCOPE]",
		Short: "Which instances have what in force",
		Long:  "Lists the instances that a scope reaches, with the revision that each obeys.",
		Example: `  policyctl fleet --not-in-force
  policyctl fleet shop/payments --state stale --watch`,
		Args:              maxArgs(1),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.scope, err = optionalScope(args); err != nil {
				return err
			}
			if o.state, err = parseState(state); err != nil {
				return err
			}
			return a.once(cmd.Context(), o.watch, func(ctx context.Context) (*list, error) { return a.fleet(ctx, o) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.notInForce, "not-in-force", false, "only instances that do not have everything in force")
	f.StringVar(&state, "state", "", "only instances in this state: live, behind, rejected or stale")
	f.StringVar(&o.service, "service", "", "only instances of this service, namespace/service")
	watchVar(cmd, &o.watch)
	_ = cmd.RegisterFlagCompletionFunc("state", words(stateWords()...))
	return cmd
}

func stateWords() []string { return []string{"live", "behind", "rejected", "stale"} }

func parseState(word string) (policydv1.InstanceState, error) {
	if word == "" {
		return policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED, nil
	}
	n, ok := policydv1.InstanceState_value["INSTANCE_STATE_"+strings.ToUpper(word)]
	if !ok || n == 0 {
		return 0, usagef("--state %s: use one of %s", word, strings.Join(stateWords(), ", "))
	}
	return policydv1.InstanceState(n), nil
}

func (a *app) fleet(ctx context.Context, o *fleetOptions) (*list, error) {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.ListInstances, &policydv1.ListInstancesRequest{
		Scope: string(o.scope), Service: o.service, State: o.state, NotInForce: o.notInForce,
	})
	if err != nil {
		return nil, err
	}
	if silent := resp.GetSilentPeers(); len(silent) > 0 {
		a.say("No answer from %s: the instances there are missing.\n", clean(strings.Join(silent, ", ")))
	}
	l := &list{
		kind: "InstanceList", revision: resp.GetRevision(), empty: "no instances",
		columns: cols("INSTANCE", "SERVICE", "SDK", "REVISION", "STATE", "SINCE", "MODE+", "SOURCE+", "NOTE"),
	}
	if o.notInForce || o.state != policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED {
		l.empty = "no such instances"
	}
	if o.notInForce && o.state == policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED {
		l.empty = "no instance is missing: all have in force what applies to them"
	}
	for _, in := range resp.GetInstances() {
		l.items = append(l.items, a.instanceItem(in))
	}
	return l, nil
}

func (a *app) instanceItem(in *policydv1.Instance) item {
	revision := fmt.Sprint(in.GetRevision())
	if behind := in.GetWantedRevision() - in.GetRevision(); behind > 0 && in.GetState() != policydv1.InstanceState_INSTANCE_STATE_LIVE {
		revision += fmt.Sprintf(" (-%d)", behind)
	}
	since := "–"
	if in.GetSince() != nil {
		since = a.ago(in.GetSince().AsTime())
	}
	return item{
		name: in.GetId(), value: viewInstance(in),
		cells: []string{
			clean(in.GetId()), orDash(serviceName(in)), orDash(sdkName(in)), revision, a.paintState(in.GetState()),
			since, orDash(enumWord(in.GetMode().String(), "MODE_")), orDash(in.GetSource()), a.instanceNote(in),
		},
	}
}

func (a *app) paintState(s policydv1.InstanceState) string {
	word := stateWord(s)
	switch s {
	case policydv1.InstanceState_INSTANCE_STATE_LIVE:
		return a.out.green(word)
	case policydv1.InstanceState_INSTANCE_STATE_REJECTED:
		return a.out.red(word)
	case policydv1.InstanceState_INSTANCE_STATE_BEHIND, policydv1.InstanceState_INSTANCE_STATE_STALE:
		return a.out.yellow(word)
	case policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED:
	}
	return orDash(word)
}

func (a *app) instanceNote(in *policydv1.Instance) string {
	var notes []string
	switch in.GetState() {
	case policydv1.InstanceState_INSTANCE_STATE_STALE:
		notes = append(notes, fmt.Sprintf("obeys %d", in.GetRevision()))
	case policydv1.InstanceState_INSTANCE_STATE_REJECTED:
		for _, r := range in.GetRejected() {
			notes = append(notes, clean(strings.TrimSpace(r.GetScope()+" "+r.GetField()))+": "+clean(r.GetReason()))
		}
	case policydv1.InstanceState_INSTANCE_STATE_LIVE, policydv1.InstanceState_INSTANCE_STATE_BEHIND,
		policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED:
	}
	if m := in.GetMode(); m == policydv1.Mode_MODE_OBSERVE || m == policydv1.Mode_MODE_OFF {
		notes = append(notes, "local override: mode "+enumWord(m.String(), "MODE_"))
	}
	return strings.Join(notes, "; ")
}
