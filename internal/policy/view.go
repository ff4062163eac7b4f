// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// View is everything in the store at one revision. Immutable; share it freely.
type View struct {
	Epoch    Epoch
	Revision Revision
	// Policies by scope and switches by id, as of Revision.
	Policies map[engine.Scope]*Policy
	Switches map[string]*Switch
	// Ended switches of the last 24 h by id.
	Ended map[string]*Switch
	// AsOf is when the store last confirmed the view; Stale says that it should have since.
	AsOf  time.Time
	Stale bool
}

// Update is what one store revision changed, or with Reset everything there is.
type Update struct {
	Epoch    Epoch
	Revision Revision
	// Reset: forget everything known before.
	Reset   bool
	Changes []Change
	// DeletionsKnownSince: a reader at an older revision may have missed a deletion and
	// needs a snapshot.
	DeletionsKnownSince Revision
	// History is the past that led here; nil: not known.
	History *History
	// Token is the proof that the revision was served, where it is not made from History.
	Token []byte
}

// Change is one document that was written or deleted.
type Change struct {
	Key      string
	Revision Revision
	// Document is the encoded policyd.v1 Policy or KillSwitch, nil after a deletion. Shared:
	// it must not be changed.
	Document []byte
	// Scope of the policy, or of the switch.
	Scope engine.Scope
	// Urgent changes concern kill switches; they are never gathered.
	Urgent bool
}

// Deleted reports whether the change is a deletion.
func (c Change) Deleted() bool { return c.Document == nil }

// Transaction is a set of writes that happen all or not at all.
type Transaction struct {
	PutPolicies []PolicyPut
	PutSwitches []SwitchPut
	Deletes     []Deletion
	// End moves switches from the active ones to the ended ones.
	End []SwitchPut
	// Entry is the record written with the transaction; nil only for house-keeping.
	Entry *Entry
}

// PolicyPut writes a policy if its revision is still Expected; 0: it must not exist.
type PolicyPut struct {
	Policy   *Policy
	Expected Revision
}

// SwitchPut writes a switch if its revision is still Expected; 0: it must not exist.
type SwitchPut struct {
	Switch   *Switch
	Expected Revision
}

// Deletion removes the policy of a scope if its revision is still Expected.
type Deletion struct {
	Scope    engine.Scope
	Expected Revision
}

// Entry is the record of who changed what and why, stored in the same transaction.
type Entry struct {
	ID        string
	At        time.Time
	Actor     Actor
	Action    string // "policy.apply", "policy.delete", "switch.start", "switch.extend", "switch.revert", "switch.expired"
	Scopes    []engine.Scope
	SwitchID  string
	Incident  string
	Reason    string
	RequestID string
	Changes   []EntryChange
}

// EntryChange is one document before and after, as JSON; empty: absent.
type EntryChange struct {
	Key, Before, After string
}

// ConflictError says which document moved on and who moved it. It wraps a fault of kind
// Conflict.
type ConflictError struct {
	Key      string
	Scope    engine.Scope
	Expected Revision
	Current  Revision // 0: gone
	By       Actor
	At       time.Time
	Policy   *Policy // current document, if it is a policy that exists
	Err      error
}

func (e *ConflictError) Error() string { return e.Err.Error() }

func (e *ConflictError) Unwrap() error { return e.Err }
