// SPDX-License-Identifier: Apache-2.0

package push

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// targetSet is what an instance wants to see. Documents at global are seen by everybody;
// an empty set sees nothing else.
type targetSet struct {
	key     string
	targets []engine.Scope // sorted, none below another
	drill   bool
}

func newTargetSet(targets []engine.Scope, drill bool) targetSet {
	sorted := slices.Compact(slices.Sorted(slices.Values(targets)))
	kept := slices.Clone(sorted)
	kept = slices.DeleteFunc(kept, func(s engine.Scope) bool {
		return slices.ContainsFunc(sorted, func(wider engine.Scope) bool { return wider != s && wider.Contains(s) })
	})
	var key strings.Builder
	if drill {
		key.WriteString("drill")
	}
	for _, s := range kept {
		key.WriteByte('\n')
		key.WriteString(string(s))
	}
	return targetSet{key: key.String(), targets: kept, drill: drill}
}

// view is what all instances with the same targets see.
type view struct {
	// set once, read-only
	key        string
	drill      bool
	everything bool // a target is global
	piece      int  // size above which a message is split
	// whole are the namespaces that are seen whole. Of others the targets and what lies below
	// them is seen, and what stands above.
	whole  map[string]bool
	narrow map[string]bool // namespaces of targets below one
	target map[engine.Scope]bool
	above  map[engine.Scope]bool

	state atomic.Pointer[viewState]

	refs atomic.Int64 // streams; changes under Hub.mu

	// guarded by Hub.mu
	hash     uint64
	revision int64  // of the newest update that concerns it
	seq      uint64 // of the same
	urgent   uint64 // seq of the newest one that concerns it and may not wait
	// nextRound is when the next round of edits over its streams may start.
	nextRound time.Duration
	pause     time.Duration // that the next round is followed by

	// part i belongs to shard i
	parts []part
}

// part is a shard's share of the streams of a view, and its round over them.
type part struct {
	members []*stream
	queued  bool
	cursor  int // next to visit; wraps around
	left    int // visits until the round ends
}

func newView(t targetSet, shards, piece int) *view {
	v := &view{
		key: t.key, drill: t.drill, piece: piece,
		whole: make(map[string]bool), narrow: make(map[string]bool),
		target: make(map[engine.Scope]bool), above: make(map[engine.Scope]bool),
		parts: make([]part, shards),
	}
	for _, s := range t.targets {
		switch ns := s.Namespace(); {
		case s == engine.Global:
			v.everything = true
		case string(s) == ns:
			v.whole[ns] = true
		default:
			v.narrow[ns] = true
			v.target[s] = true
			for up := s.Parent(); up != engine.Global; up = up.Parent() {
				v.above[up] = true
			}
		}
	}
	return v
}

// sees reports whether a document is visible to the view.
func (v *view) sees(d *document) bool {
	switch {
	case d.drill && !v.drill:
		return false
	case v.everything, d.scope == "", d.scope == engine.Global:
		return true
	}
	if v.whole[d.scope.Namespace()] || v.above[d.scope] {
		return true
	}
	for at := d.scope; at != ""; at = at.Parent() {
		if v.target[at] {
			return true
		}
	}
	return false
}

// spaces returns the logs that may hold something visible.
func (v *view) spaces(snap *snapshot) iter.Seq[space] {
	return func(yield func(space) bool) {
		names := maps.Keys(snap.spaces)
		if !v.everything {
			names = v.names()
		}
		for name := range names {
			if !yield(snap.spaces[name]) {
				return
			}
		}
	}
}

// names returns the spaces of the targets and the one that everybody sees.
func (v *view) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield("") {
			return
		}
		for name := range v.whole {
			if !yield(name) {
				return
			}
		}
		for name := range v.narrow {
			if !yield(name) {
				return
			}
		}
	}
}

// note takes a change into the hash and reports whether the view sees it. Guarded by Hub.mu.
func (v *view) note(c change, revision policy.Revision) bool {
	concerned := false
	if c.before != nil && v.sees(c.before) {
		v.hash -= c.before.hash()
		concerned = true
	}
	if v.sees(c.after) {
		if !c.after.deleted {
			v.hash += c.after.hash()
		}
		concerned = true
	}
	if concerned {
		v.revision, v.seq = int64(revision), c.after.seq
		if c.after.urgent {
			v.urgent = v.seq
		}
	}
	return concerned
}

// rescan computes hash and revision from nothing. Guarded by Hub.mu.
func (v *view) rescan(snap *snapshot) {
	v.hash, v.revision, v.seq, v.urgent = 0, 0, snap.seq, snap.seq
	for sp := range v.spaces(snap) {
		for _, d := range sp.log {
			if d.liveAt(snap.seq) && v.sees(d) {
				v.revision = max(v.revision, d.revision)
				if !d.deleted {
					v.hash += d.hash()
				}
			}
		}
	}
}

// publish makes what note or rescan found visible to the writers; readers is how many streams
// that concerns, over all views. Guarded by Hub.mu.
func (v *view) publish(snap *snapshot, readers int64) {
	var prev uint64
	if old := v.state.Load(); old != nil {
		prev = old.seq
	}
	v.state.Store(&viewState{
		snap: snap, seq: v.seq, prev: prev, urgent: v.urgent, revision: v.revision, hash: v.hash, readers: readers,
	})
}

// renew drops the cached messages and lets go of an older snapshot. Guarded by Hub.mu.
func (v *view) renew(snap *snapshot) {
	old := v.state.Load()
	v.state.Store(&viewState{
		snap: snap, seq: old.seq, prev: old.prev, urgent: old.urgent, revision: old.revision, hash: old.hash, readers: old.readers,
	})
}

// viewState is a view at one moment, with the messages that lead to it. All but the
// messages is immutable.
type viewState struct {
	snap     *snapshot
	seq      uint64
	prev     uint64 // seq of the state before
	urgent   uint64 // seq of the newest change that may not wait
	revision int64  // of the newest update that concerns the view
	hash     uint64
	readers  int64 // streams that are sent the state at about the same time

	// mu guards messages and what they cache.
	mu       sync.Mutex
	messages map[point]*message
}

// point is what a message starts from.
type point struct {
	kind pointKind
	at   uint64
}

type pointKind uint8

const (
	fromNothing  pointKind = iota // everything
	fromSeq                       // after a seq: streams that are connected
	fromRevision                  // after a revision: streams that resume
	fromHere                      // nothing new, only the numbers
)

// maxMessages bounds the cache of a state: streams that lag all have points of their own.
const maxMessages = 32

// message returns what leads from a point to the state.
func (st *viewState) message(v *view, from point) *message {
	st.mu.Lock()
	defer st.mu.Unlock()
	if m, ok := st.messages[from]; ok {
		return m
	}
	m := st.build(v, from)
	if st.messages == nil {
		st.messages = make(map[point]*message)
	}
	if len(st.messages) < maxMessages {
		st.messages[from] = m
	}
	return m
}

func (st *viewState) build(v *view, from point) *message {
	m := &message{epoch: st.snap.epoch, hash: st.hash, whole: from.kind == fromNothing, of: st.snap}
	if from.kind == fromHere {
		m.pieces = make([]piece, 1)
		return m
	}
	var found []*document
	for sp := range v.spaces(st.snap) {
		// Backwards, so that the few entries after a seq are found without a scan.
		for _, d := range slices.Backward(sp.log) {
			if from.kind == fromSeq && d.seq <= from.at {
				break
			}
			if st.wants(d, from) && v.sees(d) {
				found = append(found, d)
			}
		}
	}
	slices.Reverse(found)
	m.fill(found, v.piece)
	return m
}

func (st *viewState) wants(d *document, from point) bool {
	switch {
	case !d.liveAt(st.snap.seq):
		return false
	case from.kind == fromNothing:
		return !d.deleted
	case from.kind == fromRevision:
		return uint64(d.revision) > from.at
	}
	return true
}

// reaches reports whether the log still holds all that happened after seq.
func (st *viewState) reaches(v *view, seq uint64) bool {
	for sp := range v.spaces(st.snap) {
		if seq < sp.dropped {
			return false
		}
	}
	return true
}

// frame returns a message of one piece, ready to send. A frame that was made a moment ago
// serves all streams that are not told more already.
func (st *viewState) frame(m *message, least int64, now, within time.Duration, clock func() reading) *frame {
	st.mu.Lock()
	defer st.mu.Unlock()
	if m.frame == nil || m.frame.revision < least || now-m.frame.at > maxFrameAge {
		m.frame = m.stamp(0, max(least, st.snap.revision), now, within, clock())
	}
	return m.frame
}

// viewIndex finds the views that a scope may concern.
type viewIndex struct {
	all     map[*view]struct{}
	byKey   map[string]*view
	bySpace map[string]map[*view]struct{}
	// everything holds the views that see all namespaces.
	everything map[*view]struct{}
	// later holds the views that have something new and wait for their next round.
	later map[*view]struct{}
}

func newViewIndex() viewIndex {
	return viewIndex{
		all:        make(map[*view]struct{}),
		byKey:      make(map[string]*view),
		bySpace:    make(map[string]map[*view]struct{}),
		everything: make(map[*view]struct{}),
		later:      make(map[*view]struct{}),
	}
}

func (x *viewIndex) add(v *view) {
	x.all[v] = struct{}{}
	x.byKey[v.key] = v
	if v.everything {
		x.everything[v] = struct{}{}
	}
	for name := range v.names() {
		if x.bySpace[name] == nil {
			x.bySpace[name] = make(map[*view]struct{})
		}
		x.bySpace[name][v] = struct{}{}
	}
}

func (x *viewIndex) remove(v *view) {
	delete(x.all, v)
	delete(x.byKey, v.key)
	delete(x.everything, v)
	delete(x.later, v)
	for name := range v.names() {
		if delete(x.bySpace[name], v); len(x.bySpace[name]) == 0 {
			delete(x.bySpace, name)
		}
	}
}

// near returns the views with a target in the namespace of a scope.
func (x *viewIndex) near(s engine.Scope) iter.Seq[*view] {
	return func(yield func(*view) bool) {
		for v := range x.bySpace[spaceOf(s)] {
			if !yield(v) {
				return
			}
		}
		if spaceOf(s) == "" {
			return // that was everybody
		}
		for v := range x.everything {
			if !yield(v) {
				return
			}
		}
	}
}
