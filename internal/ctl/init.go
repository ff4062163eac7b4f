// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func newInitCmd(a *app) *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "init SCOPE",
		Short: "A commented document to start from",
		Long:  "Prints a commented document for a scope: what it would inherit stands there as comments.\nFor global it also sets the recommended breakers.",
		Example: `  policyctl init shop/orders > orders.yaml
  policyctl init global --offline`,
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := scopeArg(args[0])
			if err != nil {
				return err
			}
			text, err := a.starter(cmd.Context(), scope, offline)
			if err != nil {
				return err
			}
			if !offline {
				a.sayIfThere(cmd.Context(), scope)
			}
			_, err = a.out.w.Write(text)
			return err
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask policyd: show built-in values")
	return cmd
}

// sayIfThere warns that applying the starter would replace a document.
func (a *app) sayIfThere(ctx context.Context, scope engine.Scope) {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetPolicy, &policydv1.GetPolicyRequest{Scope: string(scope)})
	if err == nil {
		a.say("%s has a policy already (revision %d), which this would replace; to change it:  policyctl edit %s\n",
			scope, resp.GetPolicy().GetRevision(), scope)
	}
}

func (a *app) starter(ctx context.Context, scope engine.Scope, offline bool) ([]byte, error) {
	if offline {
		return document.Starter(scope, document.BuiltIn), nil
	}
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetEffective, &policydv1.GetEffectiveRequest{Scope: string(scope)})
	if err != nil {
		return nil, addHint(err, "Without policyd:  --offline")
	}
	values := make(map[string]*policydv1.EffectiveValue, len(resp.GetValues()))
	for _, v := range resp.GetValues() {
		values[v.GetPath()] = v
	}
	return document.Starter(scope, func(f engine.Field) (value, from string) {
		v, ok := values[f.Path()]
		if !ok {
			return "", ""
		}
		value, from = v.GetValue(), v.GetOrigin().GetFrom()
		// Neither a kill switch nor the scope's own document is inherited.
		for _, s := range v.GetShadows() {
			if _, notScope := engine.ParseScope(from); from != string(scope) && (notScope == nil || from == engine.BuiltIn) {
				break
			}
			value, from = s.GetValue(), s.GetOrigin().GetFrom()
		}
		if from == string(scope) {
			return "", ""
		}
		return value, from
	}), nil
}
