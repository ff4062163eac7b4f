// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

const via = "policyctl"

func newSwitchCmd(a *app) *cobra.Command {
	return group("switch", "Start, list and end kill switches",
		newStartCmd(a, engine.DisableRetries, "At most one attempt per call"),
		newStartCmd(a, engine.TightenBudget, "Multiply retry budgets by a factor"),
		newStartCmd(a, engine.ForceOpen, "Hold breakers open: calls are refused"),
		newStartCmd(a, engine.ForceClosed, "Hold breakers closed: calls go out whatever fails; 1h at most"),
		newStartCmd(a, engine.DisableHedging, "Send no extra attempts"),
		newSwitchListCmd(a), newSwitchShowCmd(a), newExtendCmd(a), newRevertCmd(a),
	)
}

type startOptions struct {
	action   engine.Action
	scope    engine.Scope
	duration time.Duration
	until    string
	ends     time.Time
	reason   string
	incident string
	except   []string
	restore  time.Duration
	id       string
	percent  int
	below    string
	factor   shareFlag
	admit    shareFlag
	dryRun   bool
	drill    bool
	yes      bool
	confirm  string
	wait     waitFlags
}

func newStartCmd(a *app, action engine.Action, short string) *cobra.Command {
	o := &startOptions{action: action, restore: engine.DefaultRestoreOver}
	example := "  policyctl switch " + string(action) + " shop/payments --for 30m --incident INC-2481 --reason \"payments brown-out\""
	if action == engine.TightenBudget {
		example += " --factor 0.25"
	}
	cmd := &cobra.Command{
		Use:   string(action) + " SCOPE",
		Short: short,
		Long:  "Kill switch: " + strings.ToLower(short[:1]) + short[1:] + ".\nIt acts on the scope and all below it, ends by itself, and overrides every policy.",
		Example: example + "\n" + example +
			" --id inc-2481 --yes --wait-for 95%",
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.scope, err = scopeArg(args[0]); err != nil {
				return err
			}
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.startSwitch(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	durationVar(f, &o.duration, "for", 30*time.Minute, "how long; it ends by itself")
	f.StringVar(&o.until, "until", "", "end instead of --for: 14:30 (UTC) or 2026-05-04T14:30:00Z")
	f.StringVar(&o.reason, "reason", "", "why, for everyone whom it concerns (required)")
	f.StringVar(&o.incident, "incident", "", "incident it belongs to (required for global)")
	f.StringSliceVar(&o.except, "except", nil, "scopes below that are left alone")
	durationVar(f, &o.restore, "restore-over", engine.DefaultRestoreOver, "time in which retries or calls come back after the end")
	f.StringVar(&o.id, "id", "", "name of the switch; makes the command safe to repeat")
	f.IntVar(&o.percent, "percent", 100, "share of the instances, 1 to 100")
	f.StringVar(&o.below, "criticality", "", "only endpoints at or below: critical, standard or sheddable")
	f.BoolVar(&o.dryRun, "dry-run", false, "only show what it would do")
	f.BoolVar(&o.drill, "drill", false, "record and show it, but change nothing")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.StringVar(&o.confirm, "confirm", "", "the scope again; needed for a namespace and for global")
	if action == engine.TightenBudget {
		f.Var(&o.factor, "factor", "what is left of the budgets (required)")
	}
	if action == engine.ForceOpen {
		f.Var(&o.admit, "admit", "share of first attempts let through")
	}
	addWaitFlags(cmd, &o.wait)
	_ = cmd.RegisterFlagCompletionFunc("criticality", words("critical", "standard", "sheddable"))
	_ = cmd.RegisterFlagCompletionFunc("except", a.completeScopes)
	return cmd
}

// check refuses what policyd would refuse, with the flag's name.
func (o *startOptions) check(cmd *cobra.Command) error {
	most := engine.MaxSwitchDuration
	if o.action == engine.ForceClosed {
		most = engine.MaxForceClosed
	}
	switch {
	case o.until != "" && cmd.Flags().Changed("for"):
		return usagef("--for and --until exclude each other")
	case o.until == "" && o.duration <= 0:
		return usagef("--for must be above 0")
	case o.until == "" && o.duration > most:
		return failf(exitRefused, "refused", "%s lasts at most %s", o.action, engine.FormatDuration(most)).
			hint("Start with less; policyctl switch extend adds to it.")
	case o.percent < 1 || o.percent > 100:
		return usagef("--percent %d: use 1 to 100", o.percent)
	case o.action == engine.TightenBudget && !o.factor.given:
		return usagef("--factor is missing: 0.25 leaves a quarter of the budgets")
	case o.confirm != "" && o.confirm != string(o.scope):
		return usagef("--confirm=%s is not the scope %s", o.confirm, o.scope)
	case o.scope == engine.Global && o.action == engine.ForceClosed:
		return failf(exitRefused, "refused", "force-closed is never allowed on global").
			hint("Choose a namespace, a service or an endpoint.")
	}
	if _, ok := engine.ParseCriticality(o.below); !ok {
		return usagef("--criticality %s: use critical, standard or sheddable", o.below)
	}
	for _, e := range o.except {
		scope, err := scopeArg(e)
		if err != nil {
			return err
		}
		if scope == o.scope || !o.scope.Contains(scope) {
			return usagef("--except %s does not lie below %s", scope, o.scope)
		}
	}
	return nil
}

func (a *app) parseUntil(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	t, err := time.Parse("15:04", s)
	if err != nil {
		return t, usagef("--until %s: use 14:30 (UTC) or 2026-05-04T14:30:00Z", s)
	}
	now := a.env.Now().UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
	if !at.After(now) {
		at = at.AddDate(0, 0, 1)
	}
	return at, nil
}

// tryLine is the command that would do what was refused.
func (o *startOptions) tryLine() string {
	quoted := o.reason
	if strings.ContainsAny(quoted, " '\"$") || quoted == "" {
		quoted = fmt.Sprintf("%q", orDefault(o.reason, "why"))
	}
	line := fmt.Sprintf("policyctl switch %s %s --for %s --reason %s", o.action, o.scope, engine.FormatDuration(o.duration), quoted)
	if o.factor.given {
		line += " --factor " + o.factor.String()
	}
	return line + " --incident " + orDefault(o.incident, "INC-…") + " --confirm=" + string(o.scope)
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// settle asks for what is missing, or says which flag gives it.
func (a *app) settle(ctx context.Context, o *startOptions) error {
	if o.until != "" {
		ends, err := a.parseUntil(o.until)
		if err != nil {
			return err
		}
		o.ends = ends
	}
	if o.scope == engine.Global && !o.dryRun && (o.incident == "" || o.confirm == "" && !a.interactive()) {
		return usagef("a global switch needs --confirm=global and --incident").
			hint("This protects against a scope typed too short.").hint("Try:  %s", o.tryLine())
	}
	if o.scope.Level() == engine.LevelNamespace && !o.dryRun && o.confirm == "" && !a.interactive() {
		return usagef("a switch on a whole namespace needs --confirm=%s", o.scope).
			hint("This protects against a scope typed too short.")
	}
	if !o.dryRun && !o.yes && o.confirm == "" && !a.interactive() {
		if o.reason == "" {
			return cannotAsk("--reason and --yes")
		}
		return cannotAsk("--yes")
	}
	if o.reason != "" {
		return nil
	}
	if !a.interactive() {
		return usagef("--reason is missing: say in a few words why")
	}
	a.err.printf("Reason: ")
	reason, err := a.readLine(ctx)
	if o.reason = reason; err == nil && reason == "" {
		return usagef("a switch needs a reason: --reason")
	}
	return err
}

func (o *startOptions) request() *policydv1.StartSwitchRequest {
	crit, _ := engine.ParseCriticality(o.below)
	sw := engine.Switch{
		Action: o.action, Scope: o.scope, Criticality: crit, Percent: o.percent,
		Factor: o.factor.micro, Admit: o.admit.micro, Restore: o.restore,
		Reason: o.reason, Incident: o.incident,
	}
	for _, e := range o.except {
		sw.Except = append(sw.Except, engine.Scope(e))
	}
	slices.Sort(sw.Except)
	return startRequest(o.id, sw, o.duration, o.ends, o.drill)
}

// startRequest asks for a switch that lasts for d, or until ends if that is set.
func startRequest(id string, sw engine.Switch, d time.Duration, ends time.Time, drill bool) *policydv1.StartSwitchRequest {
	req := &policydv1.StartSwitchRequest{Id: id, Spec: sdkwire.SpecOf(sw), Via: via, Drill: drill}
	if ends.IsZero() {
		req.End = &policydv1.StartSwitchRequest_ExpiresIn{ExpiresIn: durationpb.New(d)}
	} else {
		req.End = &policydv1.StartSwitchRequest_ExpiresAt{ExpiresAt: timestamppb.New(ends)}
	}
	if sw.Scope == engine.Global {
		req.Confirm = string(engine.Global)
	}
	return req
}

func (a *app) startSwitch(ctx context.Context, o *startOptions) error {
	if err := a.settle(ctx, o); err != nil {
		return err
	}
	if err := a.banner(); err != nil {
		return err
	}
	req := o.request()
	req.DryRun = true
	preview, err := read(ctx, a, policydv1.AdminServiceClient.StartSwitch, req)
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.showPreview(o, preview)
	}
	if a.human() {
		for _, line := range a.previewLines(preview) {
			a.say("%s\n", line)
		}
	}
	if err := a.confirmSwitch(ctx, o); err != nil {
		return err
	}
	req.DryRun = false
	started, err := write(ctx, a, policydv1.AdminServiceClient.StartSwitch, req)
	if err != nil {
		return err
	}
	return a.followSwitch(ctx, o, started)
}

func (a *app) confirmSwitch(ctx context.Context, o *startOptions) error {
	switch {
	case o.confirm != "":
		return nil
	case o.scope.Level() <= engine.LevelNamespace:
		return a.confirmScope(ctx, string(o.scope), "--confirm="+string(o.scope))
	case o.yes:
		return nil
	}
	return a.confirm(ctx, "Switch on?", "--yes")
}

type previewView struct {
	envelope
	Action         string           `json:"action"`
	Scope          string           `json:"scope"`
	Instances      int64            `json:"instances"`
	Services       map[string]int64 `json:"services"`
	CallsPerSecond float64          `json:"callsPerSecond"`
	StopsPerSecond float64          `json:"stopsPerSecond"`
	RescuedShare   float64          `json:"rescuedShare"`
	Unreached      []string         `json:"unreached"`
	Overlaps       []string         `json:"overlaps"`
}

func (a *app) showPreview(o *startOptions, resp *policydv1.StartSwitchResponse) error {
	p := resp.GetPreview()
	view := previewView{
		kind("SwitchPreview"), string(o.action), string(o.scope), p.GetInstances(), p.GetServices(),
		p.GetCallsPerSecond(), p.GetStopsPerSecond(), p.GetRescuedShare(),
		append([]string{}, p.GetUnreached()...), append([]string{}, p.GetOverlaps()...),
	}
	return a.result(string(o.scope), view, func() {
		for _, line := range a.previewLines(resp) {
			a.out.printf("%s\n", line)
		}
		a.out.printf("Dry run: nothing was switched on.\n")
	})
}

func (a *app) previewLines(resp *policydv1.StartSwitchResponse) []string {
	k, p := resp.GetStatus().GetKillSwitch(), resp.GetPreview()
	scope := engine.Scope(k.GetSpec().GetScope())
	title := fmt.Sprintf("%s on %s %s", actionWord(k), scope.Level(), switchScope(k))
	if scope == engine.Global {
		title = fmt.Sprintf("%s on %s", actionWord(k), switchScope(k))
	}
	title += fmt.Sprintf(" for %s, until %s", shortDuration(resp.GetStatus().GetLeft().AsDuration().Round(time.Second)), clock(k.GetExpiresAt().AsTime()))
	lines := []string{title, "", "  reaches    " + reachText(p)}
	calls := p.GetCallsPerSecond()
	what := map[policydv1.SwitchAction]string{
		policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES: "retries/s",
		policydv1.SwitchAction_SWITCH_ACTION_TIGHTEN_BUDGET:  "retries/s",
		policydv1.SwitchAction_SWITCH_ACTION_FORCE_OPEN:      "calls/s",
	}[k.GetSpec().GetAction()]
	if what != "" && calls > 0 {
		lines = append(lines, fmt.Sprintf("  stops      about %s %s (%s of %s calls/s)", rate(p.GetStopsPerSecond()), what, percent(p.GetStopsPerSecond()/calls), rate(calls)))
	}
	if what == "retries/s" && calls > 0 {
		lines = append(lines, fmt.Sprintf("  costs      %s of calls now succeed only on a retry and would fail", percent(p.GetRescuedShare())))
	}
	if k.GetSpec().GetAction() == policydv1.SwitchAction_SWITCH_ACTION_FORCE_CLOSED {
		lines = append(lines, "  costs      calls keep hitting a service that fails")
	}
	if n := len(p.GetUnreached()); n > 0 {
		lines = append(lines, fmt.Sprintf("  unreached  %d without a live connection: %s", n, few(p.GetUnreached())))
	}
	return append(lines, "  overlaps   "+few(p.GetOverlaps()))
}

func reachText(p *policydv1.SwitchPreview) string {
	text := plural(p.GetInstances(), "instance", "instances")
	type service struct {
		name string
		n    int64
	}
	var services []service
	for name, n := range p.GetServices() {
		services = append(services, service{name, n})
	}
	slices.SortFunc(services, func(x, y service) int {
		if x.n != y.n {
			return int(y.n - x.n)
		}
		return strings.Compare(x.name, y.name)
	})
	var parts []string
	for _, s := range services[:min(len(services), 5)] {
		parts = append(parts, clean(s.name)+" "+count(s.n))
	}
	if len(services) > 5 {
		parts = append(parts, fmt.Sprintf("and %d more services", len(services)-5))
	}
	if len(parts) == 0 {
		return text
	}
	return text + ": " + strings.Join(parts, ", ")
}

func few(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	const most = 5
	text := clean(strings.Join(names[:min(len(names), most)], ", "))
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

func clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// followSwitch waits for a switch and prints how it went.
func (a *app) followSwitch(ctx context.Context, o *startOptions, started *policydv1.StartSwitchResponse) error {
	st := started.GetStatus()
	id := st.GetKillSwitch().GetId()
	if a.human() {
		word := "is on"
		if started.GetExisted() {
			word = "was on already, nothing was written"
		}
		a.done("%s %s %s, revision %d\n", a.out.green("✓"), clean(id), word, st.GetRevision())
	}
	var end *outcome
	if !o.wait.noWait {
		var err error
		subject := &policydv1.WatchProgressRequest{Subject: &policydv1.WatchProgressRequest_SwitchId{SwitchId: id}}
		if end, err = a.await(ctx, subject, o.wait.goal, a.meter(id, o.wait.goal)); err != nil {
			return err
		}
		if end.last != nil {
			st.Progress = end.progress()
		}
	}
	object, err := switchObject(st)
	if err != nil {
		return err
	}
	err = a.result(id, object, func() {
		if end != nil {
			a.report(end)
			if end.interrupted {
				a.say("Stopped waiting; the switch is on and stays on.\n")
			}
		}
		a.done("\nExtend  policyctl switch extend %s --for 30m\nRevert  policyctl switch revert %s\n", clean(id), clean(id))
	})
	if err != nil || end == nil {
		return err
	}
	return end.exit()
}
