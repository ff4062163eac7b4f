// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// waitFlags say how long a write waits for being in force.
type waitFlags struct {
	noWait bool
	goal   goal
}

func addWaitFlags(cmd *cobra.Command, w *waitFlags) {
	w.goal = connectedGoal()
	cmd.Flags().BoolVar(&w.noWait, "no-wait", false, "return when it is saved, in force or not")
	cmd.Flags().Var(&goalFlag{&w.goal}, "wait-for", "instances that must have it in force")
	_ = cmd.RegisterFlagCompletionFunc("wait-for", words("connected", "95%", "all"))
}

// afterWrite waits for a saved revision; nil means that nobody wanted to wait.
func (a *app) afterWrite(ctx context.Context, w *waitFlags, revision int64, label string) (*outcome, error) {
	if w.noWait || revision == 0 {
		return nil, nil
	}
	subject := &policydv1.WatchProgressRequest{Subject: &policydv1.WatchProgressRequest_Revision{Revision: revision}}
	return a.await(ctx, subject, w.goal, a.meter(label, w.goal))
}

// reportWrite prints how waiting went and returns the exit code.
func (a *app) reportWrite(o *outcome, revision int64) error {
	if o == nil {
		return nil
	}
	if a.human() {
		a.report(o)
		switch {
		case o.interrupted:
			a.say("Stopped waiting; revision %d is saved and stays so.   policyctl wait --revision %d\n", revision, revision)
		case !o.reached:
			a.say("Saved, but %s.   policyctl wait --revision %d\n", verdictShort(o), revision)
		}
	}
	return o.exit()
}

func verdictShort(o *outcome) string {
	if o.progress().GetRejected() > 0 {
		return "rejected by " + plural(o.progress().GetRejected(), "instance", "instances")
	}
	if n := o.progress().GetSilentPeers(); n > 0 && o.progress().GetTarget() == o.progress().GetInForce() {
		return silence(n)
	}
	return fmt.Sprintf("not in force on %s", plural(o.progress().GetTarget()-o.progress().GetInForce(), "instance", "instances"))
}
