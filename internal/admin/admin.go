// SPDX-License-Identifier: Apache-2.0

// Package admin holds the use cases of operators: apply policies, pull and end kill
// switches, see what is in force. It is the only code that changes anything; every rule
// that a write must obey lives here. All methods of Service are safe for concurrent use.
package admin

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Store keeps policies and switches.
type Store interface {
	// View returns everything in the store, as of a revision that may lag a commit a little.
	View() *policy.View
	// Commit writes tx whole or not at all and returns its revision, as a rule once the view
	// shows it. It keeps nothing of tx. A document that moved is a *policy.ConflictError; a
	// store that cannot be reached is Unavailable.
	Commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error)
}

// Peers brings what Fleet knows of the instances of other replicas up to date.
type Peers interface {
	// Ask waits until each replica has answered, a second at most, and says which have not.
	Ask(ctx context.Context) []fleet.Peer
}

// Config is what a Service needs. Store, Fleet and Logger are required.
type Config struct {
	Store  Store
	Fleet  *fleet.Registry
	Logger *slog.Logger
	// Version of policyd, shown in the status.
	Version string
	// Peers are the other replicas; nil: there are none.
	Peers Peers
	// Backlog returns how many records wait for the audit log; nil: not known.
	Backlog func() int64
	// RelayOf returns the address that a relay follows; nil: this policyd has a store.
	RelayOf func() string
}

// Service answers operators.
type Service struct {
	store   Store
	fleet   *fleet.Registry
	peers   Peers
	log     *slog.Logger
	version string
	backlog func() int64
	relayOf func() string

	// kick wakes the sweeper after a change of switches made here.
	kick chan struct{}

	// mu guards the fields below.
	mu     sync.Mutex
	recent map[policy.Revision][]engine.Scope // what recent commits of ours concern
	epoch  policy.Epoch                       // of which they are
}

// Caller is who asks, through which tool, and in which request.
type Caller struct {
	policy.Actor
	RequestID string
}

// New returns a Service. It panics when a required part of cfg is missing.
func New(cfg Config) *Service {
	if cfg.Store == nil || cfg.Fleet == nil || cfg.Logger == nil {
		panic("admin: Store, Fleet and Logger are required")
	}
	s := &Service{
		store:   cfg.Store,
		fleet:   cfg.Fleet,
		peers:   cfg.Peers,
		log:     cfg.Logger.With("component", "admin"),
		version: cfg.Version,
		backlog: cfg.Backlog,
		relayOf: cfg.RelayOf,
		kick:    make(chan struct{}, 1),
		recent:  make(map[policy.Revision][]engine.Scope),
	}
	return s
}

// ask brings what is known of other replicas' instances up to date.
func (s *Service) ask(ctx context.Context) []fleet.Peer {
	if s.peers == nil {
		return nil
	}
	return s.peers.Ask(ctx)
}

// askAhead is ask for somebody who must not wait: what is known now has to do.
func (s *Service) askAhead(ctx context.Context) []fleet.Peer {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return s.ask(ctx)
}

// wallClock returns the time as it is stored.
func wallClock() time.Time { return time.Now().UTC().Round(0) }

// How long a request waits for the view to reach a revision that its caller has seen.
const (
	catchUpFor  = 2 * time.Second
	catchUpStep = 5 * time.Millisecond
)

// viewAt returns a view at revision or later. A caller may have seen a revision through
// another replica before this one did.
func (s *Service) viewAt(ctx context.Context, revision policy.Revision) (*policy.View, error) {
	deadline := time.Now().Add(catchUpFor)
	for {
		view := s.store.View()
		if view.Revision >= revision {
			return view, nil
		}
		if time.Now().After(deadline) {
			return nil, fault.New(fault.Unavailable, "view_behind",
				"this policyd knows revision %d and you have seen %d", view.Revision, revision).
				WithHint("Try again in a moment.")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(catchUpStep):
		}
	}
}

// commit writes tx and notes what it concerns.
func (s *Service) commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error) {
	revision, err := s.store.Commit(ctx, tx)
	if err != nil {
		return 0, err
	}
	s.remember(revision, tx)
	if len(tx.PutSwitches) > 0 {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	return revision, nil
}

// Commits whose scopes are remembered, for progress of deletions.
const maxRecent = 512

func (s *Service) remember(revision policy.Revision, tx policy.Transaction) {
	epoch := s.store.View().Epoch
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		clear(s.recent) // a restore uses revisions again
		s.epoch = epoch
	}
	s.recent[revision] = scopesOf(tx)
	if len(s.recent) > maxRecent {
		oldest := revision
		for r := range s.recent {
			oldest = min(oldest, r)
		}
		delete(s.recent, oldest)
	}
}

func scopesOf(tx policy.Transaction) []engine.Scope {
	var scopes []engine.Scope
	for _, p := range tx.PutPolicies {
		scopes = append(scopes, p.Policy.Scope)
	}
	for _, d := range tx.Deletes {
		scopes = append(scopes, d.Scope)
	}
	for _, p := range tx.PutSwitches {
		scopes = append(scopes, p.Switch.Scope)
	}
	return scopes
}
