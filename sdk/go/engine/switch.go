// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// Action is what a kill switch does.
type Action string

// Actions of kill switches.
const (
	DisableRetries Action = "disable-retries"
	TightenBudget  Action = "tighten-budget"
	ForceOpen      Action = "force-open"
	ForceClosed    Action = "force-closed"
	DisableHedging Action = "disable-hedging"
)

// Actions lists every action in the order of help texts.
func Actions() []Action {
	return []Action{DisableRetries, TightenBudget, ForceOpen, ForceClosed, DisableHedging}
}

// Switch is a kill switch as an engine sees it. Immutable.
type Switch struct {
	ID       string
	Revision int64
	Action   Action
	Scope    Scope
	Except   []Scope
	// Criticality limits the switch to endpoints at or below it; unspecified: all.
	Criticality Criticality
	// Percent of instances, 1 to 100, by a stable hash of id and instance.
	Percent int
	// Factor in millionths, for TightenBudget.
	Factor int64
	// Admit in millionths, for ForceOpen: the share of first attempts let through.
	Admit int64
	// Ends is when the override ends, on the time line of the engine's now.
	Ends time.Time
	// Restore is how long retries or admission take to come back after the end.
	Restore          time.Duration
	Reason, Incident string
	Drill            bool
}
