// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type waitOptions struct {
	revision int64
	id       string
	goal     goal
}

func newWaitCmd(a *app) *cobra.Command {
	o := &waitOptions{goal: connectedGoal()}
	cmd := &cobra.Command{
		Use:   "wait (--revision REV | --switch ID)",
		Short: "Wait until a change is in force",
		Example: `  policyctl wait --switch ks-7f3a --for 95% --timeout 30s
  policyctl wait --revision 1843 --for all`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			byRevision := cmd.Flags().Changed("revision")
			if byRevision == (o.id != "") {
				return usagef("name what to wait for: one of --revision and --switch")
			}
			if byRevision && o.revision <= 0 {
				return usagef("--revision %d: a revision is above 0", o.revision)
			}
			return a.wait(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&o.revision, "revision", 0, "revision of the change")
	f.StringVar(&o.id, "switch", "", "id of the kill switch")
	f.Var(&goalFlag{&o.goal}, "for", "instances that must have it in force")
	_ = cmd.RegisterFlagCompletionFunc("switch", a.completeSwitches)
	_ = cmd.RegisterFlagCompletionFunc("for", words("connected", "95%", "all"))
	return cmd
}

type waitView struct {
	envelope
	Subject   string         `json:"subject"`
	Revision  int64          `json:"revision"`
	Reached   bool           `json:"reached"`
	Instances progressView   `json:"instances"`
	Missing   []instanceView `json:"missing"`
}

func (a *app) wait(ctx context.Context, o *waitOptions) error {
	subject := &policydv1.WatchProgressRequest{Subject: &policydv1.WatchProgressRequest_SwitchId{SwitchId: o.id}}
	name := o.id
	if o.id == "" {
		subject.Subject = &policydv1.WatchProgressRequest_Revision{Revision: o.revision}
		name = fmt.Sprintf("revision %d", o.revision)
	}
	end, err := a.await(ctx, subject, o.goal, a.meter(name, o.goal))
	if err != nil {
		return err
	}
	if end.last == nil && end.err != nil {
		return end.err
	}
	view := waitView{
		kind("Wait"), name, end.last.GetRevision(), end.reached,
		viewProgress(end.progress()), viewInstances(end.last.GetMissing()),
	}
	err = a.result(name, view, func() {
		a.out.printf("%s  %s\n", clean(name), verdict(end))
		a.report(end)
	})
	if err != nil {
		return err
	}
	return end.exit()
}

// verdict says in words how waiting ended.
func verdict(o *outcome) string {
	switch {
	case o.reached:
		return "is in force"
	case o.interrupted:
		return "stopped waiting; nothing is undone by that"
	case o.progress().GetRejected() > 0:
		return "is rejected by some instances"
	}
	return "is not in force everywhere yet"
}
