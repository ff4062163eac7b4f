// SPDX-License-Identifier: Apache-2.0

// Package storetest holds what every store of policies and switches must do, and a store in
// memory that does most of it. For tests only.
package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Store is what the suite tests.
type Store interface {
	View() *policy.View
	Commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error)
	Run(ctx context.Context, sinks ...func(policy.Update)) error
	Sweep(ctx context.Context, now time.Time) error
}

// Env is one empty store and what a case may do to it. The store is not running yet.
type Env struct {
	Store Store
	// Outbox returns the audit records that wait, oldest first.
	Outbox func(ctx context.Context) ([]policy.Entry, error)

	// Abilities that a store may lack; nil skips the cases that need them.

	// Replica returns another store on the same data, not running yet.
	Replica func() Store
	// Put and Delete change stored bytes by hand, Read returns them; keys as in
	// policy.Change.
	Put    func(key string, value []byte)
	Delete func(key string)
	Read   func(key string) []byte
	// Compact makes the history up to now unreadable, while the store is cut off from it:
	// it runs during with the store not hearing of what happens.
	CutOff func(during func())
}

// Run runs the suite; open returns a fresh Env whose resources end with the test.
func Run(t *testing.T, open func(t *testing.T) Env) {
	t.Helper()
	for _, group := range [][]testCase{writeCases(), watchCases(), traceCases()} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				env := open(t)
				if missing := c.needs.missing(env); missing != "" {
					t.Skipf("exception: this store has no %s", missing)
				}
				c.run(t, start(t, env))
			})
		}
	}
}

type testCase struct {
	name  string
	needs ability
	run   func(t *testing.T, h *harness)
}

type ability int

const (
	needsNothing ability = iota
	needsReplica
	needsBytes
	needsCutOff
)

func (a ability) missing(env Env) string {
	switch {
	case a == needsReplica && env.Replica == nil:
		return "replicas"
	case a == needsBytes && env.Put == nil:
		return "stored bytes"
	case a == needsCutOff && env.CutOff == nil:
		return "history that can be lost"
	}
	return ""
}

// patience bounds each wait of the suite.
const patience = 20 * time.Second

// harness is a running store with what it has told its sink.
type harness struct {
	Env
	heard *Recorder
}

func start(t *testing.T, env Env) *harness {
	t.Helper()
	return &harness{Env: env, heard: Start(t, env.Store)}
}

// Start runs s until the test ends and waits for its first update.
func Start(t testing.TB, s interface {
	Run(ctx context.Context, sinks ...func(policy.Update)) error
},
) *Recorder {
	t.Helper()
	r := &Recorder{moved: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r.Sink) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	r.Wait(t, "the first update", func(all []policy.Update) bool { return len(all) > 0 })
	return r
}

// Recorder is a sink that remembers. Safe for concurrent use.
type Recorder struct {
	mu      sync.Mutex
	updates []policy.Update
	moved   chan struct{} // closed and replaced with each update
}

// Sink takes in one update.
func (r *Recorder) Sink(u policy.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, u)
	close(r.moved)
	r.moved = make(chan struct{})
}

// All returns the updates so far.
func (r *Recorder) All() []policy.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.updates[:len(r.updates):len(r.updates)]
}

// Wait returns the updates so far once they satisfy ok.
func (r *Recorder) Wait(t testing.TB, what string, ok func([]policy.Update) bool) []policy.Update {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		r.mu.Lock()
		all, moved := r.updates[:len(r.updates):len(r.updates)], r.moved
		r.mu.Unlock()
		if ok(all) {
			return all
		}
		select {
		case <-moved:
		case <-late.C:
			require.FailNow(t, "waited too long for "+what)
		}
	}
}

// at waits for the update of one revision.
func (r *Recorder) at(t testing.TB, revision policy.Revision) policy.Update {
	t.Helper()
	all := r.Wait(t, "an update", func(all []policy.Update) bool {
		return len(all) > 0 && all[len(all)-1].Revision >= revision
	})
	for _, u := range all {
		if u.Revision >= revision {
			return u
		}
	}
	return policy.Update{}
}

// State folds updates the way a reader does: what there is, by key, and at which revision.
func (r *Recorder) State() map[string]policy.Revision {
	state := make(map[string]policy.Revision)
	for _, u := range r.All() {
		if u.Reset {
			clear(state)
		}
		for _, c := range u.Changes {
			if c.Deleted() {
				delete(state, c.Key)
			} else {
				state[c.Key] = c.Revision
			}
		}
	}
	return state
}

// StateOf returns what a view holds, in the form of Recorder.State.
func StateOf(v *policy.View) map[string]policy.Revision {
	state := make(map[string]policy.Revision, len(v.Policies)+len(v.Switches))
	for scope, p := range v.Policies {
		state[policy.PolicyKey(scope)] = p.Revision
	}
	for id, sw := range v.Switches {
		state[policy.SwitchKey(id)] = policy.Revision(sw.Revision)
	}
	return state
}

// Eventually waits until ok holds.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}

// wall is a time as documents keep it.
func wall() time.Time { return time.Date(2026, 8, 1, 12, 30, 15, 123456789, time.UTC) }

// Alice writes most documents of the suite.
func alice() policy.Actor { return policy.Actor{Name: "alice", Via: "policyctl"} }

// Policy returns a policy for tests that allows attempts attempts.
func Policy(scope engine.Scope, attempts int64) *policy.Policy {
	return &policy.Policy{
		Scope: scope,
		Metadata: policy.Metadata{
			Owner: "team-shop", Labels: map[string]string{policy.LabelCriticality: "critical"},
			CreatedBy: alice(), CreatedAt: wall(), UpdatedBy: alice(), UpdatedAt: wall(),
		},
		Settings: engine.Settings{
			engine.MaxAttempts: engine.Int(attempts),
		},
	}
}

// Switch returns an active kill switch for tests.
func Switch(id string, scope engine.Scope) *policy.Switch {
	return &policy.Switch{
		Switch: engine.Switch{
			ID: id, Action: engine.DisableRetries, Scope: scope, Percent: 100,
			Ends: wall().Add(time.Hour), Restore: 2 * time.Minute, Reason: "the backend melts", Incident: "INC-7",
		},
		Phase: policy.PhaseActive, CreatedBy: alice(), CreatedAt: wall(), UpdatedBy: alice(), UpdatedAt: wall(),
	}
}

// put is a transaction that writes one policy.
func put(p *policy.Policy, expected policy.Revision) policy.Transaction {
	return policy.Transaction{PutPolicies: []policy.PolicyPut{{Policy: p, Expected: expected}}, Entry: entry("policy.apply", p.Scope)}
}

func remove(scope engine.Scope, expected policy.Revision) policy.Transaction {
	return policy.Transaction{Deletes: []policy.Deletion{{Scope: scope, Expected: expected}}, Entry: entry("policy.delete", scope)}
}

func entry(action string, scopes ...engine.Scope) *policy.Entry {
	return &policy.Entry{
		At: wall(), Actor: alice(), Action: action, Scopes: scopes, Reason: "because", RequestID: "req-1",
	}
}

func (h *harness) commit(t *testing.T, tx policy.Transaction) policy.Revision {
	t.Helper()
	revision, err := h.Store.Commit(t.Context(), tx)
	require.NoError(t, err)
	return revision
}

// refused commits tx and returns its conflict.
func (h *harness) refused(t *testing.T, tx policy.Transaction) *policy.ConflictError {
	t.Helper()
	_, err := h.Store.Commit(t.Context(), tx)
	var conflict *policy.ConflictError
	require.ErrorAs(t, err, &conflict)
	return conflict
}
