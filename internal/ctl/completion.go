// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Completion has this long to ask policyd; then it offers what it knows by itself.
const completionTime = 300 * time.Millisecond

func newCompletionCmd(a *app) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Shell script that completes commands, scopes and ids",
		Example: `  source <(policyctl completion bash)
  policyctl completion zsh > "${fpath[1]}/_policyctl"`,
		Args:      exactArgs("SHELL"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out.w, true)
			case "zsh":
				return root.GenZshCompletion(a.out.w)
			case "fish":
				return root.GenFishCompletion(a.out.w, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out.w)
			}
			return usagef("shell %q: use one of %s", args[0], strings.Join(shells, ", "))
		},
	}
}

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// words completes a fixed set.
func words(all ...string) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// asking runs a question to policyd within the time of completion; errors give nothing.
func (a *app) asking(cmd *cobra.Command, ask func(context.Context)) {
	if a.flagsFromEnv(cmd.Flags()) != nil {
		return
	}
	a.global.timeout, a.global.verbose = completionTime, false
	parent := cmd.Context()
	if parent == nil {
		return
	}
	ctx, cancel := context.WithTimeout(parent, completionTime)
	defer cancel()
	ask(ctx)
}

// completeScopes offers the next segment of the scopes that have policies.
func (a *app) completeScopes(cmd *cobra.Command, _ []string, typed string) (found []string, directive cobra.ShellCompDirective) {
	directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	a.asking(cmd, func(ctx context.Context) {
		resp, err := read(ctx, a, policydv1.AdminServiceClient.ListPolicies, &policydv1.ListPoliciesRequest{})
		if err != nil {
			return
		}
		var scopes []string
		for _, v := range resp.GetPolicies() {
			scopes = append(scopes, v.GetPolicy().GetScope())
		}
		found = nextSegments(append(scopes, string(engine.Global)), typed)
	})
	if len(found) == 0 && strings.HasPrefix(string(engine.Global), typed) {
		found = []string{string(engine.Global)}
	}
	return found, directive
}

// nextSegments cuts scopes after the segment that is being typed.
func nextSegments(scopes []string, typed string) []string {
	var found []string
	seen := make(map[string]bool)
	offer := func(s string) {
		if !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
	}
	for _, s := range scopes {
		if !strings.HasPrefix(s, typed) {
			continue
		}
		if i := strings.IndexByte(s[len(typed):], '/'); i >= 0 {
			offer(s[:len(typed)+i])
			offer(s[:len(typed)+i+1])
			continue
		}
		offer(s)
	}
	return found
}

func (a *app) completeSwitches(cmd *cobra.Command, _ []string, _ string) (found []string, directive cobra.ShellCompDirective) {
	a.asking(cmd, func(ctx context.Context) {
		resp, err := read(ctx, a, policydv1.AdminServiceClient.ListSwitches, &policydv1.ListSwitchesRequest{Active: true})
		if err != nil {
			return
		}
		for _, st := range resp.GetSwitches() {
			k := st.GetKillSwitch()
			found = append(found, clean(k.GetId())+"\t"+actionWord(k)+" "+switchScope(k)+", "+shortDuration(st.GetLeft().AsDuration())+" left")
		}
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeInstances(cmd *cobra.Command, _ []string, _ string) (found []string, directive cobra.ShellCompDirective) {
	a.asking(cmd, func(ctx context.Context) {
		resp, err := read(ctx, a, policydv1.AdminServiceClient.ListInstances, &policydv1.ListInstancesRequest{})
		if err != nil {
			return
		}
		for _, in := range resp.GetInstances() {
			found = append(found, clean(in.GetId())+"\t"+clean(serviceName(in))+", "+stateWord(in.GetState()))
		}
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

func completeFields(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var paths []string
	for _, f := range engine.Fields() {
		paths = append(paths, f.Path()+"\t"+f.Spec().Doc)
	}
	return paths, cobra.ShellCompDirectiveNoFileComp
}

func completeExplain(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return document.FieldPaths(), cobra.ShellCompDirectiveNoFileComp
}
