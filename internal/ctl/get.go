// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func newGetCmd(a *app) *cobra.Command {
	switches := &switchListOptions{}
	switchesCmd := &cobra.Command{
		Use: "switches [SCOPE]", Short: "Active kill switches", Args: maxArgs(1), ValidArgsFunction: a.completeScopes,
		Example: "  policyctl get switches shop -o yaml",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if switches.scope, err = optionalScope(args); err != nil {
				return err
			}
			return a.once(cmd.Context(), switches.watch, func(ctx context.Context) (*list, error) { return a.switches(ctx, switches) })
		},
	}
	watchVar(switchesCmd, &switches.watch)
	instances := &fleetOptions{}
	instancesCmd := &cobra.Command{
		Use: "instances [SCOPE]", Short: "Instances that a scope reaches", Args: maxArgs(1), ValidArgsFunction: a.completeScopes,
		Example: "  policyctl get instances shop/payments -o name",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if instances.scope, err = optionalScope(args); err != nil {
				return err
			}
			return a.once(cmd.Context(), instances.watch, func(ctx context.Context) (*list, error) { return a.fleet(ctx, instances) })
		},
	}
	watchVar(instancesCmd, &instances.watch)
	return group("get", "Print policies, switches or instances",
		newGetPolicyCmd(a), newGetPoliciesCmd(a), switchesCmd, instancesCmd)
}

type policiesOptions struct {
	scopes []engine.Scope
	labels map[string]string
	watch  bool
}

func newGetPoliciesCmd(a *app) *cobra.Command {
	o := &policiesOptions{}
	cmd := &cobra.Command{
		Use:   "policies [SCOPE…]",
		Short: "Policies at scopes and below",
		Example: `  policyctl get policies shop
  policyctl get policies -l criticality=critical -o name`,
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				scope, err := scopeArg(arg)
				if err != nil {
					return err
				}
				o.scopes = append(o.scopes, scope)
			}
			return a.once(cmd.Context(), o.watch, func(ctx context.Context) (*list, error) { return a.policies(ctx, o) })
		},
	}
	cmd.Flags().StringToStringVarP(&o.labels, "label", "l", nil, "only policies with this label, key=value")
	watchVar(cmd, &o.watch)
	return cmd
}

func (a *app) policies(ctx context.Context, o *policiesOptions) (*list, error) {
	l := &list{
		kind: "RetryPolicyList", documents: true, empty: noPolicies(o.scopes),
		columns: cols("SCOPE", "FIELDS", "REVISION", "CHANGED", "BY", "MANAGED BY", "IN FORCE", "OWNER+", "LABELS+"),
	}
	scopes := o.scopes
	if len(scopes) == 0 {
		scopes = []engine.Scope{""}
	}
	seen := make(map[string]bool)
	for _, scope := range scopes {
		resp, err := read(ctx, a, policydv1.AdminServiceClient.ListPolicies,
			&policydv1.ListPoliciesRequest{Scope: string(scope), Labels: o.labels})
		if err != nil {
			return nil, err
		}
		l.revision = max(l.revision, resp.GetRevision())
		for _, v := range resp.GetPolicies() {
			if seen[v.GetPolicy().GetScope()] {
				continue
			}
			seen[v.GetPolicy().GetScope()] = true
			it, err := a.policyItem(v)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, it)
		}
	}
	return l, nil
}

// noPolicies says what applies where no policy is listed.
func noPolicies(scopes []engine.Scope) string {
	if len(scopes) == 0 {
		return "no policies: built-in values apply"
	}
	return "no policies there; what applies is inherited:  policyctl effective " + string(scopes[0])
}

func (a *app) policyItem(v *policydv1.VersionedPolicy) (item, error) {
	o, err := policyObject(v)
	if err != nil {
		return item{}, err
	}
	m := o.Policy.Metadata
	var labels []string
	for key, value := range m.Labels {
		labels = append(labels, key+"="+value)
	}
	return item{name: string(o.Policy.Scope), value: o, cells: []string{
		string(o.Policy.Scope), fmt.Sprint(len(o.Policy.Settings)), fmt.Sprint(v.GetRevision()),
		a.ago(m.UpdatedAt), orDash(m.UpdatedBy.Name), orDash(m.ManagedBy), a.inForce(v.GetProgress()),
		orDash(m.Owner), orDash(joinSorted(labels)),
	}}, nil
}

func newGetPolicyCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "policy SCOPE",
		Short: "The document at one scope: a table on a terminal, else YAML",
		Example: `  policyctl get policy shop/payments
  policyctl get policy shop/payments > payments.yaml`,
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := scopeArg(args[0])
			if err != nil {
				return err
			}
			return a.getPolicy(cmd.Context(), scope, cmd.Flags().Changed("output"))
		},
	}
}

func (a *app) getPolicy(ctx context.Context, scope engine.Scope, chosen bool) error {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetPolicy, &policydv1.GetPolicyRequest{Scope: string(scope)})
	if err != nil {
		return err
	}
	o, err := policyObject(resp.GetPolicy())
	if err != nil {
		return err
	}
	if !chosen && !a.out.tty && a.human() {
		a.global.output = asYAML
	}
	return a.result(string(scope), o, func() { a.printPolicy(resp.GetPolicy(), o) })
}

func (a *app) printPolicy(v *policydv1.VersionedPolicy, o *document.Object) {
	p := o.Policy
	m := p.Metadata
	rows := [][]string{
		{"scope", string(p.Scope)},
		{"revision", fmt.Sprintf("%d, %s, %s ago", v.GetRevision(), orDash(m.UpdatedBy.Name), a.ago(m.UpdatedAt))},
		{"owner", orDash(m.Owner)},
		{"managed by", orDash(m.ManagedBy)},
		{"created", m.CreatedAt.UTC().Format(time.RFC3339)},
		{"in force", a.inForce(v.GetProgress())},
	}
	for _, line := range align(rows) {
		a.out.printf("%s\n", line)
	}
	a.out.printf("\n")
	l := &list{columns: cols("FIELD", "VALUE")}
	for _, f := range engine.Fields() {
		if value, ok := p.Settings[f]; ok {
			l.items = append(l.items, item{cells: []string{f.Path(), oneLine(value.String())}})
		}
	}
	a.printTable(l)
}

// oneLine makes a value fit a cell.
func oneLine(s string) string {
	s = strings.TrimSpace(clean(s))
	if s == "" {
		return `""`
	}
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
