// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

func newValidateCmd(a *app) *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check documents without policyd",
		Long:  "Checks documents, each by itself and against the others that are given; policyd is not\nasked. apply --dry-run also checks against what is stored.",
		Example: `  policyctl validate -f policies/
  policyctl validate -f - < charges.yaml`,
		Args: maxArgs(0),
		RunE: func(*cobra.Command, []string) error { return a.validate(files) },
	}
	filesVar(cmd, &files)
	return cmd
}

type validateView struct {
	envelope
	Documents int           `json:"documents"`
	Findings  []findingView `json:"findings"`
}

func (a *app) validate(files []string) error {
	objects, err := a.load(files)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		return failf(exitRefused, "refused", "there are no documents in %s", shownNames(files))
	}
	set, at := policy.Set{}, map[engine.Scope]*document.Object{}
	var scopes []engine.Scope
	for _, o := range policiesOf(objects) {
		set[o.Policy.Scope], at[o.Policy.Scope] = o.Policy, o
		scopes = append(scopes, o.Policy.Scope)
	}
	if violations := policy.ValidateSet(nil, set, scopes); len(violations) > 0 {
		return document.Invalid(objects, violations)
	}
	view := validateView{kind("Validation"), len(objects), []findingView{}}
	var lines []string
	for _, scope := range scopes {
		for _, f := range lint.Check(set, scope, lint.Facts{}) {
			view.Findings = append(view.Findings, findingView{f.Code, string(f.Level), f.Path, f.Message})
			lines = append(lines, at[scope].Position(f.Path)+": "+f.Code+" "+f.Message)
		}
	}
	if a.global.output == asName {
		for _, o := range objects {
			a.out.printf("%s\n", clean(o.Name()))
		}
		return nil
	}
	return a.result("", view, func() {
		for _, line := range lines {
			a.out.printf("%s %s\n", a.out.yellow("⚠"), clean(line))
		}
		a.out.printf("%s %s\n", a.out.green("✓"), plural(int64(len(objects)), "document is valid", "documents are valid"))
	})
}
