// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// A script drives one endpoint through calls, edits and switches, step by step.
type script struct {
	Name     string
	Use      []string
	Settings map[string]json.RawMessage
	Mode     string
	Switches []scriptSwitch
	Draws    []uint64
	Steps    []scriptStep
}

type scriptFile struct {
	Presets map[string]map[string]json.RawMessage
	Cases   []script
}

type scriptSwitch struct {
	ID            string
	Action        engine.Action
	Factor, Admit int64
	Ends, Restore json.RawMessage
}

type scriptStep struct {
	At json.RawMessage

	Begin      string
	Again      bool   // of begin: calls that were kept
	Endpoint   string // of begin and stats; the first one by default
	Host       string // of begin
	Hosts      int    // of begin: one call to each of so many hosts
	Times      int
	Deadline   json.RawMessage
	Unsafe     bool // neither idempotent nor keyed
	Keyed      bool
	NoRetry    bool
	Settle     string
	First      int
	Outcome    string
	RetryAfter *string
	Pushback   *string
	NotSent    bool
	BodyLost   bool
	Enter      string
	Hedge      string
	HedgeAfter string
	Attempt    int // of settle, among several at once
	Resume     string
	Abandon    string

	Reload   map[string]json.RawMessage
	Use      []string
	Mode     string
	Switches *[]scriptSwitch

	Stats map[string]any

	Want any
	Why  string
}

// scriptRun is a script in progress.
type scriptRun struct {
	t       *testing.T
	file    *scriptFile
	origin  time.Time
	e       *engine.Endpoint
	others  map[string]*engine.Endpoint // of the same service
	shared  *engine.SharedBudget
	calls   map[string][]*engine.Call
	policy  engine.Policy
	overlay engine.Overlay
	mode    engine.Mode
	draws   []uint64
	drawn   int
}

// runScriptsBeside is runScripts for a file that has quantiles beside its scripts.
func runScriptsBeside(t *testing.T, file string) {
	t.Helper()
	var vectors struct {
		scriptFile
		Quantiles json.RawMessage
	}
	readVectors(t, file, &vectors)
	runCases(t, &vectors.scriptFile)
}

func runScripts(t *testing.T, file string, only ...string) {
	t.Helper()
	var vectors scriptFile
	readVectors(t, file, &vectors)
	runCases(t, &vectors, only...)
}

func runCases(t *testing.T, vectors *scriptFile, only ...string) {
	t.Helper()
	ran := 0
	for i := range vectors.Cases {
		s := &vectors.Cases[i]
		if len(only) > 0 && !slices.ContainsFunc(only, func(id string) bool { return strings.HasPrefix(s.Name, id+" ") }) {
			continue
		}
		ran++
		t.Run(s.Name, func(t *testing.T) { runScript(t, vectors, s) })
	}
	if ran == 0 || len(only) > ran {
		t.Fatalf("%d cases of %v", ran, only)
	}
}

func runScript(t *testing.T, file *scriptFile, s *script) {
	t.Helper()
	r := &scriptRun{
		t: t, file: file, calls: map[string][]*engine.Call{}, draws: s.Draws,
		origin: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	r.policy = r.compile(s.Use, s.Settings)
	r.overlay = r.compose(s.Switches)
	r.mode = r.parseMode(s.Mode)
	p := r.policy
	r.others = map[string]*engine.Endpoint{}
	r.shared = engine.NewSharedBudget(engine.Config{Origin: r.origin}, &p, r.overlay, 0)
	r.e = r.endpoint("", 0)
	for i := range s.Steps {
		step := &s.Steps[i]
		at := engine.Instant(0)
		if step.At != nil {
			at = engine.Instant(vectorDuration(t, step.At))
		}
		if got := r.step(at, step); !r.fits(got, step.Want) {
			t.Fatalf("step %d at %s: %v, want %v %s", i+1, time.Duration(at), got, step.Want, step.Why)
		}
	}
}

// endpoint returns an endpoint of the service, made at its first use.
func (r *scriptRun) endpoint(name string, at engine.Instant) *engine.Endpoint {
	e := r.others[name]
	if e == nil {
		p := r.policy
		e = engine.NewEndpoint(engine.Config{Origin: r.origin, Random: r.random, Mode: r.mode}, &p, r.overlay, at)
		e.Share(r.shared)
		r.others[name] = e
	}
	return e
}

func (r *scriptRun) random() uint64 {
	if len(r.draws) == 0 {
		return 0
	}
	d := r.draws[r.drawn%len(r.draws)]
	r.drawn++
	return d << 32
}

// compile merges presets and settings below ceilings that clip nothing.
func (r *scriptRun) compile(use []string, own map[string]json.RawMessage) engine.Policy {
	r.t.Helper()
	all := map[string]json.RawMessage{
		"ceilings.maxAttempts": json.RawMessage("10"), "ceilings.budgetRatio": json.RawMessage("1"),
		"ceilings.minRetriesPerSecond": json.RawMessage("1000"), "ceilings.timeoutsOverall": json.RawMessage(`"1h"`),
	}
	for _, name := range use {
		preset, ok := r.file.Presets[name]
		if !ok {
			r.t.Fatalf("no preset %q", name)
		}
		maps.Copy(all, preset)
	}
	maps.Copy(all, own)
	s := vectorSettings(r.t, all)
	if v := engine.Validate(engine.Global, s); len(v) > 0 {
		r.t.Fatalf("settings break rules: %v", v)
	}
	return engine.Compile(engine.Merge(engine.Global, []engine.Document{{Scope: engine.Global, Settings: s}}))
}

func (r *scriptRun) compose(in []scriptSwitch) engine.Overlay {
	r.t.Helper()
	var all []engine.Switch
	for _, s := range in {
		sw := engine.Switch{
			ID: s.ID, Action: s.Action, Scope: engine.Global, Percent: 100, Factor: s.Factor, Admit: s.Admit,
			Ends: r.origin.Add(vectorDuration(r.t, s.Ends)),
		}
		if s.Restore != nil {
			sw.Restore = vectorDuration(r.t, s.Restore)
		}
		all = append(all, sw)
	}
	return engine.Compose(all, "shop/payments/charge", engine.Standard, "instance-1")
}

func (r *scriptRun) parseMode(s string) engine.Mode {
	switch s {
	case "", "enforce":
		return engine.ModeEnforce
	case "observe":
		return engine.ModeObserve
	case "off":
		return engine.ModeOff
	}
	r.t.Fatalf("mode %q", s)
	return 0
}

// step carries out one step and returns what each call was told.
func (r *scriptRun) step(at engine.Instant, s *scriptStep) []string {
	switch {
	case s.Begin != "":
		return r.begin(at, s)
	case s.Settle != "":
		return r.each(s.Settle, s.First, func(c *engine.Call) *engine.Decision {
			o := r.outcome(s)
			if s.Attempt > 0 {
				return c.SettleAttempt(at, s.Attempt, o)
			}
			if o.Kind == engine.OutcomeOK && c.Succeed() {
				return &engine.Decision{}
			}
			return c.Settle(at, o)
		})
	case s.Hedge != "":
		return r.peek(s.Hedge, s.First, func(c *engine.Call) string { return say(c.Hedge(at)) })
	case s.HedgeAfter != "":
		return r.peek(s.HedgeAfter, s.First, func(c *engine.Call) string {
			if d, ok := c.HedgeAfter(); ok {
				return d.String()
			}
			return "none"
		})
	case s.Enter != "":
		return r.each(s.Enter, s.First, func(c *engine.Call) *engine.Decision { return c.Enter(at) })
	case s.Resume != "":
		return r.each(s.Resume, s.First, func(c *engine.Call) *engine.Decision { return c.Resume(at) })
	case s.Abandon != "":
		return r.each(s.Abandon, s.First, func(c *engine.Call) *engine.Decision {
			c.Abandon(at)
			return &engine.Decision{}
		})
	case s.Reload != nil || s.Use != nil:
		r.policy = r.compile(s.Use, s.Reload)
		r.reload(at)
	case s.Switches != nil:
		r.overlay = r.compose(*s.Switches)
		r.reload(at)
	case s.Mode != "":
		r.mode = r.parseMode(s.Mode)
		r.reload(at)
	case s.Stats != nil:
		r.stats(at, s)
	default:
		r.t.Fatalf("empty step %+v", s)
	}
	return nil
}

func (r *scriptRun) reload(at engine.Instant) {
	p := r.policy
	r.shared.Reload(&p, r.overlay, at)
	for _, name := range slices.Sorted(maps.Keys(r.others)) {
		r.others[name].Reload(&p, r.overlay, r.mode, at)
	}
}

func (r *scriptRun) begin(at engine.Instant, s *scriptStep) []string {
	o := engine.CallOptions{Idempotent: !s.Unsafe && !s.Keyed, Keyed: s.Keyed, NoRetry: s.NoRetry, Host: s.Host}
	if s.Deadline != nil {
		o.Deadline = engine.Instant(vectorDuration(r.t, s.Deadline))
	}
	var told []string
	r.calls[s.Begin] = nil
	for i := range max(s.Times, s.Hosts, 1) {
		c := new(engine.Call)
		if s.Hosts > 0 {
			o.Host = s.Host + strconv.Itoa(i+1)
		}
		begin := r.endpoint(s.Endpoint, at).Begin
		if s.Again {
			begin = r.endpoint(s.Endpoint, at).Again
		}
		d := begin(c, at, o)
		if d.Proceed || d.Queued {
			r.calls[s.Begin] = append(r.calls[s.Begin], c)
		}
		told = append(told, say(d))
	}
	return told
}

// each asks the calls of a group, or its next few, and keeps those that go on.
func (r *scriptRun) each(group string, first int, ask func(*engine.Call) *engine.Decision) []string {
	calls := r.calls[group]
	if len(calls) == 0 {
		r.t.Fatalf("no calls %q", group)
	}
	if first == 0 {
		first = len(calls)
	}
	var told []string
	later := slices.Clone(calls[first:])
	for _, c := range calls[:first] {
		d := ask(c)
		told = append(told, say(d))
		if d.Retry || d.Proceed || d.Pending {
			later = append(later, c)
		}
	}
	r.calls[group] = later
	return told
}

// peek asks the calls of a group, or its first few, something that ends none of them.
func (r *scriptRun) peek(group string, first int, ask func(*engine.Call) string) []string {
	calls := r.calls[group]
	if len(calls) == 0 {
		r.t.Fatalf("no calls %q", group)
	}
	if first == 0 {
		first = len(calls)
	}
	var told []string
	for _, c := range calls[:first] {
		told = append(told, ask(c))
	}
	return told
}

func (r *scriptRun) outcome(s *scriptStep) engine.Outcome {
	o := engine.Outcome{NotSent: s.NotSent, BodyLost: s.BodyLost}
	now := time.Date(2015, 10, 21, 7, 28, 0, 0, time.UTC)
	if s.RetryAfter != nil {
		o.Server = engine.ParseRetryAfter(*s.RetryAfter, now)
	}
	if s.Pushback != nil {
		o.Server = engine.ParsePushback(*s.Pushback)
	}
	kinds := map[string]engine.OutcomeKind{
		"ok": engine.OutcomeOK, "error": engine.OutcomeError, "retryable": engine.OutcomeRetryable,
		"permanent": engine.OutcomePermanent, "cancelled": engine.OutcomeCancelled, "panic": engine.OutcomePanic,
	}
	network := map[string]engine.NetworkFailure{
		"connect": engine.NetworkConnect, "reset": engine.NetworkReset, "timeout": engine.NetworkTimeout,
	}
	word, code, _ := strings.Cut(s.Outcome, " ")
	if kind, ok := kinds[word]; ok {
		o.Kind = kind
		return o
	}
	if o.Network = network[word]; o.Network != 0 {
		o.Kind = engine.OutcomeNetwork
		return o
	}
	n, err := strconv.Atoi(code)
	if err != nil || word != "http" && word != "grpc" {
		r.t.Fatalf("outcome %q", s.Outcome)
	}
	o.Kind, o.Code = engine.OutcomeHTTP, n
	if word == "grpc" {
		o.Kind = engine.OutcomeGRPC
	}
	return o
}

// say puts a decision into the words of the vectors.
func say(d *engine.Decision) string {
	said := "end"
	switch {
	case d.Pending:
		said = "pending"
	case d.Queued:
		said = "queued"
	case d.Retry:
		said = "retry " + d.Wait.String()
	case d.Observed && d.Code == "":
		said = "retry " + d.Wait.String()
	case d.Code != "":
		said = string(d.Code)
	case d.Proceed:
		said = "proceed"
	}
	if d.By != nil {
		said += " by " + d.By.ID
	}
	if d.Observed {
		said = "observed " + said
	}
	return said
}

// fits compares what calls were told with a word for all of them or a count for each word.
func (r *scriptRun) fits(told []string, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case string:
		for _, s := range told {
			if s != want {
				return false
			}
		}
		return len(told) > 0
	case map[string]any:
		counts := map[string]any{}
		for _, s := range told {
			n, _ := counts[s].(float64)
			counts[s] = n + 1
		}
		return reflect.DeepEqual(counts, want)
	}
	r.t.Fatalf("want %v", want)
	return false
}

func (r *scriptRun) stats(at engine.Instant, step *scriptStep) {
	r.t.Helper()
	s := r.endpoint(step.Endpoint, at).Stats(at)
	have := map[string]any{
		"calls": s.Calls, "attempts": s.Attempts(), "ok": s.OK, "rescued": s.Rescued, "failed": s.Failed,
		"cancelled": s.Cancelled, "rejected": s.Rejected, "retries": s.Retries, "hedges": s.Hedges, "hedgesAnswered": s.Hedged.Answered, "hedgesRescued": s.Hedged.Rescued, "hedgesFailed": s.Hedged.Failed, "hedgesLost": s.Hedged.Lost,
		"firstFailed": s.FirstFailed, "retriesFailed": s.RetriesFailed, "observed": s.Observed,
		"breaker": s.Breaker.State.String(), "rule": s.Breaker.Rule.String(), "until": time.Duration(s.Breaker.Until).String(),
		"admitted": s.Breaker.Admitted, "probes": s.Breaker.Probes, "succeeded": s.Breaker.Succeeded, "needed": s.Breaker.Needed,
		"allowed": s.Budget.Allowed, "used": s.Budget.Used, "left": s.Budget.Left,
		"tokens": s.Budget.Tokens, "capacity": s.Budget.Capacity,
		"running": s.Concurrency.Running, "waiting": s.Concurrency.Waiting,
		"gateKnown": s.Budget.Known, "gateSucceeded": s.Budget.Succeeded, "gateOpen": s.Budget.GateOpen,
	}
	for _, h := range s.Hosts {
		have["host."+h.Host] = h.State.String()
	}
	for key, want := range step.Stats {
		got, ok := have[key]
		if host, isHost := strings.CutPrefix(key, "host."); isHost && !ok {
			got, ok = "closed", host != ""
		}
		if code, isCode := strings.CutPrefix(key, "suppressed."); isCode {
			got, ok = s.Suppressed(engine.Code(code)), true
		}
		if !ok {
			r.t.Fatalf("no statistic %q", key)
		}
		if n, ok := want.(float64); ok {
			want = strconv.FormatFloat(n, 'f', -1, 64)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			r.t.Errorf("at %s: %s is %v, want %v %s", time.Duration(at), key, got, want, step.Why)
		}
	}
}
