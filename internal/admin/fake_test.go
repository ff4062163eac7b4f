// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// fakeStore is a store whose commits can be delayed, refused and looked at.
type fakeStore struct {
	mu      sync.Mutex
	view    policy.View
	commits []policy.Transaction
	// before runs ahead of each commit, without the lock; an error refuses the commit.
	before func(policy.Transaction) error
	looks  atomic.Int64 // at the view
}

func newStore() *fakeStore {
	return &fakeStore{view: policy.View{
		Epoch: "e1", Revision: 1, AsOf: time.Now(),
		Policies: policy.Set{}, Switches: map[string]*policy.Switch{}, Ended: map[string]*policy.Switch{},
	}}
}

func (s *fakeStore) View() *policy.View {
	s.looks.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view
	return &v
}

func (s *fakeStore) Commit(_ context.Context, tx policy.Transaction) (policy.Revision, error) {
	if s.before != nil {
		if err := s.before(tx); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view
	v.Policies, v.Switches, v.Ended = maps.Clone(v.Policies), maps.Clone(v.Switches), maps.Clone(v.Ended)
	v.Revision++
	for _, p := range tx.PutPolicies {
		if err := s.expect(p.Policy.Scope, p.Expected); err != nil {
			return 0, err
		}
		stored := *p.Policy
		stored.Revision = v.Revision
		v.Policies[p.Policy.Scope] = &stored
	}
	for _, d := range tx.Deletes {
		if err := s.expect(d.Scope, d.Expected); err != nil {
			return 0, err
		}
		delete(v.Policies, d.Scope)
	}
	for _, p := range append(tx.PutSwitches, tx.End...) {
		var at policy.Revision
		if have := s.view.Switches[p.Switch.ID]; have != nil {
			at = policy.Revision(have.Revision)
		}
		if at != p.Expected {
			return 0, &policy.ConflictError{
				Key: policy.SwitchKey(p.Switch.ID), Expected: p.Expected, Current: at,
				Err: fault.New(fault.Conflict, "revision_moved", "switch %s moved", p.Switch.ID),
			}
		}
		stored := *p.Switch
		stored.Revision = int64(v.Revision)
		v.Switches[stored.ID] = &stored
	}
	for _, p := range tx.End {
		v.Ended[p.Switch.ID] = v.Switches[p.Switch.ID]
		delete(v.Switches, p.Switch.ID)
	}
	s.view = v
	s.commits = append(s.commits, tx)
	return v.Revision, nil
}

func (s *fakeStore) expect(scope engine.Scope, expected policy.Revision) error {
	p := s.view.Policies[scope]
	e := &policy.ConflictError{Key: policy.PolicyKey(scope), Scope: scope, Expected: expected, Policy: p}
	if p != nil {
		e.Current, e.By, e.At = p.Revision, p.Metadata.UpdatedBy, p.Metadata.UpdatedAt
	}
	if e.Current == expected {
		return nil
	}
	e.Err = fault.New(fault.Conflict, "revision_moved", "%s moved", scope)
	return e
}

// entries returns the records written so far, of one action or of all.
func (s *fakeStore) entries(action string) []*policy.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*policy.Entry
	for _, tx := range s.commits {
		if tx.Entry != nil && (action == "" || tx.Entry.Action == action) {
			found = append(found, tx.Entry)
		}
	}
	return found
}

// house is a Service with what is around it.
type house struct {
	*admin.Service
	store *fakeStore
	fleet *fleet.Registry
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{store: newStore(), fleet: fleet.New()}
	h.Service = h.another()
	return h
}

// another is a second replica over the same store and fleet.
func (h *house) another() *admin.Service {
	return admin.New(admin.Config{Store: h.store, Fleet: h.fleet, Logger: slog.New(slog.DiscardHandler), Version: "test"})
}

var (
	alex = admin.Caller{Actor: policy.Actor{Name: "alex", Via: "policyctl"}, RequestID: "req-1"}
	sam  = admin.Caller{Actor: policy.Actor{Name: "sam", Via: "ui"}, RequestID: "req-2"}
)

type settings = engine.Settings

const (
	shop     = engine.Scope("shop")
	payments = engine.Scope("shop/payments")
	charges  = engine.Scope("shop/payments/charges.create")
)

func doc(scope engine.Scope, s settings) *policy.Policy {
	return &policy.Policy{Scope: scope, Settings: s}
}

func rev(r policy.Revision) *policy.Revision { return &r }

func put(p *policy.Policy, expected policy.Revision) admin.PolicyChange {
	return admin.PolicyChange{Policy: p, Expected: rev(expected)}
}

// seed writes documents that must be accepted and returns their revision.
func (h *house) seed(t testing.TB, documents ...*policy.Policy) policy.Revision {
	t.Helper()
	var req admin.ApplyRequest
	for _, d := range documents {
		req.Changes = append(req.Changes, put(d, 0))
	}
	result, err := h.Apply(t.Context(), alex, req)
	require.NoError(t, err)
	return result.Revision
}

func ratio(f float64) engine.Value {
	v, _ := engine.Decimal(f)
	return v
}

// connect adds an instance that has everything up to revision in force.
func (h *house) connect(id string, revision int64, targets ...engine.Scope) *fleet.Session {
	s := h.fleet.Connect(fleet.Identity{ID: id, Namespace: "shop", Service: "cart", Mode: "enforce", Targets: targets}, revision, false)
	s.Confirmed(revision, nil)
	return s
}

func requireFault(t testing.TB, err error, kind fault.Kind, reason string) *fault.Error {
	t.Helper()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, kind, f.Kind, "%v", err)
	require.Equal(t, reason, f.Reason, "%v", err)
	return f
}

func (s *fakeStore) setView(v *policy.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view = *v
}

func valueOf(t testing.TB, e *admin.EffectivePolicy, f engine.Field) admin.EffectiveValue {
	t.Helper()
	for _, v := range e.Values {
		if v.Field == f {
			return v
		}
	}
	require.Fail(t, "no value", "%s", f)
	return admin.EffectiveValue{}
}
