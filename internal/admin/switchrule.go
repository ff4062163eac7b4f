// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

const allInstances = 100

// checkStart returns the switch that req asks for, or every rule that it breaks.
func checkStart(req StartRequest, id string, now time.Time) (*policy.Switch, error) {
	sw := &policy.Switch{Phase: policy.PhaseActive, Switch: req.Spec}
	sw.ID, sw.Revision, sw.Drill = id, 0, req.Drill
	sw.Reason, sw.Incident = strings.TrimSpace(sw.Reason), strings.TrimSpace(sw.Incident)
	sw.Except = slices.Clone(sw.Except)
	slices.Sort(sw.Except)
	sw.Except = slices.Compact(sw.Except)
	sw.Ends = req.ExpiresAt
	if req.ExpiresIn != 0 {
		sw.Ends = now.Add(req.ExpiresIn)
	}
	broken := violations(engine.ValidateSwitch(sw.Switch, now))
	add := func(path, value, rule, fix string) {
		broken = append(broken, fault.Violation{Scope: string(sw.Scope), Path: path, Value: value, Rule: rule, Fix: fix})
	}
	switch {
	case req.ExpiresIn != 0 && !req.ExpiresAt.IsZero():
		add("expiresIn", engine.FormatDuration(req.ExpiresIn), "excludes expiresAt", "")
	case !sw.Ends.IsZero() && !sw.Ends.After(now):
		add("expiresAt", sw.Ends.UTC().Format(time.RFC3339), "must be in the future", "policyd's clock says "+now.UTC().Format(time.RFC3339))
	}
	if sw.Action == engine.TightenBudget && req.FactorAbsent {
		add("spec.factor", "", "required for tighten-budget", "0.25 leaves a quarter of the budget")
	}
	unnamed := sw.Scope == engine.Global && sw.Incident == ""
	if unnamed {
		broken = slices.DeleteFunc(broken, func(v fault.Violation) bool { return v.Path == "spec.incident" })
	}
	switch {
	case len(broken) > 0:
		return nil, invalid("switch_invalid", broken...)
	case unnamed || sw.Scope == engine.Global && req.Confirm != string(engine.Global):
		return nil, fault.New(fault.Refused, "global_unconfirmed", "a global switch needs --confirm=global and --incident").
			WithHint("This protects against a scope typed too short.")
	}
	return sw, nil
}

func violations(broken []engine.Violation) []fault.Violation {
	found := make([]fault.Violation, len(broken))
	for i, v := range broken {
		found[i] = fault.Violation{Scope: string(v.Scope), Path: v.Path, Value: v.Value, Rule: v.Rule, Fix: v.Fix}
	}
	return found
}

func checkSwitchCount(view *policy.View) error {
	active := 0
	for _, sw := range view.Switches {
		if sw.Phase == policy.PhaseActive {
			active++
		}
	}
	if active >= engine.MaxActiveSwitches {
		return fault.New(fault.Exhausted, "too_many_switches", "%d switches are active, the limit", active).
			WithHint("Revert those that are no longer needed, or use one of a wider scope.")
	}
	return nil
}

func checkRevert(req *RevertRequest) error {
	given := 0
	for _, is := range []bool{len(req.IDs) > 0, req.Incident != "", req.Scope != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return fault.New(fault.Invalid, "selection_invalid", "name switches by exactly one of ids, incident or scope")
	}
	if len(req.IDs) > MaxBatch {
		return fault.New(fault.Refused, "batch_too_large", "%d switches are named: at most %d in one step", len(req.IDs), MaxBatch)
	}
	return checkScopeFilter(req.Scope)
}

// checkScopeFilter accepts valid scopes and "".
func checkScopeFilter(scope engine.Scope) error {
	if scope == "" {
		return nil
	}
	return checkScope(scope)
}

func checkScope(scope engine.Scope) error {
	if _, err := engine.ParseScope(string(scope)); err != nil {
		return invalid("scope_invalid", fault.Violation{Path: "scope", Value: clip(string(scope)), Rule: err.Error()})
	}
	return nil
}

// clip bounds what an error repeats of its input.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
