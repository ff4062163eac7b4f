// SPDX-License-Identifier: Apache-2.0

// Package store keeps policies and kill switches in etcd, the only truth for them. A Store
// holds one watch and publishes an immutable view of everything; a write is one etcd
// transaction with its audit record inside. All methods are safe for concurrent use.
package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
)

// Defaults of Config.
const (
	DefaultPrefix        = "/policyd/v1/"
	DefaultOutboxEntries = 10_000
)

// MaxDocuments is how many documents one transaction may write or delete.
const MaxDocuments = 100

// Config of a Store. Client and Logger are required.
type Config struct {
	Client *clientv3.Client
	Logger *slog.Logger
	// Prefix of all keys, ending in "/"; empty: DefaultPrefix.
	Prefix string
	// OutboxEntries is how many audit records may wait before Sweep drops the oldest;
	// 0: DefaultOutboxEntries.
	OutboxEntries int
	// NewEpoch gives the data a new epoch at the first reading: they are right although
	// instances have left them for others.
	NewEpoch bool
	// Timing is for tests; the zero value is right for production.
	Timing Timing
}

// Timing holds the periods of a Store. A zero field takes its default.
type Timing struct {
	// Probe is how often the store must prove that it is alive; default 3s.
	Probe time.Duration
	// Silence is how long it may fail to before the view is stale and the watch is made
	// anew; default 7s.
	Silence time.Duration
	// Compare is how often the view is compared with the store; default 60s.
	Compare time.Duration
	// Request bounds one read or write; default 5s.
	Request time.Duration
	// Pause before the first reconnect, doubling up to MaxPause; default 100ms and 5s.
	Pause, MaxPause time.Duration
	// Lease is how long a replica that died without a word stays announced, in whole
	// seconds; default 10s. A question of the fleet stays open on it for as long.
	Lease time.Duration
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Probe, 3 * time.Second},
		{&t.Silence, 7 * time.Second},
		{&t.Compare, 60 * time.Second},
		{&t.Request, 5 * time.Second},
		{&t.Pause, 100 * time.Millisecond},
		{&t.MaxPause, 5 * time.Second},
		{&t.Lease, 10 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return t
}

// Store reads and writes policies and switches.
type Store struct {
	// set once by New, read-only
	client *clientv3.Client
	log    *slog.Logger
	keys   keys
	outbox int
	timing Timing

	// atomic
	view  atomic.Pointer[policy.View]
	stats counters

	loaded     chan struct{} // closed after the first read
	loadedOnce sync.Once

	// What speaks against the data that were read last.
	suspected atomic.Pointer[suspicion]
	suspects  chan policy.Point
	alarm     chan struct{}

	// owned by Run
	anew, renewed bool                  // a new epoch is wanted; it was given
	left          map[policy.Epoch]bool // epochs that this replica served before

	// mu guards state, which only Run changes, and seen with its signal.
	mu    sync.RWMutex
	state *state
	seen  policy.Revision // everything up to it is in the view
	moved chan struct{}   // closed and replaced when seen grows
}

// Stats counts what a Store has been through.
type Stats struct {
	// Relists is how often everything was read; 1 in health.
	Relists int64
	// Drift counts documents of the view that were not as the store has them, found by the
	// full comparison and repaired; 0 in health.
	Drift int64
	// Comparisons is how many full comparisons were made.
	Comparisons int64
	// Unreadable is how many values are in the store now that could not be decoded.
	Unreadable int64
	// OutboxDropped counts audit records that Sweep dropped because too many waited.
	OutboxDropped int64
	// Stale says that the view may be out of date, since AsOf.
	Stale bool
	AsOf  time.Time
}

type counters struct {
	relists, drift, comparisons, unreadable, outboxDropped atomic.Int64
}

// New returns a Store. Its view is empty and stale until Run has read the store.
func New(cfg Config) (*Store, error) {
	if cfg.Client == nil || cfg.Logger == nil {
		return nil, errors.New("store: Client and Logger are required")
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if !strings.HasSuffix(cfg.Prefix, "/") {
		// Without it "/policyd/v1" would take in "/policyd/v10".
		return nil, fault.New(fault.Invalid, "prefix", "the key prefix %q must end in /", cfg.Prefix)
	}
	if cfg.OutboxEntries <= 0 {
		cfg.OutboxEntries = DefaultOutboxEntries
	}
	s := &Store{
		client: cfg.Client,
		log:    cfg.Logger.With("component", "store"),
		keys:   keys{prefix: cfg.Prefix},
		outbox: cfg.OutboxEntries,
		timing: cfg.Timing.withDefaults(),
		loaded: make(chan struct{}),
		moved:  make(chan struct{}),

		suspects: make(chan policy.Point, 1),
		alarm:    make(chan struct{}, 1),
		anew:     cfg.NewEpoch,
		left:     make(map[policy.Epoch]bool),
	}
	s.view.Store(&policy.View{Stale: true})
	return s, nil
}

// View returns everything as of the last revision seen. It never blocks and is never nil.
func (s *Store) View() *policy.View { return s.view.Load() }

// Loaded is closed once the store has been read for the first time.
func (s *Store) Loaded() <-chan struct{} { return s.loaded }

// Stats returns the counters as they are now.
func (s *Store) Stats() Stats {
	view := s.View()
	return Stats{
		Relists:       s.stats.relists.Load(),
		Drift:         s.stats.drift.Load(),
		Comparisons:   s.stats.comparisons.Load(),
		Unreadable:    s.stats.unreadable.Load(),
		OutboxDropped: s.stats.outboxDropped.Load(),
		Stale:         view.Stale,
		AsOf:          view.AsOf,
	}
}

// publish makes what the state holds the view, as fresh as the view before.
func (s *Store) publish() {
	before := s.View()
	s.view.Store(&policy.View{
		Epoch:    s.state.epoch,
		Revision: s.state.revision,
		Policies: s.state.policies,
		Switches: s.state.switches,
		Ended:    s.state.ended,
		AsOf:     before.AsOf,
		Stale:    before.Stale,
	})
	s.state.owned = ownership{}
}

// confirm says that the view was right at asOf.
func (s *Store) confirm(asOf time.Time) {
	view := *s.View()
	if view.Stale {
		s.log.Info("view is current again", "revision", view.Revision)
	}
	view.AsOf, view.Stale = asOf, false
	s.view.Store(&view)
}

// doubt marks the view as stale.
func (s *Store) doubt(reason error) {
	view := *s.View()
	if view.Stale {
		return
	}
	s.log.Warn("view is stale", "revision", view.Revision, "as_of", view.AsOf, "error", reason)
	view.Stale = true
	s.view.Store(&view)
}

// advance says that everything up to revision is in the view.
func (s *Store) advance(revision policy.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision <= s.seen {
		return
	}
	s.seen = revision
	close(s.moved)
	s.moved = make(chan struct{})
}

// await waits until everything up to revision is in the view, or ctx ends.
func (s *Store) await(ctx context.Context, revision policy.Revision) {
	for {
		s.mu.RLock()
		seen, moved := s.seen, s.moved
		s.mu.RUnlock()
		if seen >= revision {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}
