// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Progress counts the instances that a change reaches. Target is the sum of the others.
type Progress struct {
	Target, InForce, Behind, Rejected, Stale int
	// Silent is how many replicas of policyd did not answer; their instances are not counted.
	Silent int
}

// heard notes which of the other replicas answered.
func (p Progress) heard(others []fleet.Peer) Progress {
	for _, other := range others {
		if other.Silent {
			p.Silent++
		}
	}
	return p
}

// Subject is what progress is asked of: a revision, or a switch.
type Subject struct {
	Revision policy.Revision
	SwitchID string
}

// ProgressReport is the progress of a subject and who is missing.
type ProgressReport struct {
	Revision policy.Revision
	Progress
	// Missing are instances that do not have it in force, at most 50.
	Missing []fleet.Instance
}

const maxMissing = 50

// concern is a change as instances see it: documents of some scopes at one revision.
type concern struct {
	revision policy.Revision
	// scopes of the change; nil: not known, then an instance that was sent the revision, or
	// a later one, is concerned.
	scopes []engine.Scope
	// documents by the name that a rejection carries, scope of a policy or id of a switch,
	// with their revisions; nil: whatever the revision brought.
	documents map[string]policy.Revision
	// sw selects instances by percent, nil: all.
	sw *policy.Switch
}

// reaches leaves out instances that have been away for so long that they no longer count.
func (c *concern) reaches(in *fleet.Instance) bool {
	switch {
	case in.Gone, c.sw != nil && !takesPart(c.sw, in):
		return false
	case c.scopes == nil:
		return in.Wanted >= int64(c.revision)
	}
	return slices.ContainsFunc(c.scopes, func(scope engine.Scope) bool { return overlapsAny(in.Targets, scope) })
}

// takesPart leaves criticality and exceptions aside: they select endpoints, not instances.
func takesPart(sw *policy.Switch, in *fleet.Instance) bool {
	whole := sw.Switch
	whole.Drill, whole.Except, whole.Criticality = false, nil, engine.CriticalityUnspecified
	return (in.Drill || !sw.Drill) && whole.Selects(sw.Scope, engine.CriticalityUnspecified, in.ID)
}

// widest returns a scope that contains all scopes of the change.
func (c *concern) widest() engine.Scope {
	if len(c.scopes) == 1 {
		return c.scopes[0]
	}
	return engine.Global
}

// stateOf returns where an instance that c reaches stands with c.
func (c *concern) stateOf(in *fleet.Instance) fleet.State {
	switch {
	case c.rejectedBy(in):
		return fleet.Rejected
	case in.State == fleet.Stale:
		return fleet.Stale
	case in.Revision >= int64(c.revision):
		return fleet.Live
	}
	return fleet.Behind
}

// rejectedBy is true also of an instance that rejects more than it can name, as far as is
// known.
func (c *concern) rejectedBy(in *fleet.Instance) bool {
	if len(in.Rejected) >= fleet.MaxRejections && in.Revision >= int64(c.revision) {
		return true
	}
	return slices.ContainsFunc(in.Rejected, func(r fleet.Rejection) bool {
		if c.documents == nil {
			return r.Revision == int64(c.revision)
		}
		revision, ok := c.documents[r.Scope]
		return ok && r.Revision >= int64(revision)
	})
}

func (p *Progress) count(state fleet.State, n int) {
	p.Target += n
	switch state {
	case fleet.Live:
		p.InForce += n
	case fleet.Rejected:
		p.Rejected += n
	case fleet.Stale:
		p.Stale += n
	case fleet.Behind:
		p.Behind += n
	}
}

// report counts instances; missing bounds how many are named.
func (c *concern) report(instances []fleet.Instance, missing int) ProgressReport {
	r := ProgressReport{Revision: c.revision}
	for i := range instances {
		in := &instances[i]
		if !c.reaches(in) {
			continue
		}
		state := c.stateOf(in)
		r.count(state, 1)
		if state != fleet.Live && len(r.Missing) < missing {
			r.Missing = append(r.Missing, *in)
		}
	}
	return r
}

// cohorts groups instances that every document finds in the same place, so that progress of
// thousands of documents does not look at each instance each time.
func cohorts(instances []fleet.Instance) []cohort {
	at := make(map[string]int)
	var groups []cohort
	for i := range instances {
		in := &instances[i]
		key := fmt.Sprint(in.Targets, in.Revision, in.State, in.Gone)
		if len(in.Rejected) > 0 {
			key = in.ID
		}
		n, ok := at[key]
		if !ok {
			n = len(groups)
			at[key] = n
			groups = append(groups, cohort{in: in})
		}
		groups[n].size++
	}
	return groups
}

type cohort struct {
	in   *fleet.Instance
	size int
}

// selects reports whether instances that are alike otherwise may differ in c.
func (c *concern) selects() bool {
	return c.sw != nil && (c.sw.Percent != allInstances || c.sw.Drill)
}

func (c *concern) progress(groups []cohort) Progress {
	var p Progress
	for _, g := range groups {
		if c.reaches(g.in) {
			p.count(c.stateOf(g.in), g.size)
		}
	}
	return p
}

func switchConcern(sw *policy.Switch) *concern {
	return &concern{
		revision:  policy.Revision(sw.Revision),
		scopes:    []engine.Scope{sw.Scope},
		documents: map[string]policy.Revision{sw.ID: policy.Revision(sw.Revision)},
		sw:        sw,
	}
}

func policyConcern(p *policy.Policy) *concern {
	return &concern{
		revision:  p.Revision,
		scopes:    []engine.Scope{p.Scope},
		documents: map[string]policy.Revision{string(p.Scope): p.Revision},
	}
}

// revisionConcern finds what a revision changed: from the view, else from what was
// committed here, else it is not known.
func (s *Service) revisionConcern(view *policy.View, revision policy.Revision) *concern {
	c := &concern{revision: revision}
	for scope, p := range view.Policies {
		if p.Revision == revision {
			c.scopes = append(c.scopes, scope)
		}
	}
	for _, sw := range view.Switches {
		if sw.Revision == int64(revision) {
			c.scopes = append(c.scopes, sw.Scope)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Ours is complete: it also knows the deletions.
	if ours, ok := s.recent[revision]; ok && s.epoch == view.Epoch {
		c.scopes = ours
	}
	return c
}

func (s *Service) switchProgress(sw *policy.Switch) Progress {
	return switchConcern(sw).report(s.fleet.Instances(sw.Scope), 0).Progress
}

// Progress returns who has a subject in force now.
func (s *Service) Progress(ctx context.Context, subject Subject) (ProgressReport, error) {
	c, err := s.concern(ctx, subject)
	if err != nil {
		return ProgressReport{}, err
	}
	others := s.askAhead(ctx) // an answer that comes later is a change
	report := c.report(s.fleet.Instances(c.widest()), maxMissing)
	report.Progress = report.heard(others)
	return report, nil
}

func (s *Service) concern(ctx context.Context, subject Subject) (*concern, error) {
	if subject.SwitchID != "" {
		sw := findSwitch(s.store.View(), subject.SwitchID)
		if sw == nil {
			return nil, switchNotFound(subject.SwitchID)
		}
		return switchConcern(sw), nil
	}
	if subject.Revision <= 0 {
		return nil, fault.New(fault.Invalid, "subject_missing", "progress needs a revision or a switch")
	}
	view, err := s.viewAt(ctx, subject.Revision)
	if err != nil {
		return nil, err
	}
	return s.revisionConcern(view, subject.Revision), nil
}

const (
	// Changes of the fleet within this time make one report.
	progressEvery = 50 * time.Millisecond
	// askAgain is how often other replicas are asked again while nothing changes: they stop
	// telling when nobody asks.
	askAgain = 10 * time.Second
)

// WatchProgress calls send with the progress now and after each change of it, until ctx is
// done or stop is closed (both nil) or send fails.
func (s *Service) WatchProgress(ctx context.Context, stop <-chan struct{}, subject Subject, send func(ProgressReport) error) error {
	var last Progress
	for first := true; ; first = false {
		// Taken before the look, so that no change falls between the two.
		changed := s.fleet.Changed()
		report, err := s.Progress(ctx, subject)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if first || report.Progress != last {
			if err := send(report); err != nil {
				return err
			}
			last = report.Progress
		}
		if !await(ctx, stop, nil, progressEvery) || !await(ctx, stop, changed, askAgain) {
			return nil
		}
	}
}

// await waits for ch, d at most, and reports false when ctx or stop was first.
func await(ctx context.Context, stop, ch <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	case <-ch:
	case <-timer.C:
	}
	return true
}
