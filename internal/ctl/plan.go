// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// maxBatch is how many documents policyd writes in one step.
const maxBatch = 100

// planOptions say what a plan is made of.
type planOptions struct {
	objects []*document.Object
	// delete these scopes too
	delete []engine.Scope
	// prune what managedBy manages and objects do not name
	prune     bool
	managedBy string
	reason    string
	confirm   string
	split     bool
	// pinned: a document that states a revision is written only over that one.
	pinned bool
}

// plan is what a change would do, worked out by policyd.
type plan struct {
	revision int64 // of the control plane when it was made
	// before and after are all policies.
	before, after policy.Set
	chunks        []*policydv1.ApplyPoliciesRequest
	results       []*policydv1.ChangeResult
	// switches to start, with their previews.
	switches []plannedSwitch
	objects  []*document.Object
}

type plannedSwitch struct {
	object  *document.Object
	request *policydv1.StartSwitchRequest
	preview *policydv1.StartSwitchResponse
}

// makePlan reads the present documents and asks policyd what the change would do. Nothing
// is written.
func (a *app) makePlan(ctx context.Context, o *planOptions) (*plan, error) {
	p := &plan{objects: o.objects}
	if err := o.manage(); err != nil {
		return nil, err
	}
	policies := policiesOf(o.objects)
	if len(policies) > 0 || len(o.delete) > 0 || o.prune {
		if err := a.planPolicies(ctx, p, policies, o); err != nil {
			return nil, err
		}
	}
	for _, object := range switchesOf(o.objects) {
		if err := a.planSwitch(ctx, p, object, o.confirm); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// manage marks the documents as managed by the tool that prunes them later.
func (o *planOptions) manage() error {
	if o.prune && o.managedBy == "" {
		return usagef("--prune needs --managed-by: it deletes only what this name manages")
	}
	if o.managedBy == "" {
		return nil
	}
	for _, object := range policiesOf(o.objects) {
		m := &object.Policy.Metadata
		if m.ManagedBy != "" && m.ManagedBy != o.managedBy {
			return failf(exitRefused, "refused", "%s: managedBy is %q, but --managed-by is %q", object.Position("metadata.managedBy"), m.ManagedBy, o.managedBy)
		}
		m.ManagedBy = o.managedBy
	}
	return nil
}

func (a *app) planPolicies(ctx context.Context, p *plan, policies []*document.Object, o *planOptions) error {
	if len(policies) == 0 && o.prune {
		return failf(exitRefused, "refused", "--prune without policies would delete everything managed by %q", o.managedBy).
			hint("Check what -f names; nothing was changed.")
	}
	current, err := read(ctx, a, policydv1.AdminServiceClient.ListPolicies, &policydv1.ListPoliciesRequest{})
	if err != nil {
		return err
	}
	p.revision = current.GetRevision()
	revisions := make(map[string]int64, len(current.GetPolicies()))
	p.before = make(policy.Set, len(current.GetPolicies()))
	for _, v := range current.GetPolicies() {
		revisions[v.GetPolicy().GetScope()] = v.GetRevision()
		// A document that a newer policyd wrote is left out: only the consequences miss it.
		if known, err := wire.Policy(v.GetPolicy(), policy.Revision(v.GetRevision())); err == nil {
			p.before[known.Scope] = known
		}
	}
	p.after = maps.Clone(p.before)
	for _, object := range policies {
		p.after[object.Policy.Scope] = object.Policy
	}
	deletions := slices.Clone(o.delete)
	if o.prune {
		deletions = append(deletions, prunable(p.before, policies, o.managedBy)...)
	}
	for _, scope := range deletions {
		if _, ok := revisions[string(scope)]; !ok {
			return a.noPolicy(scope, p.before)
		}
		delete(p.after, scope)
	}
	changed, same := pending(policies, p.before)
	for _, object := range same {
		scope := string(object.Policy.Scope)
		p.results = append(p.results, &policydv1.ChangeResult{
			Scope: scope, Kind: policydv1.ChangeKind_CHANGE_KIND_UNCHANGED,
			Revision: revisions[scope], PreviousRevision: revisions[scope],
		})
	}
	if n := len(changed) + len(deletions); n > maxBatch && !o.split {
		return failf(exitRefused, "refused", "%d documents would change: at most %d are written in one step, all or none", n, maxBatch).
			hint("Nothing was changed. To apply in several steps, each all or none:  --split")
	}
	p.chunks = chunks(changed, deletions, revisions, o)
	for _, chunk := range p.chunks {
		resp, err := read(ctx, a, policydv1.AdminServiceClient.ApplyPolicies, chunk)
		if err != nil {
			return stated(locate(err, p.objects), p.objects)
		}
		p.results = append(p.results, resp.GetResults()...)
	}
	return nil
}

// stated explains a conflict with a revision that a document states.
func stated(err error, objects []*document.Object) error {
	var f *failure
	if !errors.As(err, &f) || f.exit != exitConflict || f.scope == "" {
		return err
	}
	for _, o := range objects {
		if o.Policy != nil && string(o.Policy.Scope) == f.scope && o.Revision != 0 {
			f.message = o.Position("metadata.revision") + ": " + f.message
			f.hints[len(f.hints)-1] = "Then:        put your change into theirs, or write yours over it:  --rebase"
		}
	}
	return f
}

func (a *app) noPolicy(scope engine.Scope, set policy.Set) error {
	f := failf(exitNotFound, "not-found", "there is no policy at %s", scope)
	var known []string
	for at := range set {
		known = append(known, string(at))
	}
	slices.Sort(known)
	if near := document.Suggest(string(scope), known); near != "" {
		f.add("Did you mean %s?", near)
	}
	return f
}

// prunable are the scopes that a name manages and no document names any more.
func prunable(set policy.Set, named []*document.Object, managedBy string) []engine.Scope {
	var found []engine.Scope
	for scope, p := range set {
		is := slices.ContainsFunc(named, func(o *document.Object) bool { return o.Policy.Scope == scope })
		if p.Metadata.ManagedBy == managedBy && !is {
			found = append(found, scope)
		}
	}
	slices.Sort(found)
	return found
}

// pending parts the policies into those that differ from what is stored and the rest.
func pending(policies []*document.Object, before policy.Set) (changed, same []*document.Object) {
	for _, o := range policies {
		if old, ok := before[o.Policy.Scope]; ok && len(policy.Diff(old, o.Policy)) == 0 {
			same = append(same, o)
		} else {
			changed = append(changed, o)
		}
	}
	return changed, same
}

// chunks makes the requests, dry for now: one if it fits, else in steps, deletions last.
func chunks(policies []*document.Object, deletions []engine.Scope, revisions map[string]int64, o *planOptions) []*policydv1.ApplyPoliciesRequest {
	var all []*policydv1.ApplyPoliciesRequest
	var last *policydv1.ApplyPoliciesRequest
	next := func() *policydv1.ApplyPoliciesRequest {
		if last == nil || len(last.GetChanges())+len(last.GetDeletions()) == maxBatch {
			last = &policydv1.ApplyPoliciesRequest{Reason: o.reason, Confirm: o.confirm, Via: via, DryRun: true}
			all = append(all, last)
		}
		return last
	}
	for _, object := range policies {
		revision := revisions[string(object.Policy.Scope)]
		if o.pinned && object.Revision != 0 {
			revision = int64(object.Revision)
		}
		r := next()
		r.Changes = append(r.Changes, &policydv1.PolicyChange{Policy: wire.PolicyProto(object.Policy), ExpectedRevision: &revision})
	}
	for _, scope := range deletions {
		revision := revisions[string(scope)]
		r := next()
		r.Deletions = append(r.Deletions, &policydv1.PolicyDeletion{Scope: string(scope), ExpectedRevision: &revision})
	}
	return all
}

func (a *app) planSwitch(ctx context.Context, p *plan, object *document.Object, confirm string) error {
	sw := object.Switch
	if sw.Scope.Level() <= engine.LevelNamespace && !slices.Contains(strings.Split(confirm, ","), string(sw.Scope)) {
		return usagef("%s: a switch on %s needs --confirm=%s", object.Position("spec.scope"), sw.Scope, sw.Scope)
	}
	req := startRequest(sw.ID, sw.Switch.Switch, sw.ExpiresIn, sw.Ends, sw.Drill)
	req.DryRun = true
	preview, err := read(ctx, a, policydv1.AdminServiceClient.StartSwitch, req)
	if err != nil {
		return locate(err, p.objects)
	}
	p.switches = append(p.switches, plannedSwitch{object, req, preview})
	return nil
}

// tally counts results by kind.
type tally struct{ added, changed, removed, unchanged, started int }

func (p *plan) tally() tally {
	var t tally
	for _, r := range p.results {
		switch r.GetKind() {
		case policydv1.ChangeKind_CHANGE_KIND_CREATED:
			t.added++
		case policydv1.ChangeKind_CHANGE_KIND_CHANGED:
			t.changed++
		case policydv1.ChangeKind_CHANGE_KIND_DELETED:
			t.removed++
		case policydv1.ChangeKind_CHANGE_KIND_UNCHANGED, policydv1.ChangeKind_CHANGE_KIND_UNSPECIFIED:
			t.unchanged++
		}
	}
	for _, s := range p.switches {
		if s.preview.GetExisted() {
			t.unchanged++
		} else {
			t.started++
		}
	}
	return t
}

func (t tally) differs() bool { return t.added+t.changed+t.removed+t.started > 0 }

func (t tally) String() string {
	s := fmt.Sprintf("%d changed, %d added, %d removed, %d unchanged", t.changed, t.added, t.removed, t.unchanged)
	if t.started > 0 {
		s += ", " + plural(int64(t.started), "switch", "switches") + " to start"
	}
	return s
}

// lines shows the plan for people, painted for t.
func (p *plan) lines(t *terminal) []string {
	var lines []string
	for _, r := range p.results {
		if r.GetKind() == policydv1.ChangeKind_CHANGE_KIND_UNCHANGED {
			continue
		}
		lines = append(lines, p.head(t, r))
		lines = append(lines, changeRows(t, r)...)
		lines = append(lines, p.consequences(t, r)...)
	}
	for _, s := range p.switches {
		if s.preview.GetExisted() {
			continue
		}
		k := s.preview.GetStatus().GetKillSwitch()
		lines = append(lines, fmt.Sprintf("%s KillSwitch %s", t.green("+"), orDash(s.object.Name())),
			fmt.Sprintf("    %s on %s for %s", actionWord(k), switchScope(k), shortDuration(s.preview.GetStatus().GetLeft().AsDuration().Round(time.Second))),
			"  reaches "+reachText(s.preview.GetPreview()))
	}
	return lines
}

func (p *plan) head(t *terminal, r *policydv1.ChangeResult) string {
	sign, note := t.yellow("~"), fmt.Sprintf("revision %d → new", r.GetPreviousRevision())
	switch r.GetKind() {
	case policydv1.ChangeKind_CHANGE_KIND_CREATED:
		sign, note = t.green("+"), "new"
	case policydv1.ChangeKind_CHANGE_KIND_DELETED:
		sign, note = t.red("-"), fmt.Sprintf("revision %d → deleted", r.GetPreviousRevision())
	case policydv1.ChangeKind_CHANGE_KIND_CHANGED, policydv1.ChangeKind_CHANGE_KIND_UNCHANGED, policydv1.ChangeKind_CHANGE_KIND_UNSPECIFIED:
	}
	return pad(sign+" RetryPolicy "+clean(r.GetScope()), 58) + note
}

func changeRows(t *terminal, r *policydv1.ChangeResult) []string {
	var rows [][]string
	for _, f := range r.GetFields() {
		before, after := oneLine(f.GetBefore()), oneLine(f.GetAfter())
		if f.GetBefore() == "" {
			before = "–"
		}
		if f.GetAfter() == "" {
			after = "–"
		}
		rows = append(rows, []string{"    " + clean(f.GetPath()), t.red(before), "→ " + t.green(after)})
	}
	return align(rows)
}

// consequences says what a change means for calls.
func (p *plan) consequences(t *terminal, r *policydv1.ChangeResult) []string {
	endpoints := plural(r.GetEndpoints(), "endpoint", "endpoints")
	lines := []string{fmt.Sprintf("  effective on %s, %s", endpoints, plural(r.GetInstances(), "instance", "instances"))}
	scope := engine.Scope(r.GetScope())
	before, after := policy.Merge(p.before, scope), policy.Merge(p.after, scope)
	oldSteady, oldWorst := amplification(before)
	newSteady, newWorst := amplification(after)
	if oldSteady != newSteady || oldWorst != newWorst {
		lines = append(lines, fmt.Sprintf("  amplification        steady %s → %s   without budget %s → %s", oldSteady, newSteady, oldWorst, newWorst))
	}
	if old, fresh := timeToGiveUp(before), timeToGiveUp(after); old != fresh {
		lines = append(lines, fmt.Sprintf("  time to give up      %s → %s", old, fresh))
	}
	for _, f := range r.GetFindings() {
		sign := t.yellow("⚠")
		if f.GetLevel() == "info" {
			sign = "·"
		}
		lines = append(lines, fmt.Sprintf("  %s %s  %s", sign, clean(f.GetCode()), clean(f.GetMessage())))
	}
	if ids := r.GetHiddenBy(); len(ids) > 0 {
		lines = append(lines, fmt.Sprintf("  %s hidden by %s while it lasts", t.yellow("▲"), few(ids)))
	}
	return lines
}

// amplification returns attempts per call when the budget holds, and if it did not exist.
func amplification(e engine.Effective) (steady, without string) {
	attempts := e.Value(engine.MaxAttempts).Int
	share := 1 + float64(e.Value(engine.BudgetRatio).Int)/engine.Million
	return fmt.Sprintf("%.2fx", min(share, float64(attempts))), fmt.Sprintf("%dx", attempts)
}

// timeToGiveUp is how long a call lasts when every attempt times out and every wait is at
// its longest; "none" where attempts have no bound.
func timeToGiveUp(e engine.Effective) string {
	if !e.At(engine.TimeoutsAttempt).Present() {
		return "no bound"
	}
	attempts := e.Value(engine.MaxAttempts).Int
	total := time.Duration(attempts) * e.Value(engine.TimeoutsAttempt).Duration()
	wait, most := e.Value(engine.BackoffBase).Duration(), e.Value(engine.BackoffMax).Duration()
	for range attempts - 1 {
		total += min(wait, most)
		wait = min(most, time.Duration(float64(wait)*e.Value(engine.BackoffMultiplier).Float()))
	}
	return engine.FormatDuration(total)
}
