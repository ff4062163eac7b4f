// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
)

// fakeStore is a store whose commits can be held up, refused and looked at, and whose view
// can lag.
type fakeStore struct {
	*storetest.Memory
	// before runs ahead of each commit; an error refuses it.
	before func(policy.Transaction) error
	looks  atomic.Int64 // at the view
	lag    atomic.Pointer[policy.View]

	mu      sync.Mutex
	commits []policy.Transaction // guarded by mu
}

func (s *fakeStore) View() *policy.View {
	s.looks.Add(1)
	if v := s.lag.Load(); v != nil {
		return v
	}
	return s.Memory.View()
}

func (s *fakeStore) Commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error) {
	if s.before != nil {
		if err := s.before(tx); err != nil {
			return 0, err
		}
	}
	revision, err := s.Memory.Commit(ctx, tx)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.commits = append(s.commits, tx)
	}
	return revision, err
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

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{store: &fakeStore{Memory: storetest.NewMemory()}, fleet: fleet.New()}
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
func (h *house) seed(t *testing.T, documents ...*policy.Policy) policy.Revision {
	t.Helper()
	var req admin.ApplyRequest
	for _, d := range documents {
		req.Changes = append(req.Changes, put(d, 0))
	}
	result, err := h.Apply(t.Context(), alex, req)
	require.NoError(t, err)
	return result.Revision
}

// wall is the time as it is stored.
func wall() time.Time { return time.Now().UTC().Round(0) }

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

// faultOf checks the kind and reason of a failure and returns it.
func faultOf(t *testing.T, err error, kind fault.Kind, reason string) *fault.Error {
	t.Helper()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, kind, f.Kind, "%v", err)
	require.Equal(t, reason, f.Reason, "%v", err)
	return f
}

func requireFault(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	_ = faultOf(t, err, kind, reason)
}

func valueOf(t *testing.T, e *admin.EffectivePolicy, f engine.Field) admin.EffectiveValue {
	t.Helper()
	for _, v := range e.Values {
		if v.Field == f {
			return v
		}
	}
	require.Fail(t, "no value", "%s", f)
	return admin.EffectiveValue{}
}
