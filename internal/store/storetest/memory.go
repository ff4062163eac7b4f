// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Memory is a store without etcd, for tests of what uses one. It keeps the promises of the
// suite except those about stored bytes, compaction and replicas. Its methods are safe for
// concurrent use.
type Memory struct {
	view atomic.Pointer[policy.View]

	mu       sync.Mutex
	refuse   func(policy.Transaction) error // guarded by mu, like all below
	last     policy.Revision
	since    policy.Revision
	current  map[string]policy.Change // newest change of each key, deletions too
	buried   map[string]time.Time     // when a key was deleted
	outbox   []policy.Entry
	written  map[string]policy.Revision // by entry id
	watchers map[*watcher]bool
}

// watcher is one Run: updates that wait for it, and a bell.
type watcher struct {
	updates []policy.Update // guarded by Memory.mu
	wake    chan struct{}
}

// NewMemory returns an empty store with an epoch of its own.
func NewMemory() *Memory {
	m := &Memory{
		last:     1,
		current:  make(map[string]policy.Change),
		buried:   make(map[string]time.Time),
		written:  make(map[string]policy.Revision),
		watchers: make(map[*watcher]bool),
	}
	m.view.Store(&policy.View{Epoch: policy.Epoch(rand.Text()), Revision: m.last, AsOf: time.Now()})
	return m
}

// View returns everything as of the last commit.
func (m *Memory) View() *policy.View { return m.view.Load() }

// Refuse makes Commit ask f first and fail with what it returns; nil: no more.
func (m *Memory) Refuse(f func(policy.Transaction) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = f
}

// SetStale marks the view as stale, or as current again.
func (m *Memory) SetStale(stale bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	view := *m.View()
	view.Stale = stale
	m.view.Store(&view)
}

// Run tells the sinks of every change until ctx ends: first everything, then one Update per
// revision.
func (m *Memory) Run(ctx context.Context, sinks ...func(policy.Update)) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	m.mu.Lock()
	reset := m.update(slices.Collect(maps.Values(m.current)))
	reset.Reset = true
	w.updates = append(w.updates, reset)
	m.watchers[w] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}()
	for {
		m.mu.Lock()
		updates := w.updates
		w.updates = nil
		m.mu.Unlock()
		for _, u := range updates {
			for _, sink := range sinks {
				sink(u)
			}
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Commit writes tx whole or not at all.
func (m *Memory) Commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, fault.Wrap(err, fault.Canceled, "canceled", "write: canceled")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		if err := m.refuse(tx); err != nil {
			return 0, err
		}
	}
	if tx.Entry != nil {
		if revision, ok := m.written[tx.Entry.ID]; ok && tx.Entry.ID != "" {
			return revision, nil
		}
	}
	changes, err := m.changes(tx)
	if err != nil {
		return 0, err
	}
	m.commit(tx, changes)
	return m.last, nil
}

// changes checks tx and encodes what it writes, at the next revision.
func (m *Memory) changes(tx policy.Transaction) ([]policy.Change, error) {
	next := m.last + 1
	var changes []policy.Change
	seen := make(map[string]bool)
	add := func(c policy.Change, expected policy.Revision, encode func() ([]byte, error)) error {
		if seen[c.Key] {
			return fault.New(fault.Invalid, "duplicate", "%s is in the batch twice", c.Scope)
		}
		seen[c.Key], c.Revision = true, next
		if err := m.expect(c, expected); err != nil {
			return err
		}
		if encode != nil {
			var err error
			if c.Document, err = encode(); err != nil {
				return err
			}
		}
		changes = append(changes, c)
		return nil
	}
	var errs []error
	for _, p := range tx.PutPolicies {
		errs = append(errs, add(policyChange(p.Policy.Scope), p.Expected, func() ([]byte, error) { return wire.EncodePolicy(p.Policy) }))
	}
	for _, p := range tx.PutSwitches {
		errs = append(errs, add(switchChange(p.Switch), p.Expected, func() ([]byte, error) { return wire.EncodeSwitch(p.Switch) }))
	}
	for _, d := range tx.Deletes {
		errs = append(errs, add(policyChange(d.Scope), d.Expected, nil))
	}
	for _, p := range tx.End {
		errs = append(errs, add(switchChange(p.Switch), p.Expected, nil))
	}
	switch {
	case len(errs) == 0:
		return nil, fault.New(fault.Invalid, "empty_batch", "the transaction writes nothing")
	case len(errs) > 100 || len(errs)+len(tx.End)+2 > 128:
		return nil, fault.New(fault.Exhausted, "batch_too_large", "the batch has %d documents: at most 100 are written at once", len(errs))
	}
	return changes, cmp.Or(errs...)
}

func policyChange(s engine.Scope) policy.Change {
	return policy.Change{Key: policy.PolicyKey(s), Scope: s}
}

func switchChange(sw *policy.Switch) policy.Change {
	return policy.Change{Key: policy.SwitchKey(sw.ID), Scope: sw.Scope, Urgent: true}
}

// expect compares the revision of a document with what its writer expects.
func (m *Memory) expect(c policy.Change, expected policy.Revision) error {
	current, ok := m.current[c.Key]
	if ok && current.Deleted() {
		current = policy.Change{}
	}
	if current.Revision == expected {
		return nil
	}
	conflict := &policy.ConflictError{Key: c.Key, Scope: c.Scope, Expected: expected, Current: current.Revision}
	reason := "revision_moved"
	if expected == 0 {
		reason = "exists"
	}
	conflict.Err = fault.New(fault.Conflict, reason, "%s moved from revision %d to %d", c.Key, expected, current.Revision).
		WithHint("Read again, then repeat.")
	view := m.View()
	if p, ok := view.Policies[c.Scope]; ok && !c.Urgent {
		conflict.Policy, conflict.By, conflict.At = p, p.Metadata.UpdatedBy, p.Metadata.UpdatedAt
	}
	for _, sw := range view.Switches {
		if c.Key == policy.SwitchKey(sw.ID) {
			conflict.By, conflict.At = sw.UpdatedBy, sw.UpdatedAt
		}
	}
	return conflict
}

// commit makes changes, which are checked, the truth.
func (m *Memory) commit(tx policy.Transaction, changes []policy.Change) {
	m.last++
	before := m.View()
	after := &policy.View{
		Epoch: before.Epoch, Revision: m.last, AsOf: time.Now(), Stale: before.Stale,
		Policies: clone(before.Policies), Switches: clone(before.Switches), Ended: clone(before.Ended),
	}
	for _, c := range changes {
		switch {
		case c.Deleted() && c.Urgent:
			delete(after.Switches, strings.TrimPrefix(c.Key, policy.SwitchKey("")))
		case c.Deleted():
			delete(after.Policies, c.Scope)
		case c.Urgent:
			sw := must(wire.DecodeSwitch(c.Document, m.last))
			after.Switches[sw.ID] = sw
		default:
			after.Policies[c.Scope] = must(wire.DecodePolicy(c.Document, m.last))
		}
	}
	for _, p := range tx.End {
		after.Ended[p.Switch.ID] = must(wire.DecodeSwitch(must(wire.EncodeSwitch(p.Switch)), m.last))
	}
	for _, c := range changes {
		m.current[c.Key] = c
		delete(m.buried, c.Key)
		if c.Deleted() {
			m.buried[c.Key] = time.Now()
		}
	}
	if tx.Entry != nil {
		entry := *tx.Entry
		entry.ID = cmp.Or(entry.ID, rand.Text())
		m.outbox = append(m.outbox, entry)
		m.written[entry.ID] = m.last
	}
	m.view.Store(after)
	for w := range m.watchers {
		w.updates = append(w.updates, m.update(changes))
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// must is for documents that were encoded a moment ago.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func clone[K comparable, V any](of map[K]V) map[K]V {
	if of == nil {
		return make(map[K]V)
	}
	return maps.Clone(of)
}

func (m *Memory) update(changes []policy.Change) policy.Update {
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(a, b policy.Change) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
	})
	return policy.Update{Epoch: m.View().Epoch, Revision: m.last, Changes: changes, DeletionsKnownSince: m.since}
}

// Outbox returns the records of all commits, oldest first, at most limit.
func (m *Memory) Outbox(_ context.Context, limit int) ([]policy.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.outbox[:min(limit, len(m.outbox))]), nil
}

// Sweep forgets deletions older than an hour and switches that ended more than a day ago.
func (m *Memory) Sweep(_ context.Context, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, at := range m.buried {
		if now.Sub(at) >= time.Hour {
			m.since = max(m.since, m.current[key].Revision)
			delete(m.current, key)
			delete(m.buried, key)
		}
	}
	view := *m.View()
	view.Ended = clone(view.Ended)
	maps.DeleteFunc(view.Ended, func(_ string, sw *policy.Switch) bool { return now.Sub(sw.EndedAt) >= 24*time.Hour })
	m.view.Store(&view)
	return nil
}
