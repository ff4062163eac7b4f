// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func newStatusCmd(a *app) *cobra.Command {
	watching := false
	cmd := &cobra.Command{
		Use:   "status [SCOPE]",
		Short: "What is going on, on one screen",
		Example: `  policyctl status
  policyctl status shop/payments --watch`,
		Args:              maxArgs(1),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := optionalScope(args)
			if err != nil {
				return err
			}
			if watching {
				return a.watchStatus(cmd.Context(), scope)
			}
			return a.status(cmd.Context(), scope)
		},
	}
	watchVar(cmd, &watching)
	return cmd
}

func watchVar(cmd *cobra.Command, watching *bool) {
	cmd.Flags().BoolVarP(watching, "watch", "w", false, "keep showing what changes until Ctrl-C")
}

func (a *app) status(ctx context.Context, scope engine.Scope) error {
	st, err := a.loadStatus(ctx, scope)
	if err != nil {
		return err
	}
	view, err := viewStatus(st)
	if err != nil {
		return err
	}
	return a.result(fmt.Sprint(st.GetRevision()), view, func() {
		for _, line := range a.statusLines(st) {
			a.out.printf("%s\n", line)
		}
	})
}

func (a *app) loadStatus(ctx context.Context, scope engine.Scope) (*policydv1.GetStatusResponse, error) {
	return read(ctx, a, policydv1.AdminServiceClient.GetStatus, &policydv1.GetStatusRequest{Scope: string(scope)})
}

// watchStatus redraws the screen, or prints a JSON object each time that something changed.
func (a *app) watchStatus(ctx context.Context, scope engine.Scope) error {
	if a.out.tty && a.human() {
		for {
			st, err := a.loadStatus(ctx, scope)
			switch {
			case ctx.Err() != nil:
				return exitError(exitInterrupted)
			case err != nil:
				a.out.printf("\x1b[H\x1b[2J%s\n%s\n", a.env.Now().UTC().Format("15:04:05 UTC"), clean(err.Error()))
			default:
				a.out.printf("\x1b[H\x1b[2J%s\n", strings.Join(a.statusLines(st), "\n"))
			}
			if !pause(ctx, watchEvery) {
				return exitError(exitInterrupted)
			}
		}
	}
	return a.watch(ctx, func(ctx context.Context) (*list, error) {
		st, err := a.loadStatus(ctx, scope)
		if err != nil {
			return nil, err
		}
		view, err := viewStatus(st)
		if err != nil {
			return nil, err
		}
		p := st.GetFleet()
		return &list{
			kind: view.Kind, revision: st.GetRevision(), columns: cols("REVISION", "SWITCHES", "IN FORCE", "RETRIES"),
			items: []item{{name: "status", value: view, cells: []string{
				fmt.Sprint(st.GetRevision()), fmt.Sprint(len(st.GetSwitches())),
				count(p.GetInForce()) + "/" + count(p.GetTarget()), rate(st.GetTraffic().GetRetriesPerSecond()) + "/s",
			}}},
		}, nil
	})
}

type statusView struct {
	envelope
	Revision   int64                       `json:"revision"`
	Epoch      string                      `json:"epoch"`
	Version    string                      `json:"version"`
	StoreStale bool                        `json:"storeStale"`
	StoreAsOf  *time.Time                  `json:"storeAsOf,omitempty"`
	RelayOf    string                      `json:"relayOf,omitempty"`
	Switches   []*document.Object          `json:"switches"`
	Fleet      progressView                `json:"fleet"`
	Traffic    trafficView                 `json:"traffic"`
	Breakers   map[string]map[string]int64 `json:"breakers"`
	Backlog    int64                       `json:"outboxBacklog"`
	// Peers are the other replicas of policyd, and relays.
	Peers []peerView `json:"peers,omitempty"`
}

type peerView struct {
	Address   string     `json:"address"`
	Version   string     `json:"version"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Silent    bool       `json:"silent"`
	Relay     bool       `json:"relay,omitempty"`
}

type trafficView struct {
	Calls      float64            `json:"callsPerSecond"`
	Attempts   float64            `json:"attemptsPerSecond"`
	Retries    float64            `json:"retriesPerSecond"`
	Rescued    float64            `json:"rescuedPerSecond"`
	Rejected   float64            `json:"rejectedPerSecond"`
	Suppressed map[string]float64 `json:"suppressedPerSecond"`
}

func viewStatus(st *policydv1.GetStatusResponse) (*statusView, error) {
	t := st.GetTraffic()
	v := &statusView{
		envelope: kind("Status"), Revision: st.GetRevision(), Epoch: st.GetEpoch(), Version: st.GetVersion(),
		StoreStale: st.GetStoreStale(), RelayOf: st.GetRelayOf(), Switches: []*document.Object{}, Fleet: viewProgress(st.GetFleet()),
		Traffic: trafficView{
			t.GetCallsPerSecond(), t.GetAttemptsPerSecond(), t.GetRetriesPerSecond(),
			t.GetRescuedPerSecond(), t.GetRejectedPerSecond(), t.GetSuppressedPerSecond(),
		},
		Breakers: map[string]map[string]int64{}, Backlog: st.GetOutboxBacklog(),
	}
	if st.GetStoreStale() {
		v.StoreAsOf = timeView(st.GetStoreAsOf())
	}
	for _, s := range st.GetSwitches() {
		o, err := switchObject(s)
		if err != nil {
			return nil, err
		}
		v.Switches = append(v.Switches, o)
	}
	for _, p := range st.GetPeers() {
		v.Peers = append(v.Peers, peerView{p.GetAddress(), p.GetVersion(), timeView(p.GetStartedAt()), p.GetSilent(), p.GetRelay()})
	}
	for _, b := range st.GetBreakers() {
		v.Breakers[b.GetEndpoint()] = b.GetStates()
	}
	return v, nil
}

// A switch that ends sooner is pointed out.
const endsSoon = 5 * time.Minute

func (a *app) statusLines(st *policydv1.GetStatusResponse) []string {
	name := a.addr()
	if s, err := a.config(); err == nil {
		name = s.name()
	}
	head := fmt.Sprintf("%s   policyd %s, revision %d", name, orDash(st.GetVersion()), st.GetRevision())
	lines := []string{pad(head, 72) + st.GetServerTime().AsTime().Format("15:04:05 UTC"), ""}
	if of := clean(st.GetRelayOf()); of != "" && st.GetStoreStale() {
		lines = append(lines, a.out.yellow("RELAY      of "+of+", cut off: what it serves is as of "+a.ago(st.GetStoreAsOf().AsTime())+" ago"), "")
	} else if of != "" {
		lines = append(lines, "RELAY      of "+of+": the instances below are those behind it", "")
	} else if st.GetStoreStale() {
		lines = append(lines, a.out.yellow("STORE      no quorum: reads are as of "+a.ago(st.GetStoreAsOf().AsTime())+" ago, writes may be refused"), "")
	}
	lines = append(lines, a.statusSwitches(st.GetSwitches())...)
	p, t := st.GetFleet(), st.GetTraffic()
	fleet := fmt.Sprintf("%s of %s in force", count(p.GetInForce()), count(p.GetTarget()))
	if p.GetTarget() == 0 {
		fleet = "no instances"
	}
	for _, part := range []struct {
		n    int64
		word string
	}{{p.GetBehind(), "behind"}, {p.GetRejected(), "rejected"}, {p.GetStale(), "stale"}} {
		if part.n > 0 {
			fleet += fmt.Sprintf("   %s %s", count(part.n), part.word)
		}
	}
	lines = append(lines, "FLEET      "+a.paintProgress(p, fleet), "BREAKERS   "+a.breakerLine(st.GetBreakers()))
	calls := t.GetCallsPerSecond()
	if rejected := t.GetRejectedPerSecond(); rejected > 0 && calls > 0 {
		lines = append(lines, a.out.yellow(fmt.Sprintf("REJECTED   %s/s of %s calls/s (%s) were not sent", rate(rejected), rate(calls), percent(rejected/calls))))
	}
	if calls > 0 {
		lines = append(lines, fmt.Sprintf("RETRIES    %s/s of %s calls/s   amplification %.2fx   rescued %s",
			rate(t.GetRetriesPerSecond()), rate(calls), t.GetAttemptsPerSecond()/calls, percent(t.GetRescuedPerSecond()/calls)))
	} else {
		lines = append(lines, "RETRIES    no calls reported")
	}
	if s := a.suppressedLine(t.GetSuppressedPerSecond()); s != "" {
		lines = append(lines, "SUPPRESSED "+s)
	}
	if s := a.peersLine(st.GetPeers()); s != "" {
		lines = append(lines, "POLICYD    "+s)
	}
	return append(lines, a.nextSteps(st)...)
}

// peersLine counts the replicas, if there is more than the one that was asked, and relays.
func (a *app) peersLine(others []*policydv1.PeerStatus) string {
	if len(others) == 0 {
		return ""
	}
	var silent []string
	replicas, relays := int64(1), int64(0)
	for _, p := range others {
		if p.GetRelay() {
			relays++
		} else {
			replicas++
		}
		if p.GetSilent() {
			silent = append(silent, clean(p.GetAddress()))
		}
	}
	line := plural(replicas, "replica", "replicas")
	if relays > 0 {
		line += ", " + plural(relays, "relay", "relays")
	}
	if len(silent) > 0 {
		return a.out.yellow(fmt.Sprintf("%s   no answer from %s: instances there are not counted", line, strings.Join(silent, ", ")))
	}
	return line
}

func pad(s string, to int) string {
	if n := width(s); n < to {
		return s + strings.Repeat(" ", to-n)
	}
	return s + "  "
}

func (a *app) statusSwitches(all []*policydv1.SwitchStatus) []string {
	if len(all) == 0 {
		return []string{"KILL SWITCHES  none: normal policies apply everywhere", ""}
	}
	active := 0
	rows := [][]string{{"  ID", "ACTION", "SCOPE", "LEFT", "INCIDENT", "BY", "IN FORCE", ""}}
	for _, s := range all {
		k := s.GetKillSwitch()
		note := ""
		left := shortDuration(s.GetLeft().AsDuration())
		switch {
		case k.GetPhase() != policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE:
			left, note = enumWord(k.GetPhase().String(), "SWITCH_PHASE_"), "coming back"
		case s.GetLeft().AsDuration() < endsSoon:
			left, note = left+" !", a.out.yellow("ends soon")
			active++
		default:
			active++
		}
		rows = append(rows, []string{
			"  " + clean(k.GetId()), actionWord(k), switchScope(k), left, orDash(k.GetSpec().GetIncident()),
			orDash(k.GetCreatedBy().GetName()), a.inForce(s.GetProgress()), note,
		})
	}
	head := fmt.Sprintf("KILL SWITCHES  %d active", active)
	if ending := len(all) - active; ending > 0 {
		head += fmt.Sprintf(", %d coming back", ending)
	}
	lines := []string{head}
	return append(append(lines, align(rows)...), "")
}

func actionWord(k *policydv1.KillSwitch) string {
	return enumWord(k.GetSpec().GetAction().String(), "SWITCH_ACTION_")
}

// switchScope is the scope with what narrows or weighs the switch.
func switchScope(k *policydv1.KillSwitch) string {
	spec, extra := k.GetSpec(), []string(nil)
	switch spec.GetAction() {
	case policydv1.SwitchAction_SWITCH_ACTION_TIGHTEN_BUDGET:
		extra = append(extra, fmt.Sprintf("x%g", spec.GetFactor()))
	case policydv1.SwitchAction_SWITCH_ACTION_FORCE_OPEN:
		if spec.GetAdmit() > 0 {
			extra = append(extra, fmt.Sprintf("admits %.4g %%", spec.GetAdmit()*100))
		}
	default:
	}
	if spec.Percent != nil && spec.GetPercent() < 100 {
		extra = append(extra, fmt.Sprintf("%d %% of instances", spec.GetPercent()))
	}
	if k.GetDrill() {
		extra = append(extra, "drill")
	}
	if len(extra) == 0 {
		return clean(spec.GetScope())
	}
	return clean(spec.GetScope()) + " (" + strings.Join(extra, ", ") + ")"
}

func (a *app) inForce(p *policydv1.Progress) string {
	return a.paintProgress(p, count(p.GetInForce())+"/"+count(p.GetTarget()))
}

func (a *app) breakerLine(all []*policydv1.BreakerSummary) string {
	totals := map[string]int64{}
	worst, worstOpen, worstAll := "", int64(0), int64(0)
	for _, b := range all {
		open, sum := int64(0), int64(0)
		for state, n := range b.GetStates() {
			totals[state] += n
			sum += n
			if state != "closed" {
				open += n
			}
		}
		if open > worstOpen {
			worst, worstOpen, worstAll = b.GetEndpoint(), open, sum
		}
	}
	var parts []string
	for _, state := range []string{"open", "half-open", "forced-open", "forced-closed"} {
		if totals[state] > 0 {
			parts = append(parts, count(totals[state])+" "+state)
		}
	}
	if len(parts) == 0 {
		return "none open"
	}
	return fmt.Sprintf("%s   worst: %s on %s of %s", a.out.yellow(strings.Join(parts, ", ")), clean(worst), count(worstOpen), count(worstAll))
}

func (a *app) suppressedLine(by map[string]float64) string {
	type reason struct {
		code string
		n    float64
	}
	var reasons []reason
	for code, n := range by {
		if n > 0 {
			reasons = append(reasons, reason{code, n})
		}
	}
	slices.SortFunc(reasons, func(x, y reason) int {
		if x.n != y.n {
			if x.n > y.n {
				return -1
			}
			return 1
		}
		return strings.Compare(x.code, y.code)
	})
	var parts []string
	for _, r := range reasons[:min(len(reasons), 3)] {
		parts = append(parts, rate(r.n)+"/s "+clean(r.code))
	}
	return strings.Join(parts, ", ")
}

// nextSteps are the two most useful next commands.
func (a *app) nextSteps(st *policydv1.GetStatusResponse) []string {
	var next []string
	for _, s := range st.GetSwitches() {
		if s.GetKillSwitch().GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE && s.GetLeft().AsDuration() < endsSoon {
			next = append(next, "policyctl switch extend "+clean(s.GetKillSwitch().GetId())+" --for 30m")
			break
		}
	}
	if p := st.GetFleet(); p.GetInForce() < p.GetTarget() {
		next = append(next, "policyctl fleet --not-in-force")
	}
	if len(next) < 2 && len(st.GetSwitches()) > 0 {
		next = append(next, "policyctl switch list")
	}
	if len(next) == 0 {
		next = append(next, "policyctl get policies")
	}
	lines := []string{""}
	for i, n := range next[:min(len(next), 2)] {
		prefix := "Next:  "
		if i > 0 {
			prefix = "       "
		}
		lines = append(lines, prefix+n)
	}
	return lines
}
