// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// helpTemplate puts what can be copied first.
const helpTemplate = `{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}
{{end}}{{if .HasExample}}
{{.Example}}
{{end}}
Usage:  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{if .HasAvailableSubCommands}}
Commands:
{{range .Commands}}{{if .IsAvailableCommand}}  {{rpad .Name .NamePadding}}  {{.Short}}
{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}
Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}{{if .HasAvailableInheritedFlags}}
Global flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}`

// overview is what policyctl prints without arguments.
func (a *app) overview() {
	a.out.printf(`Control retries, retry budgets and circuit breakers of a fleet.

  policyctl status                                what is going on
  policyctl switch disable-retries SCOPE          stop retries now
  policyctl effective SCOPE                       what applies, and why
  policyctl apply -f FILE                         change policies

Incident   status  switch
Policies   get  effective  explain  diff  validate  apply  edit  delete  init  export
Fleet      fleet  instance  wait
Setup      completion  version  help

`)
	s, err := a.config()
	if err != nil {
		a.out.printf("Context: %s\n", clean(err.Error()))
		return
	}
	where := s.addrFrom
	if s.context != "" {
		where = s.contextFrom
	}
	a.out.printf("Context: %s (from %s).   More: policyctl COMMAND -h, policyctl help exit-codes\n", clean(s.name()), where)
}

func newHelpCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Help on a command, or on " + strings.Join(topicNames(), ", "),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := topicNames()
			for _, c := range cmd.Root().Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				a.overview()
				return nil
			}
			if text, ok := topic(args[0]); ok && len(args) == 1 {
				a.out.printf("%s", text)
				return nil
			}
			target, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			return target.Help()
		},
	}
}

func topicNames() []string {
	names := make([]string, 0, len(topics()))
	for _, t := range topics() {
		names = append(names, t.name)
	}
	return names
}

func topic(name string) (string, bool) {
	i := slices.IndexFunc(topics(), func(t helpTopic) bool { return t.name == name })
	if i < 0 {
		return "", false
	}
	return topics()[i].text, true
}

type helpTopic struct{ name, text string }

func topics() []helpTopic {
	return []helpTopic{
		{"exit-codes", `Exit codes

    0  done, or no difference
    1  failed, none of the below
    2  wrong usage: unknown flag, bad duration, missing --yes without a terminal
    3  differences: only diff --exit-code and apply --dry-run --exit-code
    4  not signed in or not allowed
    5  not found
    6  conflict: the revision moved
    7  refused by validation or a guard-rail
    8  policyd not reachable, or no quorum
    9  saved, but not in force within --timeout
   10  saved, but rejected by some instances
  130  interrupted; says whether the write had been sent

8 to 10 tell "not saved" from "saved, but not in force".
`},
		{"output", `Output

Data goes to stdout, everything else to stderr.

  -o table   for people; may change in any release
  -o wide    the same with more columns
  -o json    one object: {"apiVersion":"policyd/v1","kind":…,"revision":…,"items":[…]}
             fields are only ever added; numbers stay numbers
  -o yaml    the same as YAML; policies and switches as a stream that can be applied
  -o jsonl   one object per line; with --watch one event per line:
             {"type":"added|changed|removed|bookmark","revision":…,"object":…}
  -o name    one name per line, for xargs
  --jq EXPR  filter the JSON; text is printed bare

With -o json errors are JSON on stderr:
  {"error":{"code":"conflict","exitCode":6,"message":…,"hint":…,"requestId":…,"details":[…]}}

Colour: on a terminal only. NO_COLOR, TERM=dumb and --no-color switch it off,
--color always and CLICOLOR_FORCE on. Without a UTF-8 locale signs are ASCII.
`},
		{"environment", `Environment

Every flag has a variable: POLICYCTL_, upper case, underscores. --wait-for is
POLICYCTL_WAIT_FOR.

  POLICYCTL_ADDR      address of policyd, host:port (default 127.0.0.1:7400)
  POLICYCTL_CONTEXT   name of the environment, shown in every write

Which wins: flag, variable, .policyctl.yaml in this folder or a parent,
$XDG_CONFIG_HOME/policyctl/config.yaml, default. Both files have the keys

  addr: policyd.prod.internal:7400
  context: prod
  critical: true      # shown as ▲ in every write

  VISUAL, EDITOR      editor of policyctl edit
  NO_COLOR, CLICOLOR_FORCE, TERM, LC_ALL, LC_CTYPE, LANG
`},
		{"scopes", `Scopes

  global                          everything
  shop                            a namespace
  shop/payments                   a service: the one that is called
  shop/payments/charges.create    an endpoint

Segments have 1 to 63 of a-z, 0-9, '.', '_' and '-', and start and end with a letter
or digit. global must be spelled; an empty scope is an error, never everything.

What applies at an endpoint: built-in, global, namespace, service, endpoint; field by
field, the most specific wins. Ceilings work the other way: a narrower scope may only
be stricter. Active kill switches apply last.   policyctl effective SCOPE shows it.
`},
		{"switches", `Kill switches

  disable-retries   at most one attempt per call
  tighten-budget    ratio, floor, capacity and refill times --factor
  force-open        calls are refused, but for the share --admit
  force-closed      breakers let everything through; 1h at most, never global
  disable-hedging   no extra attempts

A switch overrides every policy at its scope and below, except for --except, and ends by
itself: SDKs end it on their own clock, also when policyd is gone. Afterwards retries or
calls come back over --restore-over, each instance from its own moment.

Several switches combine to the strictest: any disable-retries; the smallest factor, never
multiplied; force-open beats force-closed, the smallest admit. Their order never matters.

A namespace needs --confirm=SCOPE, global needs --confirm=global and --incident.
With --id the same command can be run twice.
`},
		{"format", `Documents

  apiVersion: policyd/v1
  kind: RetryPolicy               # or KillSwitch
  metadata:
    scope: shop/payments          # what identifies a policy; one per scope
    owner: team-payments
    labels: {criticality: critical}
  spec:
    maxAttempts: 3
    backoff: {base: 100ms, jitter: full}
    hedging: off                  # switches a block off

Omitted is inherited; to inherit again, delete the line. Lists replace, never append.
Durations have a unit, ratios go from 0 to 1. Unknown, repeated and wrongly typed keys are
errors with line and column. Several documents are parted by ---; JSON works too.

apply replaces the document of a scope. What policyctl get -o yaml prints can be applied
again, as long as its revision is still the newest (apply --rebase: whatever it is); createdAt
and the like are ignored.

  policyctl explain policy.budget    fields, defaults, limits
  policyctl init shop/orders         a document to start from
`},
	}
}
