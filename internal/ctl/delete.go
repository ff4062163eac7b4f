// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/sdk/go/engine"
)

type deleteOptions struct {
	scope   engine.Scope
	yes     bool
	confirm string
	dryRun  bool
	reason  string
	wait    waitFlags
}

func newDeleteCmd(a *app) *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use:   "policy SCOPE",
		Short: "Delete the policy of a scope; what wider scopes say applies then",
		Example: `  policyctl delete policy shop/payments/charges.create
  policyctl delete policy shop --confirm=shop --reason "moved to git"`,
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.scope, err = scopeArg(args[0]); err != nil {
				return err
			}
			if o.confirm != "" && o.confirm != args[0] && o.confirm != o.namespace() {
				return usagef("--confirm=%s is neither the scope %s nor its namespace", o.confirm, o.scope)
			}
			return a.deletePolicy(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.StringVar(&o.confirm, "confirm", "", "the scope again; needed for a namespace and for global")
	f.BoolVar(&o.dryRun, "dry-run", false, "only show what would change")
	f.StringVar(&o.reason, "reason", "", "why, for the record")
	addWaitFlags(cmd, &o.wait)
	return group("delete", "Delete a policy", cmd)
}

func (a *app) deletePolicy(ctx context.Context, o *deleteOptions) error {
	if !o.dryRun {
		if err := a.banner(); err != nil {
			return err
		}
	}
	p, err := a.planDelete(ctx, o)
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.showPlan(p, false)
	}
	if o.confirm == "" && o.scope.Level() <= engine.LevelNamespace {
		for _, line := range p.lines(&a.err) {
			a.say("%s\n", line)
		}
		if err := a.confirmScope(ctx, string(o.scope), "--confirm="+string(o.scope)); err != nil {
			return err
		}
		o.yes = true
	}
	return a.carryOut(ctx, p, o.yes || o.confirm != "", &o.wait)
}

func (o *deleteOptions) namespace() string {
	return orDefault(o.scope.Namespace(), string(engine.Global))
}

// planDelete also asks when the namespace would lose a large part of its policies.
func (a *app) planDelete(ctx context.Context, o *deleteOptions) (*plan, error) {
	options := &planOptions{delete: []engine.Scope{o.scope}, reason: o.reason}
	if o.confirm != "" {
		options.confirm = o.namespace()
	}
	p, err := a.makePlan(ctx, options)
	var f *failure
	if !errors.As(err, &f) || f.reason != "removal_unconfirmed" || !a.interactive() && !o.dryRun {
		return p, err
	}
	if !o.dryRun {
		a.say("%s\n", f.message)
		if err := a.confirmScope(ctx, o.namespace(), "--confirm="+o.namespace()); err != nil {
			return nil, err
		}
		o.confirm = o.namespace()
	}
	options.confirm = o.namespace()
	return a.makePlan(ctx, options)
}
