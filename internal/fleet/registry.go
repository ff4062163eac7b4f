// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// How long an instance without a connection stays.
const (
	// GoneAfter is when it leaves the totals.
	GoneAfter = 5 * time.Minute
	// ForgottenAfter is when it leaves the list.
	ForgottenAfter = time.Hour
)

// Bounds of memory.
const (
	// MaxInstances are remembered. Beyond it the instances that were away longest go; a
	// stream that finds no place is served, but not listed.
	MaxInstances = 50_000
	// MaxEndpoints is how many endpoints all reports together may hold; beyond it a report
	// is kept as one sum.
	MaxEndpoints = 1_000_000

	sweepEvery  = time.Minute
	evictAtOnce = MaxInstances / 100
)

// Registry is the set of instances: those of this replica, and what Sources say of others.
// Instances that went away are stale for an hour after they were last seen, then forgotten.
type Registry struct {
	notice    notice
	names     names
	endpoints atomic.Int64 // held by all reports
	changes   atomic.Int64 // counts the changes of records

	// mu guards the fields below; it is taken before a record's mu.
	mu      sync.RWMutex
	records map[string]*record
	sources map[*Source]struct{}
	swept   time.Time
}

// record is what is known of one instance.
type record struct {
	// mu guards the fields below.
	mu      sync.Mutex
	in      Instance
	session *Session // nil: not connected
	changed int64    // the registry's count at the last change
}

// New returns an empty registry.
func New() *Registry {
	return &Registry{records: make(map[string]*record), sources: make(map[*Source]struct{})}
}

// Connect registers a stream. revision is what the instance holds already, 0: nothing.
// resumed says that the instance gets a delta or nothing.
func (r *Registry) Connect(id Identity, revision int64, resumed bool) *Session {
	now := time.Now()
	s := &Session{registry: r}
	r.mu.Lock()
	r.sweepSometimes(now)
	rec, known := r.records[id.ID]
	if !known && len(r.records) >= MaxInstances {
		r.evict()
	}
	if !known && len(r.records) < MaxInstances {
		rec = &record{}
		r.records[id.ID] = rec
	}
	r.mu.Unlock()
	if rec == nil {
		return s
	}

	s.record = rec
	id.Targets = slices.Clone(id.Targets)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.session = s
	rec.in.Identity = id
	rec.in.Revision, rec.in.Wanted, rec.in.Rejected = revision, revision, nil
	rec.in.ConnectedAt, rec.in.LastSeen, rec.in.Resumed, rec.in.BackBy = now, now, resumed, time.Time{}
	rec.settle(now)
	r.touch(rec)
	return s
}

// touch notes a change of a record and tells who waits. Guarded by the record's mu.
func (r *Registry) touch(rec *record) {
	rec.changed = r.changes.Add(1)
	r.notice.changed()
}

// evict forgets the instances that have been away longest. Guarded by mu.
func (r *Registry) evict() {
	type away struct {
		id    string
		since time.Time
	}
	var all []away
	for id, rec := range r.records {
		rec.mu.Lock()
		if rec.session == nil {
			all = append(all, away{id, rec.in.LastSeen})
		}
		rec.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b away) int { return a.since.Compare(b.since) })
	for _, a := range all[:min(len(all), evictAtOnce)] {
		r.forget(a.id)
	}
}

// sweepSometimes forgets what was away too long. Guarded by mu.
func (r *Registry) sweepSometimes(now time.Time) {
	if now.Sub(r.swept) < sweepEvery {
		return
	}
	r.swept = now
	for id, rec := range r.records {
		rec.mu.Lock()
		expired := rec.session == nil && now.Sub(rec.in.LastSeen) >= ForgottenAfter
		rec.mu.Unlock()
		if expired {
			r.forget(id)
		}
	}
}

// forget drops an instance that is away; one that came back meanwhile stays. Guarded by mu.
func (r *Registry) forget(id string) {
	rec := r.records[id]
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.session != nil {
		return
	}
	r.endpoints.Add(-rec.in.reported())
	delete(r.records, id)
}

// all returns the records of this replica.
func (r *Registry) all(now time.Time) []*record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepSometimes(now)
	return slices.AppendSeq(make([]*record, 0, len(r.records)), maps.Values(r.records))
}

// Instances returns a copy of all instances that scope reaches ("" or global: all), sorted
// by id. What the copies point to is shared and must not be changed.
func (r *Registry) Instances(scope engine.Scope) []Instance {
	now := time.Now()
	records := r.all(now)
	all := make([]Instance, 0, len(records))
	for _, rec := range records {
		in, _ := rec.snapshot(now)
		all = append(all, in)
	}
	// The replica that knows more of an instance is found before scope is asked: targets may
	// have changed when it moved.
	all = slices.DeleteFunc(r.withSources(all, now), func(in Instance) bool {
		return !reaches(&in, scope) || forgotten(&in, now)
	})
	slices.SortFunc(all, func(a, b Instance) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// LocalStates counts the instances of this replica by state, without those that are gone.
func (r *Registry) LocalStates() map[State]int {
	now := time.Now()
	states := map[State]int{Live: 0, Behind: 0, Rejected: 0, Stale: 0}
	for _, rec := range r.all(now) {
		if in, _ := rec.snapshot(now); !in.Gone {
			states[in.State]++
		}
	}
	return states
}

func reaches(in *Instance, scope engine.Scope) bool {
	return scope == "" || scope == engine.Global || slices.ContainsFunc(in.Targets, scope.Overlaps)
}

func forgotten(in *Instance, now time.Time) bool {
	return in.State == Stale && now.Sub(in.LastSeen) >= ForgottenAfter
}

// Instance returns one instance.
func (r *Registry) Instance(id string) (Instance, bool) {
	now := time.Now()
	r.mu.RLock()
	rec, known := r.records[id]
	best, elsewhere := r.inSources(id, now)
	r.mu.RUnlock()
	if known {
		if in, _ := rec.snapshot(now); !elsewhere || !newer(&best, &in) {
			best = in
		}
	}
	if !known && !elsewhere || forgotten(&best, now) {
		return Instance{}, false
	}
	return best, true
}

// Changed returns a channel that is closed at the next change of any instance's state,
// confirmed revision or report. Changes within a few milliseconds close it once.
func (r *Registry) Changed() <-chan struct{} { return r.notice.wait() }

// snapshot returns a copy and the registry's count at its last change.
func (rec *record) snapshot(now time.Time) (Instance, int64) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	in := rec.in
	in.age(rec.session != nil, now)
	return in, rec.changed
}

// age brings what depends on the time alone up to date.
func (in *Instance) age(connected bool, now time.Time) {
	if !connected && in.State != Stale && !in.BackBy.IsZero() && !now.Before(in.BackBy) {
		in.State, in.Since = Stale, in.BackBy
	}
	in.Gone = in.State == Stale && now.Sub(in.LastSeen) >= GoneAfter
}

// settle works out the state and reports whether it moved. Guarded by mu.
func (rec *record) settle(now time.Time) bool {
	state := Live
	switch {
	case rec.session == nil && now.Before(rec.in.BackBy):
		return false // on its way to another replica, or back
	case rec.session == nil:
		state = Stale
	case rec.in.Revision < rec.in.Wanted, rec.in.Revision == 0:
		state = Behind
	case len(rec.in.Rejected) > 0:
		state = Rejected
	}
	if state == rec.in.State {
		return false
	}
	rec.in.State, rec.in.Since = state, now
	return true
}
