// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"github.com/spf13/cobra"
)

func newDiffCmd(a *app) *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "What apply would change, with its consequences",
		Example: `  policyctl diff -f policies/
  policyctl diff -f policies/ --exit-code`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := a.load(o.files)
			if err != nil {
				return err
			}
			if len(objects) == 0 {
				return failf(exitRefused, "refused", "there are no documents in %s", shownNames(o.files))
			}
			o.plan.objects = objects
			p, err := a.makePlan(cmd.Context(), &o.plan)
			if err != nil {
				return err
			}
			return a.showPlan(p, o.exitCode)
		},
	}
	f := cmd.Flags()
	filesVar(cmd, &o.files)
	f.BoolVar(&o.exitCode, "exit-code", false, "end with 3 if something would change")
	f.BoolVar(&o.plan.prune, "prune", false, "also what apply --prune would delete")
	f.StringVar(&o.plan.managedBy, "managed-by", "", "name of the tool or repository that owns the documents")
	f.StringVar(&o.plan.confirm, "confirm", "", "scopes, separated by commas, that may lose many policies or get a switch")
	f.BoolVar(&o.plan.split, "split", false, "more documents than fit in one step")
	return cmd
}
