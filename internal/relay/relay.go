// SPDX-License-Identifier: Apache-2.0

// Package relay is the part of a policyd without a store: it follows another policyd as an
// instance does, keeps what it was sent on disk, and hands it on as a store would. Documents
// pass through undecoded, with their revisions, so that who is served cannot tell the
// difference and may change over at any time.
package relay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Config of a Relay. Upstream, Dir and Logger are required.
type Config struct {
	// Upstream are the addresses of policyd or of relays, tried one after the other.
	Upstream []string
	Security Security
	// Dir keeps the last known good.
	Dir string
	// Address that this relay serves, and its version, as upstream shows them.
	Address, Version string
	// Below returns the ids of the relays that are connected to this one; nil: none.
	Below func() []string
	// Report, if set, runs beside each stream that serves, over a connection of its own, until
	// ctx ends: it tells the upstream what is behind this relay.
	Report func(ctx context.Context, conn grpc.ClientConnInterface) error
	Logger *slog.Logger
}

// Relay follows an upstream. All methods are safe for concurrent use.
type Relay struct {
	// set once by New, read-only
	cfg    Config
	log    *slog.Logger
	id     string
	clock  *clock
	loaded chan struct{} // closed when there is something to serve
	dirty  chan struct{} // one slot: the disk is behind
	stats  counters

	// publish hands changes on. Set by Run; used by one goroutine at a time.
	publish func(policy.Update)

	// asOf is when the state was last known to be the newest, on policyd's clock; nil: now.
	asOf atomic.Pointer[time.Time]

	// mu guards the fields below.
	mu       sync.Mutex
	state    state
	standing Standing
	home     string // names this relay also after a restart
	told     string // the last failure that was logged

	views views
}

// Standing is how a relay stands with its upstream.
type Standing struct {
	// Upstream that is connected, or was last tried.
	Upstream  string
	Connected bool
	// Since is when Connected became what it is.
	Since time.Time
	// CutOff is since when what is served is not known to be the newest, on policyd's clock;
	// zero: it is the newest. An upstream may be connected and cut off itself.
	CutOff time.Time
	// Err is why there is no stream, nil while there is one.
	Err      error
	Epoch    string
	Revision int64
	// Documents are held, policies and switches.
	Documents int
}

// Stats counts what a Relay does; all grow only.
type Stats struct {
	// Streams that were opened and took an update. Updates that were taken, and Snapshots
	// among them.
	Streams, Updates, Snapshots int64
	// Refused are updates that were not taken: older than what is held, of an epoch that was
	// left, or with another hash.
	Refused int64
	// SaveFailures counts the times that the disk did not take the state.
	SaveFailures int64
}

type counters struct {
	streams, updates, snapshots, refused, saveFailures atomic.Int64
}

// New returns a Relay that serves nothing until Run runs.
func New(cfg Config) (*Relay, error) {
	if len(cfg.Upstream) == 0 || cfg.Dir == "" || cfg.Logger == nil {
		return nil, errors.New("relay: Upstream, Dir and Logger are required")
	}
	r := &Relay{
		cfg: cfg, log: cfg.Logger.With("component", "relay"), id: strings.ToLower(rand.Text()),
		clock: newClock(), loaded: make(chan struct{}), dirty: make(chan struct{}, 1),
	}
	r.home = strings.ToLower(rand.Text())
	r.standing = Standing{Upstream: cfg.Upstream[0], Since: time.Now(), Err: errConnecting}
	r.asOf.Store(&time.Time{})
	return r, nil
}

// ID names this relay among others. It is new at each start.
func (r *Relay) ID() string { return r.id }

// About introduces this relay.
func (r *Relay) About() *policydv1.Relay {
	r.mu.Lock()
	about := &policydv1.Relay{Id: r.id, Home: r.home, Address: r.cfg.Address, Version: r.cfg.Version}
	r.mu.Unlock()
	if r.cfg.Below != nil {
		about.Below = r.cfg.Below()
	}
	return about
}

// Loaded returns a channel that is closed once there is something to serve.
func (r *Relay) Loaded() <-chan struct{} { return r.loaded }

// Clock returns policyd's time as far as it is known here.
func (r *Relay) Clock() time.Time { return r.clock.now() }

// AsOf returns when what was published was last known to be the newest, on Clock; zero: it
// is now.
func (r *Relay) AsOf() time.Time {
	if t := r.asOf.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Stats returns the counts so far.
func (r *Relay) Stats() Stats {
	c := &r.stats
	return Stats{
		Streams: c.streams.Load(), Updates: c.updates.Load(), Snapshots: c.snapshots.Load(),
		Refused: c.refused.Load(), SaveFailures: c.saveFailures.Load(),
	}
}

// Standing returns how the relay stands with its upstream now.
func (r *Relay) Standing() Standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.standing
	st.Epoch, st.Revision, st.Documents = r.state.epoch, r.state.revision, len(r.state.entries)
	st.CutOff = r.AsOf()
	return st
}

// Run publishes what the disk holds, then what the upstream sends, until ctx ends. It keeps
// the disk up to date. It may run once.
func (r *Relay) Run(ctx context.Context, publish func(policy.Update)) error {
	r.publish = publish
	if err := prepare(r.cfg.Dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := r.restore(time.Now()); err != nil {
		r.log.WarnContext(ctx, "state on disk ignored; the next good one replaces it", "error", err)
	}
	var group errgroup.Group
	group.Go(func() error { r.follow(ctx); return nil })
	group.Go(func() error { r.keep(ctx); return nil })
	return group.Wait()
}

// restore publishes what the disk holds.
func (r *Relay) restore(now time.Time) error {
	held, m, err := load(r.cfg.Dir, now)
	if held == nil {
		return err
	}
	ahead := m.Ahead
	if behind := m.Written.Sub(now); behind > 0 {
		ahead += behind // this machine's clock was set back; time has passed all the same
	}
	r.clock.restore(ahead)
	asOf := cmp.Or(m.AsOf, m.Written.Add(m.Ahead))
	if latest := r.clock.now(); asOf.After(latest) {
		asOf = latest
	}
	r.mu.Lock()
	r.state = *held
	r.home = cmp.Or(m.Home, r.home)
	r.asOf.Store(&asOf)
	everything := r.state.everything()
	r.mu.Unlock()
	r.log.Info("state loaded from disk", "epoch", m.Epoch, "revision", m.Revision, "documents", len(held.entries),
		"age", r.clock.now().Sub(asOf).Round(time.Second), "from", m.From)
	r.publish(everything)
	close(r.loaded)
	return nil
}

// vouched notes that the upstream says that the state is the newest, or with asOf when it was.
func (r *Relay) vouched(asOf time.Time) {
	if asOf.IsZero() {
		r.asOf.Store(nil)
		return
	}
	r.asOf.Store(&asOf)
}

// outdated notes that there may be something newer than what is held, which was last known to
// be the newest at heard.
func (r *Relay) outdated(heard time.Time) {
	if r.asOf.Load() == nil {
		asOf := r.clock.at(heard)
		r.asOf.Store(&asOf)
	}
}

// connected notes that a stream serves updates.
func (r *Relay) connected(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing.Upstream, r.standing.Connected, r.standing.Since, r.standing.Err = addr, true, time.Now(), nil
	r.told = ""
	r.stats.streams.Add(1)
	r.log.Info("upstream connected", "addr", addr, "epoch", r.state.epoch, "revision", r.state.revision)
}

// lost notes that there is no stream, and why. One line is logged per kind of failure.
func (r *Relay) lost(ctx context.Context, addr string, err error, heard time.Time) {
	r.outdated(heard)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.standing.Connected {
		r.standing.Since = time.Now()
	}
	again := !r.standing.Connected && r.told == addr+err.Error()
	r.standing.Upstream, r.standing.Connected, r.standing.Err = addr, false, err
	r.told = addr + err.Error()
	log := r.log.With("addr", addr, "revision", r.state.revision, "error", err)
	switch {
	case errors.Is(err, errGoAway):
		log.InfoContext(ctx, "the upstream asked to reconnect")
	case again:
		log.DebugContext(ctx, "still cut off")
	case r.state.epoch == "":
		log.WarnContext(ctx, "no upstream and nothing on disk: serving nothing yet")
	default:
		log.WarnContext(ctx, "cut off from the upstream; serving the last known good")
	}
}

const (
	saveEvery = time.Second
	// saveAnyway keeps the age of the state on disk about right while nothing changes.
	saveAnyway = 5 * time.Minute
	// saveAgain is the pause after a failure.
	saveAgain = 30 * time.Second
)

// keep writes the state to disk when it changed, and at the end.
func (r *Relay) keep(ctx context.Context) {
	timer := time.NewTimer(saveAnyway)
	defer timer.Stop()
	for failed := false; ; {
		select {
		case <-ctx.Done():
			r.save(&failed)
			return
		case <-r.dirty:
		case <-timer.C:
		}
		pause := saveEvery
		if !r.save(&failed) {
			pause = saveAgain
		}
		if !sleep(ctx, pause) {
			r.save(&failed)
			return
		}
		timer.Reset(saveAnyway)
	}
}

// save writes the state and says once that it failed.
func (r *Relay) save(failed *bool) bool {
	r.mu.Lock()
	i := r.state.image()
	i.meta.From, i.meta.Home = r.standing.Upstream, r.home
	r.mu.Unlock()
	if i.meta.Epoch == "" {
		return true
	}
	err := r.write(i)
	if err != nil && !*failed {
		r.log.Warn("state not written to disk; tried again every 30s", "dir", r.cfg.Dir, "error", err)
	}
	*failed = err != nil
	return err == nil
}

func (r *Relay) write(i image) error {
	now := time.Now()
	i.meta.AsOf = r.AsOf()
	if i.meta.AsOf.IsZero() {
		i.meta.AsOf = r.clock.now()
	}
	i.meta.Written = now.Round(0)
	i.meta.Ahead = r.clock.now().Sub(now.Round(0))
	err := i.save(r.cfg.Dir)
	if err != nil {
		r.stats.saveFailures.Add(1)
	}
	return err
}

// unsaved asks keep to write soon.
func (r *Relay) unsaved() {
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// share returns a random number in [0,1): relays that fail together come back apart.
func share() float64 { return mathrand.Float64() }
