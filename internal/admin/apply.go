// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// MaxBatch is how many documents one transaction writes or deletes at most.
const MaxBatch = 100

// ApplyRequest is a set of changes that happen all or not at all.
type ApplyRequest struct {
	Changes   []PolicyChange
	Deletions []PolicyDeletion
	// PruneManagedBy also deletes the documents with this metadata that Changes does not
	// name; empty: none.
	PruneManagedBy string
	// DryRun validates and reports only.
	DryRun bool
	Reason string
	// Confirm names the namespaces, separated by commas, that may lose more than 20 % of
	// their policies.
	Confirm string
}

// PolicyChange replaces the document of a scope. Server-set metadata in Policy is ignored.
type PolicyChange struct {
	Policy *policy.Policy
	// Expected is the revision that the caller saw, 0: must not exist yet; nil is refused.
	Expected *policy.Revision
}

// PolicyDeletion removes the document of a scope.
type PolicyDeletion struct {
	Scope    engine.Scope
	Expected *policy.Revision
}

// ChangeKind is what happened to a document.
type ChangeKind string

// Kinds of changes.
const (
	Created   ChangeKind = "created"
	Changed   ChangeKind = "changed"
	Unchanged ChangeKind = "unchanged"
	Deleted   ChangeKind = "deleted"
)

// ApplyResult says what was, or with a dry run would be, written.
type ApplyResult struct {
	// Revision of the transaction; 0 when nothing was written.
	Revision policy.Revision
	Results  []ChangeResult
}

// ChangeResult is one document of an ApplyResult.
type ChangeResult struct {
	Scope engine.Scope
	Kind  ChangeKind
	// Revision of the document after the change, 0 when it is gone or not written yet;
	// Previous is the one before, 0 when it did not exist.
	Revision, Previous policy.Revision
	Fields             []policy.FieldChange
	Findings           []lint.Finding
	// Endpoints known to policyd whose effective policy changes, and instances that get it.
	Endpoints, Instances int
	// HiddenBy are the active switches that hide the change while they last.
	HiddenBy []string
}

// Apply validates the whole batch against the set that would result, then writes it in one
// transaction. A document that is already as wanted is left alone. Failures are Invalid
// with every violation, Conflict (a *policy.ConflictError) or Refused by a guard-rail.
func (s *Service) Apply(ctx context.Context, who Caller, req ApplyRequest) (*ApplyResult, error) {
	view, err := s.viewSeenBy(ctx, &req)
	if err != nil {
		return nil, err
	}
	s.ask(ctx) // whom the change would reach
	b, err := s.plan(view, req)
	if err != nil {
		return nil, err
	}
	result := &ApplyResult{Results: s.results(b)}
	if req.DryRun || b.writes() == 0 {
		return result, nil
	}
	tx := b.transaction(who, req.Reason, wallClock())
	// From here on the request is valid: only the store may refuse it.
	result.Revision, err = s.commit(ctx, tx)
	if err != nil {
		return nil, err
	}
	for i := range result.Results {
		if r := &result.Results[i]; r.Kind == Created || r.Kind == Changed {
			r.Revision = result.Revision
		}
	}
	return result, nil
}

// viewSeenBy returns a view that holds what the caller has seen. A revision that does not
// come although the view is fresh is not a revision of this store.
func (s *Service) viewSeenBy(ctx context.Context, req *ApplyRequest) (*policy.View, error) {
	view, err := s.viewAt(ctx, req.newestExpected())
	if now := s.store.View(); fault.KindOf(err) == fault.Unavailable && !now.Stale && ctx.Err() == nil {
		return now, nil
	}
	return view, err
}

func (req *ApplyRequest) newestExpected() policy.Revision {
	var newest policy.Revision
	for _, c := range req.Changes {
		if c.Expected != nil {
			newest = max(newest, *c.Expected)
		}
	}
	for _, d := range req.Deletions {
		if d.Expected != nil {
			newest = max(newest, *d.Expected)
		}
	}
	return newest
}

// batch is a request worked out against one view.
type batch struct {
	view *policy.View
	// items in the order of the request, deletions last.
	items []item
	// after is the set that would result.
	after policy.Set
}

// item is one document: before is nil when it is new, after is nil when it goes.
type item struct {
	scope         engine.Scope
	before, after *policy.Policy
}

func (it *item) kind() ChangeKind {
	switch {
	case it.after == nil:
		return Deleted
	case it.before == nil:
		return Created
	case sameContent(it.before, it.after):
		return Unchanged
	}
	return Changed
}

func (b *batch) writes() int {
	n := 0
	for i := range b.items {
		if b.items[i].kind() != Unchanged {
			n++
		}
	}
	return n
}

// plan checks every rule; after it only the store can refuse the batch.
func (s *Service) plan(view *policy.View, req ApplyRequest) (*batch, error) {
	if err := checkShape(&req); err != nil {
		return nil, err
	}
	b := &batch{view: view, after: maps.Clone(view.Policies)}
	if b.after == nil {
		b.after = make(policy.Set)
	}
	for _, c := range req.Changes {
		if err := checkExpected(view, c.Policy.Scope, *c.Expected); err != nil {
			return nil, err
		}
		b.add(c.Policy.Scope, c.Policy)
	}
	for _, d := range req.Deletions {
		if _, ok := view.Policies[d.Scope]; !ok && *d.Expected == 0 {
			return nil, fault.New(fault.NotFound, "policy_not_found", "there is no policy at %s", d.Scope)
		}
		if err := checkExpected(view, d.Scope, *d.Expected); err != nil {
			return nil, err
		}
		b.add(d.Scope, nil)
	}
	for _, scope := range prunable(view, &req) {
		b.add(scope, nil)
	}
	if err := b.validate(); err != nil {
		return nil, err
	}
	if n := b.writes(); n > MaxBatch {
		return nil, fault.New(fault.Refused, "batch_too_large",
			"%d documents would be written: at most %d in one step", n, MaxBatch).
			WithHint("Apply them in parts; each part is all or nothing.")
	}
	return b, b.checkRemovals(req.Confirm)
}

func (b *batch) add(scope engine.Scope, after *policy.Policy) {
	b.items = append(b.items, item{scope: scope, before: b.view.Policies[scope], after: after})
	if after == nil {
		delete(b.after, scope)
		return
	}
	b.after[scope] = after
}

// checkShape refuses requests that mean nothing or more than one thing.
func checkShape(req *ApplyRequest) error {
	if len(req.Changes) == 0 && req.PruneManagedBy != "" {
		return fault.New(fault.Refused, "prune_empty",
			"a prune without documents would delete everything managed by %q", req.PruneManagedBy).
			WithHint("Check the files given; to delete policies, name them.")
	}
	if len(req.Changes) == 0 && len(req.Deletions) == 0 {
		return fault.New(fault.Invalid, "batch_empty", "no policies given")
	}
	if len(req.Reason) > engine.MaxReasonBytes || engine.HasControl(req.Reason, true) {
		return invalid("reason_invalid", fault.Violation{Path: "reason", Rule: "text of at most 1024 bytes"})
	}
	seen := make(map[engine.Scope]bool)
	check := func(scope engine.Scope, expected *policy.Revision) error {
		if _, err := engine.ParseScope(string(scope)); err != nil {
			return invalid("scope_invalid", fault.Violation{Path: "metadata.scope", Value: string(scope), Rule: err.Error()})
		}
		if seen[scope] {
			return fault.New(fault.Invalid, "scope_repeated", "%s is in the request twice", scope).
				WithHint("There is one policy per scope.")
		}
		seen[scope] = true
		if expected == nil {
			return fault.New(fault.Invalid, "precondition_required", "the expected revision of %s is missing", scope).
				WithHint("Send the revision that the change is based on; 0 for a new policy.")
		}
		if *expected < 0 {
			return fault.New(fault.Invalid, "precondition_invalid", "the expected revision of %s is negative", scope)
		}
		return nil
	}
	for _, c := range req.Changes {
		if c.Policy == nil {
			return fault.New(fault.Invalid, "policy_missing", "a change has no policy")
		}
		if err := check(c.Policy.Scope, c.Expected); err != nil {
			return err
		}
	}
	for _, d := range req.Deletions {
		if err := check(d.Scope, d.Expected); err != nil {
			return err
		}
	}
	return nil
}

// checkExpected compares the caller's revision with the present one.
func checkExpected(view *policy.View, scope engine.Scope, expected policy.Revision) error {
	current := view.Policies[scope]
	var at policy.Revision
	if current != nil {
		at = current.Revision
	}
	if at == expected {
		return nil
	}
	e := &policy.ConflictError{Key: policy.PolicyKey(scope), Scope: scope, Expected: expected, Current: at, Policy: current}
	if current != nil {
		e.By, e.At = current.Metadata.UpdatedBy, current.Metadata.UpdatedAt
	}
	e.Err = conflictFault(e)
	return e
}

func conflictFault(e *policy.ConflictError) error {
	const hint = "Read it again, then apply the change on top."
	switch {
	case e.Current == 0:
		return fault.New(fault.Conflict, "revision_moved", "%s: revision %d is gone, the policy was deleted", e.Scope, e.Expected).WithHint(hint)
	case e.Expected == 0:
		return fault.New(fault.Conflict, "exists", "%s exists already: %s saved revision %d", e.Scope, e.By.Name, e.Current).WithHint(hint)
	}
	return fault.New(fault.Conflict, "revision_moved", "%s: you started from revision %d, %s saved %d", e.Scope, e.Expected, e.By.Name, e.Current).WithHint(hint)
}

// prunable returns, in order, the scopes that a prune would delete.
func prunable(view *policy.View, req *ApplyRequest) []engine.Scope {
	if req.PruneManagedBy == "" {
		return nil
	}
	named := make(map[engine.Scope]bool)
	for _, c := range req.Changes {
		named[c.Policy.Scope] = true
	}
	for _, d := range req.Deletions {
		named[d.Scope] = true
	}
	var scopes []engine.Scope
	for scope, p := range view.Policies {
		if p.Metadata.ManagedBy == req.PruneManagedBy && !named[scope] {
			scopes = append(scopes, scope)
		}
	}
	slices.Sort(scopes)
	return scopes
}

// sameContent ignores what the server sets.
func sameContent(a, b *policy.Policy) bool {
	return a.Metadata.Owner == b.Metadata.Owner && a.Metadata.ManagedBy == b.Metadata.ManagedBy &&
		maps.Equal(a.Metadata.Labels, b.Metadata.Labels) &&
		maps.Equal(a.Metadata.Annotations, b.Metadata.Annotations) &&
		maps.EqualFunc(a.Settings, b.Settings, engine.Value.Equal)
}

// transaction stamps the documents and records the change.
func (b *batch) transaction(who Caller, reason string, now time.Time) policy.Transaction {
	tx := policy.Transaction{Entry: &policy.Entry{
		ID: rand.Text(), At: now, Actor: who.Actor, Action: "policy.delete",
		Reason: reason, RequestID: who.RequestID,
	}}
	for i := range b.items {
		it := &b.items[i]
		if it.kind() == Unchanged {
			continue
		}
		var expected policy.Revision
		if it.before != nil {
			expected = it.before.Revision
		}
		var stamped *policy.Policy
		if it.after == nil {
			tx.Deletes = append(tx.Deletes, policy.Deletion{Scope: it.scope, Expected: expected})
		} else {
			stamped = stamp(it, who.Actor, now)
			tx.PutPolicies = append(tx.PutPolicies, policy.PolicyPut{Policy: stamped, Expected: expected})
			tx.Entry.Action = "policy.apply"
		}
		tx.Entry.Scopes = append(tx.Entry.Scopes, it.scope)
		tx.Entry.Changes = append(tx.Entry.Changes, policy.EntryChange{
			Key: policy.PolicyKey(it.scope), Before: policyRecord(it.before), After: policyRecord(stamped),
		})
	}
	return tx
}

// stamp returns a copy of the wanted document with the metadata that the server owns.
func stamp(it *item, by policy.Actor, now time.Time) *policy.Policy {
	p := *it.after
	p.Revision = 0
	p.Metadata.CreatedBy, p.Metadata.CreatedAt = by, now
	if it.before != nil {
		p.Metadata.CreatedBy, p.Metadata.CreatedAt = it.before.Metadata.CreatedBy, it.before.Metadata.CreatedAt
	}
	p.Metadata.UpdatedBy, p.Metadata.UpdatedAt = by, now
	return &p
}

func invalid(reason string, violations ...fault.Violation) error {
	e := fault.New(fault.Invalid, reason, "%s", describe(violations))
	e.Violations = violations
	return e
}

// describe says what is wrong in one line.
func describe(violations []fault.Violation) string {
	v := violations[0]
	line := v.Path
	if v.Scope != "" {
		line = v.Scope + ": " + line
	}
	if v.Value != "" {
		line += " " + v.Value
	}
	line += ": " + v.Rule
	if n := len(violations) - 1; n > 0 {
		line += fmt.Sprintf(" (and %d more)", n)
	}
	return line
}
