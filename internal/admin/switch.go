// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// StartRequest asks for a new kill switch. Exactly one of ExpiresIn and ExpiresAt is set.
type StartRequest struct {
	// ID makes the request safe to repeat; empty: one is made.
	ID string
	// Spec is what the switch does. ID, Ends and Drill in it do not count.
	Spec engine.Switch
	// FactorAbsent: the request did not say how much of the budget shall be left.
	FactorAbsent bool

	ExpiresIn time.Duration
	ExpiresAt time.Time
	// Confirm must be "global" for a switch on global.
	Confirm string
	DryRun  bool
	Drill   bool
}

// StartResult says what was, or with a dry run would be, started.
type StartResult struct {
	Status  SwitchStatus
	Preview SwitchPreview
	// Existed: the id was known with the same content, nothing was written.
	Existed bool
}

// SwitchStatus is a kill switch and who has it in force.
type SwitchStatus struct {
	Switch   *policy.Switch
	Progress Progress
	// Left is the time to the end, 0 after it.
	Left time.Duration
}

// attempts of a write whose caller expects no revision, when others change the same switch.
const maxAttempts = 4

// StartSwitch starts a kill switch. The same id with the same content again is no error.
func (s *Service) StartSwitch(ctx context.Context, who Caller, req StartRequest) (*StartResult, error) {
	view := s.store.View()
	// Only a preview may wait for other replicas.
	if req.DryRun {
		s.ask(ctx)
	}
	for attempt := 1; ; attempt++ {
		result, err := s.startOnce(ctx, who, req, view)
		var moved *policy.ConflictError
		if !errors.As(err, &moved) || attempt == maxAttempts {
			return result, err
		}
		// Someone took the id between the view and the write: look again.
		if view, err = s.viewAt(ctx, max(moved.Current, view.Revision+1)); err != nil {
			return nil, err
		}
	}
}

func (s *Service) startOnce(ctx context.Context, who Caller, req StartRequest, view *policy.View) (*StartResult, error) {
	now := wallClock()
	id := req.ID
	if id == "" {
		id = newSwitchID(view)
	}
	sw, err := checkStart(req, id, now)
	if err != nil {
		return nil, err
	}
	if existing := findSwitch(view, req.ID); existing != nil {
		return s.repeat(ctx, existing, sw, view, now)
	}
	if err := checkSwitchCount(view); err != nil {
		return nil, err
	}
	sw.CreatedBy, sw.CreatedAt, sw.UpdatedBy, sw.UpdatedAt = who.Actor, now, who.Actor, now
	result := &StartResult{Preview: s.preview(view, sw, now)}
	if !req.DryRun {
		tx := policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}}
		tx.Entry = switchEntry("switch.start", who, now, change{nil, sw})
		revision, err := s.commit(ctx, tx)
		if err != nil {
			return nil, err
		}
		stored := *sw
		stored.Revision = int64(revision)
		sw = &stored
	}
	result.Status = s.switchStatus(sw, s.askAhead(ctx), now)
	return result, nil
}

// repeat answers a request whose id is known.
func (s *Service) repeat(ctx context.Context, existing, wanted *policy.Switch, view *policy.View, now time.Time) (*StartResult, error) {
	switch {
	case existing.Phase != policy.PhaseActive:
		return nil, fault.New(fault.Conflict, "switch_ended", "switch %s has ended", existing.ID).
			WithHint("Use another id to switch on again.")
	case !sameSwitch(existing, wanted):
		return nil, fault.New(fault.Conflict, "switch_differs", "switch %s is active with other settings", existing.ID).
			WithHint("Use another id, or revert %s first.", existing.ID)
	}
	return &StartResult{Status: s.switchStatus(existing, s.askAhead(ctx), now), Preview: s.preview(view, existing, now), Existed: true}, nil
}

// sameSwitch compares what two switches do, leaving their ends aside: a repeated request
// counts its time from now.
func sameSwitch(a, b *policy.Switch) bool {
	return a.Action == b.Action && a.Scope == b.Scope && slices.Equal(a.Except, b.Except) &&
		a.Criticality == b.Criticality && a.Percent == b.Percent && a.Factor == b.Factor &&
		a.Admit == b.Admit && a.Restore == b.Restore && a.Reason == b.Reason &&
		a.Incident == b.Incident && a.Drill == b.Drill
}

// findSwitch looks among the active and the ended ones.
func findSwitch(view *policy.View, id string) *policy.Switch {
	if sw, ok := view.Switches[id]; ok {
		return sw
	}
	return view.Ended[id]
}

// newSwitchID returns an id that is easy to say and not taken.
func newSwitchID(view *policy.View) string {
	for size := 2; ; size++ {
		for range 8 {
			random := make([]byte, size)
			_, _ = rand.Read(random) // never fails
			id := "ks-" + hex.EncodeToString(random)
			if findSwitch(view, id) == nil {
				return id
			}
		}
	}
}

// Switch returns one kill switch, active or ended within the last day.
func (s *Service) Switch(ctx context.Context, id string) (SwitchStatus, error) {
	sw := findSwitch(s.store.View(), id)
	if sw == nil {
		return SwitchStatus{}, switchNotFound(id)
	}
	return s.switchStatus(sw, s.ask(ctx), time.Now()), nil
}

func switchNotFound(id string) error {
	return fault.New(fault.NotFound, "switch_not_found", "there is no switch %s", clip(id)).
		WithHint("Ended switches are kept for 24 hours.")
}

// SwitchFilter selects kill switches; the zero value selects all of them.
type SwitchFilter struct {
	// Active and Ended: both false means both. A switch whose effect is still coming back
	// counts as active.
	Active, Ended bool
	// Within: only active ones that end within this time; 0: any.
	Within   time.Duration
	Incident string
	// Scope and all below it; empty: any.
	Scope engine.Scope
}

// Switches lists kill switches, those that end soonest first, ended ones last.
func (s *Service) Switches(ctx context.Context, f SwitchFilter) (policy.Revision, []SwitchStatus, error) {
	if err := checkScopeFilter(f.Scope); err != nil {
		return 0, nil, err
	}
	view, now := s.store.View(), time.Now()
	var found []*policy.Switch
	keep := func(sw *policy.Switch) {
		if (f.Incident == "" || sw.Incident == f.Incident) && (f.Scope == "" || f.Scope.Contains(sw.Scope)) {
			found = append(found, sw)
		}
	}
	if f.Active || !f.Ended {
		for _, sw := range view.Switches {
			if f.Within == 0 || sw.Phase == policy.PhaseActive && sw.Ends.Sub(now) <= f.Within {
				keep(sw)
			}
		}
	}
	if (f.Ended || !f.Active) && f.Within == 0 {
		for _, sw := range view.Ended {
			keep(sw)
		}
	}
	slices.SortFunc(found, bySwitchEnd)
	return view.Revision, s.switchStatuses(found, s.ask(ctx), now), nil
}

// ExtendSwitch moves the end of an active switch by some time, counted from the later of
// now and the present end.
func (s *Service) ExtendSwitch(ctx context.Context, who Caller, id string, by time.Duration) (SwitchStatus, error) {
	if by <= 0 {
		return SwitchStatus{}, invalid("extension_invalid", fault.Violation{
			Path: "by", Value: engine.FormatDuration(by), Rule: "must be positive", Fix: "To end a switch, revert it.",
		})
	}
	var extended *policy.Switch
	_, err := s.changeSwitches(ctx, who, "switch.extend", func(view *policy.View, now time.Time) ([]change, error) {
		sw := findSwitch(view, id)
		switch {
		case sw == nil:
			return nil, switchNotFound(id)
		case sw.Phase != policy.PhaseActive:
			return nil, fault.New(fault.Refused, "switch_ended", "switch %s has ended", id).
				WithHint("Start a new one.")
		}
		ends := sw.Ends.Add(by)
		if now.After(sw.Ends) {
			ends = now.Add(by)
		}
		next := *sw
		next.Ends, next.UpdatedBy, next.UpdatedAt = ends, who.Actor, now
		if broken := engine.ValidateSwitch(next.Switch, now); len(broken) > 0 {
			return nil, invalid("switch_invalid", violations(broken)...)
		}
		extended = &next
		return []change{{sw, extended}}, nil
	})
	if err != nil {
		return SwitchStatus{}, err
	}
	return s.switchStatus(extended, s.askAhead(ctx), time.Now()), nil
}

// RevertRequest names switches by exactly one of its fields.
type RevertRequest struct {
	IDs      []string
	Incident string
	// Scope and all below it.
	Scope engine.Scope
}

// RevertSwitches ends active switches now, all in one transaction; what they took away
// comes back over their restore time. Switches named by id that have ended are left alone.
func (s *Service) RevertSwitches(ctx context.Context, who Caller, req RevertRequest) (policy.Revision, []SwitchStatus, error) {
	if err := checkRevert(&req); err != nil {
		return 0, nil, err
	}
	var all []*policy.Switch
	revision, err := s.changeSwitches(ctx, who, "switch.revert", func(view *policy.View, now time.Time) ([]change, error) {
		chosen, err := chooseReverts(view, &req)
		if err != nil {
			return nil, err
		}
		all = all[:0]
		var changes []change
		for _, sw := range chosen {
			if sw.Phase == policy.PhaseActive {
				next := *sw
				next.Phase, next.EndedAt = policy.PhaseRestoring, now
				// A switch that ran out, but was not swept yet, keeps its earlier end.
				if now.Before(next.Ends) {
					next.Ends = now
				}
				next.UpdatedBy, next.UpdatedAt = who.Actor, now
				changes = append(changes, change{sw, &next})
				sw = &next
			}
			all = append(all, sw)
		}
		if len(changes) > MaxBatch {
			return nil, fault.New(fault.Refused, "batch_too_large",
				"%d switches would be reverted: at most %d in one step", len(changes), MaxBatch).
				WithHint("Name them, or narrow the scope.")
		}
		return changes, nil
	})
	if err != nil {
		return 0, nil, err
	}
	return revision, s.switchStatuses(all, s.askAhead(ctx), time.Now()), nil
}

func chooseReverts(view *policy.View, req *RevertRequest) ([]*policy.Switch, error) {
	var chosen []*policy.Switch
	for _, id := range req.IDs {
		sw := findSwitch(view, id)
		if sw == nil {
			return nil, switchNotFound(id)
		}
		if !slices.Contains(chosen, sw) {
			chosen = append(chosen, sw)
		}
	}
	if len(req.IDs) > 0 {
		return chosen, nil
	}
	for _, sw := range view.Switches {
		if sw.Phase == policy.PhaseActive &&
			(req.Incident != "" && sw.Incident == req.Incident || req.Scope != "" && req.Scope.Contains(sw.Scope)) {
			chosen = append(chosen, sw)
		}
	}
	slices.SortFunc(chosen, bySwitchEnd)
	if len(chosen) == 0 {
		what := "at or below " + string(req.Scope)
		if req.Incident != "" {
			what = "of incident " + clip(req.Incident)
		}
		return nil, fault.New(fault.NotFound, "switch_not_found", "no switch %s is active", what)
	}
	return chosen, nil
}

// change is a switch before and after.
type change struct{ before, after *policy.Switch }

// changeSwitches writes what decide returns, and decides again when another writer was
// faster. On success the switches in the changes carry their new revision.
func (s *Service) changeSwitches(ctx context.Context, who Caller, action string,
	decide func(*policy.View, time.Time) ([]change, error),
) (policy.Revision, error) {
	view := s.store.View()
	for attempt := 1; ; attempt++ {
		now := wallClock()
		changes, err := decide(view, now)
		if err != nil || len(changes) == 0 {
			return 0, err
		}
		tx := policy.Transaction{Entry: switchEntry(action, who, now, changes...)}
		for _, c := range changes {
			tx.PutSwitches = append(tx.PutSwitches, policy.SwitchPut{Switch: c.after, Expected: policy.Revision(c.before.Revision)})
		}
		revision, err := s.commit(ctx, tx)
		var moved *policy.ConflictError
		switch {
		case err == nil:
			for _, c := range changes {
				c.after.Revision = int64(revision)
			}
			return revision, nil
		case !errors.As(err, &moved) || attempt == maxAttempts:
			return 0, err
		}
		if view, err = s.viewAt(ctx, max(moved.Current, view.Revision+1)); err != nil {
			return 0, err
		}
	}
}

// switchEntry is the record of changes to switches. One switch names itself, its incident
// and reason; several share what they have in common.
func switchEntry(action string, who Caller, now time.Time, changes ...change) *policy.Entry {
	e := &policy.Entry{ID: rand.Text(), At: now, Actor: who.Actor, Action: action, RequestID: who.RequestID}
	for i, c := range changes {
		sw := c.after
		e.Scopes = append(e.Scopes, sw.Scope)
		e.Changes = append(e.Changes, policy.EntryChange{
			Key: policy.SwitchKey(sw.ID), Before: switchRecord(c.before), After: switchRecord(sw),
		})
		if i == 0 {
			e.SwitchID, e.Incident, e.Reason = sw.ID, sw.Incident, sw.Reason
			continue
		}
		e.SwitchID = ""
		if e.Incident != sw.Incident {
			e.Incident = ""
		}
		if e.Reason != sw.Reason {
			e.Reason = ""
		}
	}
	return e
}

func (s *Service) switchStatus(sw *policy.Switch, others []fleet.Peer, now time.Time) SwitchStatus {
	return SwitchStatus{Switch: sw, Progress: s.switchProgress(sw).heard(others), Left: timeLeft(sw, now)}
}

// switchStatuses looks at the fleet once for many switches.
func (s *Service) switchStatuses(switches []*policy.Switch, others []fleet.Peer, now time.Time) []SwitchStatus {
	statuses := make([]SwitchStatus, len(switches))
	instances := s.fleet.Instances(engine.Global)
	groups := cohorts(instances)
	for i, sw := range switches {
		c := switchConcern(sw)
		p := c.progress(groups)
		if c.selects() {
			p = c.report(instances, 0).Progress
		}
		statuses[i] = SwitchStatus{Switch: sw, Progress: p.heard(others), Left: timeLeft(sw, now)}
	}
	return statuses
}

func timeLeft(sw *policy.Switch, now time.Time) time.Duration {
	if sw.Phase != policy.PhaseActive {
		return 0
	}
	return max(sw.Ends.Sub(now), 0)
}

// bySwitchEnd orders active switches by their end, soonest first, then the others, latest
// first.
func bySwitchEnd(a, b *policy.Switch) int {
	aActive, bActive := a.Phase == policy.PhaseActive, b.Phase == policy.PhaseActive
	switch {
	case aActive && !bActive:
		return -1
	case bActive && !aActive:
		return 1
	case !aActive:
		a, b = b, a
	}
	return cmp.Or(a.Ends.Compare(b.Ends), cmp.Compare(a.ID, b.ID))
}
