// SPDX-License-Identifier: Apache-2.0

// Package push sends documents to instances: one stream of updates in, one gRPC stream per
// instance out. It carries state, not events: a stream is brought from what it has to the
// newest state by one message, encoded once for all streams at the same point. A reader
// that lags blocks nobody and costs no memory.
package push

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Config of a Hub. Fleet and Logger are required.
type Config struct {
	Fleet  *fleet.Registry
	Logger *slog.Logger
	// Suspect hears of points that instances were served and that do not fit what this policyd
	// has. It must not block; nil: nobody does.
	Suspect func(policy.Point)
	// Heartbeat is the time between two heartbeats of a stream; default 15s.
	Heartbeat time.Duration
	// Gather is how long an ordinary change that follows another may wait for more;
	// default 20ms. A switch never waits.
	Gather time.Duration
	Limits Limits
	// Relay is nil where what is published comes from the store.
	Relay *Relay
}

// Limits of a Hub. A zero field takes its default.
type Limits struct {
	// Streams at once; default 20,000.
	Streams int
	// AcceptRate is how many streams may start per second; default 2,000.
	AcceptRate int
	// Unconfirmed is how many bytes a stream may leave unconfirmed before it is left alone
	// until it confirms; default 32 KiB, which is also the most: grpc blocks a sender at 64.
	Unconfirmed int
	// Piece is the size above which an update is split; default 256 KiB.
	Piece int
	// CutOff ends a stream that confirmed nothing for so long while there was more to send;
	// default 60s.
	CutOff time.Duration
	// Hello is how long a stream may take to introduce itself; default 10s.
	Hello time.Duration
	// Writers is how many goroutines send; default 2 per core.
	Writers int
}

const maxUnconfirmed = 32 << 10

func (c Config) withDefaults() Config {
	l := &c.Limits
	if c.Suspect == nil {
		c.Suspect = func(policy.Point) {}
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.Gather = cmp.Or(c.Gather, 20*time.Millisecond)
	l.Streams = cmp.Or(l.Streams, 20_000)
	l.AcceptRate = cmp.Or(l.AcceptRate, 2_000)
	l.Unconfirmed = min(cmp.Or(l.Unconfirmed, maxUnconfirmed), maxUnconfirmed)
	l.Piece = cmp.Or(l.Piece, 256<<10)
	l.CutOff = cmp.Or(l.CutOff, time.Minute)
	l.Hello = cmp.Or(l.Hello, 10*time.Second)
	l.Writers = cmp.Or(l.Writers, 2*runtime.GOMAXPROCS(0))
	return c
}

// Hub serves WatchService. All methods are safe for concurrent use.
type Hub struct {
	policydv1.UnimplementedWatchServiceServer

	// set once by New, read-only
	cfg    Config
	fleet  *fleet.Registry
	log    *slog.Logger
	start  time.Time
	shards []*shard

	gate  *gate
	stats counters

	complained complaint

	// inbox holds what Publish took and flush has not applied.
	inbox inbox

	// snap is the newest snapshot. It is stored after the views that it changed: who loads
	// it before a view's state finds at least its revision there.
	snap atomic.Pointer[snapshot]

	// mu guards the fields below. Nothing is sent while it is held.
	mu    sync.Mutex
	world *world
	views viewIndex

	// roster guards the fields below it.
	roster  sync.Mutex
	streams map[*stream]struct{}
	byID    map[string]*stream
	closing error           // why new streams are refused
	turn    int             // picks the next shard
	emptied []chan struct{} // closed when the last stream leaves
}

// New returns a Hub that serves streams once Run runs and something was published.
func New(cfg Config) (*Hub, error) {
	if cfg.Fleet == nil || cfg.Logger == nil {
		return nil, errors.New("push: Fleet and Logger are required")
	}
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg:     cfg,
		fleet:   cfg.Fleet,
		log:     cfg.Logger,
		start:   time.Now(),
		gate:    newGate(cfg.Limits.Streams, cfg.Limits.AcceptRate),
		inbox:   inbox{wake: make(chan struct{}, 1)},
		world:   newWorld(),
		views:   newViewIndex(),
		streams: make(map[*stream]struct{}),
		byID:    make(map[string]*stream),
	}
	h.snap.Store(h.world.snap)
	for i := range cfg.Limits.Writers {
		h.shards = append(h.shards, newShard(h, i))
	}
	return h, nil
}

// Register adds the service to a server, which must be made with ServerOptions.
func (h *Hub) Register(r grpc.ServiceRegistrar) { policydv1.RegisterWatchServiceServer(r, h) }

// Publish takes what one revision changed. It never blocks and keeps u's slices; nobody may
// change them.
func (h *Hub) Publish(u policy.Update) { h.inbox.put(u, h.now()) }

// Run gathers, applies and sends what is published until ctx is done, then ends all streams.
func (h *Hub) Run(ctx context.Context) error {
	var writers, guard sync.WaitGroup
	over := make(chan struct{})
	guard.Go(func() { h.watchSends(over) })
	defer guard.Wait()
	defer close(over)
	defer writers.Wait()
	defer h.Close()
	for _, s := range h.shards {
		writers.Go(func() { s.run(ctx) })
	}
	refresh := time.NewTicker(h.cfg.Heartbeat)
	defer refresh.Stop()
	gathered := time.NewTimer(time.Hour)
	defer gathered.Stop()
	round := time.NewTimer(time.Hour)
	defer round.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C:
			h.refresh()
		case <-gathered.C:
			h.flush()
		case <-round.C:
			h.startRounds(nil, 0, false)
		case <-h.inbox.wake:
			if wait := h.inbox.wait(h.now(), h.cfg.Gather); wait > 0 {
				gathered.Reset(wait)
				continue
			}
			h.flush()
		}
		if wait, ok := h.nextRound(); ok {
			round.Reset(wait)
		}
	}
}

// Drain refuses new streams, asks every instance to reconnect within window, and returns
// when all have left. When ctx is done first, it ends the rest.
func (h *Hub) Drain(ctx context.Context, window time.Duration) {
	h.refuse(status.Error(codes.Unavailable, "policyd is shutting down"))
	away := goAwayFrame(window, "shutting down")
	for _, s := range h.all() {
		s.goAway(away, window)
	}
	select {
	case <-h.empty():
	case <-ctx.Done():
	}
	h.Close()
}

// Close refuses new streams and ends all others with UNAVAILABLE.
func (h *Hub) Close() {
	err := status.Error(codes.Unavailable, "policyd is shutting down")
	h.refuse(err)
	for _, s := range h.all() {
		s.end(err)
	}
}

func (h *Hub) refuse(err error) {
	h.roster.Lock()
	defer h.roster.Unlock()
	h.closing = err
}

// empty returns a channel that is closed once no stream is left.
func (h *Hub) empty() <-chan struct{} {
	h.roster.Lock()
	defer h.roster.Unlock()
	empty := make(chan struct{})
	if len(h.streams) == 0 {
		close(empty)
	} else {
		h.emptied = append(h.emptied, empty)
	}
	return empty
}

func (h *Hub) all() []*stream {
	h.roster.Lock()
	defer h.roster.Unlock()
	return slices.Collect(maps.Keys(h.streams))
}

// now is the time on the Hub's own monotonic line.
func (h *Hub) now() time.Duration { return time.Since(h.start) }

// flush applies everything that was published and wakes the writers of the views that it
// concerns.
func (h *Hub) flush() {
	updates, urgent, at := h.inbox.take(h.now())
	if len(updates) == 0 {
		return
	}
	touched := make(map[*view]struct{})
	var refused []error
	h.mu.Lock()
	for i := range updates {
		if err := h.apply(&updates[i], at, touched); err != nil {
			refused = append(refused, err)
		}
	}
	readers := int64(0)
	for v := range touched {
		readers += v.refs.Load()
	}
	for v := range touched {
		v.publish(h.world.snap, readers)
	}
	h.snap.Store(h.world.snap)
	h.mu.Unlock()

	for _, err := range refused {
		h.log.Error("update refused", "error", err)
	}
	h.startRounds(touched, readers, urgent)
	h.stats.published.Add(int64(len(updates)))
}

// apply is guarded by mu.
func (h *Hub) apply(u *policy.Update, at time.Duration, touched map[*view]struct{}) error {
	changes, fresh, err := h.world.apply(u, at)
	if err != nil {
		return err
	}
	if fresh {
		for v := range h.views.all {
			v.rescan(h.world.snap)
			touched[v] = struct{}{}
		}
		return nil
	}
	for _, c := range changes {
		for v := range h.views.near(c.scope()) {
			if v.note(c, u.Revision) {
				touched[v] = struct{}{}
			}
		}
	}
	return nil
}

// refresh lets every view forget its cached messages and older snapshots.
func (h *Hub) refresh() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.views.all {
		v.renew(h.world.snap)
	}
}

// acquire returns the view of a set of targets; release gives it back.
func (h *Hub) acquire(targets targetSet) *view {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.views.byKey[targets.key]
	if !ok {
		v = newView(targets, len(h.shards), h.cfg.Limits.Piece)
		v.rescan(h.world.snap)
		v.publish(h.world.snap, 0)
		h.views.add(v)
	}
	v.refs.Add(1)
	return v
}

func (h *Hub) release(v *view) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.refs.Add(-1) == 0 {
		h.views.remove(v)
	}
}
