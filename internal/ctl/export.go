// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func newExportCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export [SCOPE]",
		Short: "All policies as a YAML stream, or with -o json as one list",
		Long:  "Prints all policies, without what only policyd sets. The YAML stream can be applied; it and\nthe JSON list can also be given to SDKs as POLICYD_FILE.",
		Example: `  policyctl export > policies.yaml
  policyctl export shop -o json > policyd-shop.json`,
		Args:              maxArgs(1),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := optionalScope(args)
			if err != nil {
				return err
			}
			return a.export(cmd.Context(), scope)
		},
	}
}

func (a *app) export(ctx context.Context, scope engine.Scope) error {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.ListPolicies, &policydv1.ListPoliciesRequest{Scope: string(scope)})
	if err != nil {
		return err
	}
	l := &list{kind: document.KindList, revision: resp.GetRevision(), documents: true}
	for _, v := range resp.GetPolicies() {
		o, err := policyObject(v)
		if err != nil {
			return err
		}
		l.items = append(l.items, item{name: string(o.Policy.Scope), value: bare(o)})
	}
	if a.human() {
		a.global.output = asYAML
		if len(l.items) == 0 {
			a.say("no policies to export\n")
		}
	}
	return a.show(l)
}
