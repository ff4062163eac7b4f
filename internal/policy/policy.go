// SPDX-License-Identifier: Apache-2.0

// Package policy holds policyd's domain: documents, kill switches, revisions and the view
// of all of them. Values are immutable once published. It does no I/O.
package policy

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Revision is the etcd revision of a change: one counter for the whole control plane.
type Revision int64

// Epoch names one life of the data; revisions of different epochs do not compare.
type Epoch string

// Actor is who did something, and through what.
type Actor struct {
	Name string
	Via  string
}

// Metadata says whose document it is and who wrote it.
type Metadata struct {
	Owner       string
	Labels      map[string]string
	Annotations map[string]string
	ManagedBy   string
	CreatedBy   Actor
	CreatedAt   time.Time
	UpdatedBy   Actor
	UpdatedAt   time.Time
}

// Policy is the document at one scope. Revision is 0 until it is stored.
type Policy struct {
	Scope    engine.Scope
	Metadata Metadata
	Settings engine.Settings
	Revision Revision
}

// LabelCriticality is the label that switches select on.
const LabelCriticality = "criticality"

// Phase is where a kill switch is in its life.
type Phase string

// Phases of a kill switch.
const (
	PhaseActive    Phase = "active"
	PhaseRestoring Phase = "restoring" // ended, coming back over Restore
	PhaseExpired   Phase = "expired"
	PhaseReverted  Phase = "reverted"
)

// Switch is a kill switch as stored: what it does, who started it, where it is in its life.
// The embedded Ends is on the wall clock of policyd.
type Switch struct {
	engine.Switch
	Phase     Phase
	EndedAt   time.Time
	CreatedBy Actor
	CreatedAt time.Time
	UpdatedBy Actor
	UpdatedAt time.Time
}

// PolicyKey and SwitchKey return the storage key below the version prefix.
func PolicyKey(s engine.Scope) string { return "policies/" + string(s) }

// SwitchKey returns the storage key of a kill switch.
func SwitchKey(id string) string { return "switches/" + id }
