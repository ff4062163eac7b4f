// SPDX-License-Identifier: Apache-2.0

// Package peer lets each replica of policyd answer for the whole fleet: it asks the other
// replicas which instances are connected to them. Nothing is exchanged until somebody asks;
// then the answer is kept up to date for a while, so that progress can be followed.
package peer

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/store"
)

const (
	// answerWithin is how long a question waits for the other replicas.
	answerWithin = time.Second
	// linger is how long answers are kept up to date after the last question.
	linger = 30 * time.Second
	// keepFor is how long the instances of a replica that left are remembered: they are on
	// their way to others.
	keepFor = 2 * time.Second
)

// Config of Peers. All fields but Cells are required.
type Config struct {
	// Self is this replica; it is left out of the list.
	Self store.Peer
	// Fleet gets what the others say.
	Fleet *fleet.Registry
	// Cells are the relays below this replica; nil: there are none.
	Cells  *Cells
	Logger *slog.Logger
}

// Peers is the other replicas. All methods are safe for concurrent use.
type Peers struct {
	cfg  Config
	log  *slog.Logger
	work sync.WaitGroup

	// mu guards the fields below.
	mu    sync.Mutex
	life  context.Context //nolint:containedctx // Run's: mirrors outlive the question that opens them
	peers map[string]*replica
	asked time.Time
}

// replica is another policyd; mirror is nil while nobody asks.
type replica struct {
	store.Peer
	mirror *mirror
}

// New returns Peers that know of no replica until Run runs.
func New(cfg Config) *Peers {
	return &Peers{cfg: cfg, log: cfg.Logger.With("component", "peer"), peers: make(map[string]*replica)}
}

// Run keeps the list of replicas as follow reports it, until ctx ends. It may run once.
func (p *Peers) Run(ctx context.Context, follow func(context.Context, func([]store.Peer))) {
	p.mu.Lock()
	p.life = ctx
	p.mu.Unlock()
	follow(ctx, p.update)
	p.update(nil) //nolint:contextcheck // mirrors live as long as Run
	p.work.Wait()
}

// update takes the list of all replicas.
func (p *Peers) update(all []store.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed := make(map[string]bool, len(all))
	for _, other := range all {
		listed[other.ID] = true
		if _, known := p.peers[other.ID]; known || other.ID == p.cfg.Self.ID {
			continue
		}
		r := &replica{Peer: other}
		p.peers[other.ID] = r
		if time.Since(p.asked) < linger {
			p.open(r)
		}
	}
	for id, r := range p.peers {
		if !listed[id] {
			delete(p.peers, id)
			r.leave()
		}
	}
}

// Ask brings what the registry knows of other replicas, and of relays, up to date and keeps
// it so for a while. It waits until each has answered, a second at most, and says which have
// not.
func (p *Peers) Ask(ctx context.Context) []fleet.Peer {
	p.mu.Lock()
	p.asked = time.Now()
	all := make([]replica, 0, len(p.peers))
	for _, r := range p.peers {
		if r.mirror == nil {
			p.open(r) //nolint:contextcheck // mirrors live as long as Run
		}
		all = append(all, *r)
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var relays []fleet.Peer
	var asking sync.WaitGroup
	asking.Go(func() { relays = p.cfg.Cells.Ask(ctx) })
	answers := make([]fleet.Peer, len(all))
	for i, r := range all {
		// More instances than are kept are not counted either.
		silent := !r.mirror.current(ctx) || r.mirror.source.Full()
		answers[i] = fleet.Peer{ID: r.ID, Address: r.Address, Version: r.Version, StartedAt: r.StartedAt, Silent: silent}
	}
	asking.Wait()
	for _, r := range all {
		relays = append(relays, r.mirror.below()...)
	}
	return append(ordered(answers), distinct(relays)...)
}

func ordered(peers []fleet.Peer) []fleet.Peer {
	slices.SortFunc(peers, func(a, b fleet.Peer) int { return strings.Compare(a.Address+a.ID, b.Address+b.ID) })
	return peers
}

// distinct names each relay once: one that moved is missed where it was.
func distinct(relays []fleet.Peer) []fleet.Peer {
	at := make(map[string]int, len(relays))
	var once []fleet.Peer
	for _, r := range relays {
		i, known := at[r.ID]
		switch {
		case !known:
			at[r.ID] = len(once)
			once = append(once, r)
		case once[i].Silent:
			once[i] = r
		}
	}
	return ordered(once)
}

// open starts a mirror. Guarded by mu.
func (p *Peers) open(r *replica) {
	life, stop := context.WithCancel(p.life)
	m := &mirror{
		peer: r.Peer, self: p.cfg.Self.ID, source: p.cfg.Fleet.AddSource(), log: p.log,
		stop: stop, gone: life.Done(), changed: make(chan struct{}),
	}
	r.mirror = m
	p.work.Go(func() {
		defer m.source.Close()
		m.run(life)
		m.source.Lost()
		sleep(p.life, keepFor) //nolint:contextcheck // mirrors live as long as Run
	})
	p.work.Go(func() { p.closeWhenIdle(life, r) })
}

// closeWhenIdle ends a replica's mirror some time after the last question.
func (p *Peers) closeWhenIdle(life context.Context, r *replica) {
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-idle.C:
		}
		p.mu.Lock()
		left := linger - time.Since(p.asked)
		if left <= 0 {
			r.leave()
			r.mirror = nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		idle.Reset(left)
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (r *replica) leave() {
	if r.mirror != nil {
		r.mirror.stop()
	}
}

// dial makes a client of another replica. Replicas have no other address than loopback
// while there is neither TLS nor authentication.
func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableRetry())
}
