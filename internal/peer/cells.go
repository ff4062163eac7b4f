// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const (
	// maxCells bounds the relays that are connected, maxRelays those that each names below it.
	maxCells  = 1000
	maxRelays = 1000
	// introduceWithin is how long a relay may take to say who it is.
	introduceWithin = 10 * time.Second
	// leftFor is how long a relay that left in good order, whose instances are on their way
	// to others, is missed.
	leftFor = 15 * time.Second
)

// CellsConfig configures Cells. Fleet and Logger are required.
type CellsConfig struct {
	// Self is the id of this relay, "" of a policyd with a store.
	Self string
	// Fleet gets what relays say.
	Fleet  *fleet.Registry
	Logger *slog.Logger
}

// Cells is the relays below this policyd. It implements RelayService. All methods are safe
// for concurrent use; those of nil know no relay.
type Cells struct {
	policydv1.UnimplementedRelayServiceServer

	cfg      CellsConfig
	log      *slog.Logger
	draining chan struct{}
	once     sync.Once

	// mu guards the fields below.
	mu    sync.Mutex
	asked time.Time
	cells map[*cell]struct{}
	// missed are the relays that went away, by home, until they are back or it no longer
	// matters.
	missed map[string]missedRelay
}

type missedRelay struct {
	about *policydv1.Relay
	until time.Time
}

// NewCells returns Cells without a relay.
func NewCells(cfg CellsConfig) *Cells {
	return &Cells{
		cfg: cfg, log: cfg.Logger.With("component", "cells"), draining: make(chan struct{}),
		cells: make(map[*cell]struct{}), missed: make(map[string]missedRelay),
	}
}

// Register adds the service to a server.
func (c *Cells) Register(to grpc.ServiceRegistrar) { policydv1.RegisterRelayServiceServer(to, c) }

// Drain ends all streams and refuses new ones.
func (c *Cells) Drain() { c.once.Do(func() { close(c.draining) }) }

// Below returns the ids of all relays below, at any depth.
func (c *Cells) Below() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for k := range c.cells {
		k.mu.Lock()
		ids = append(append(ids, k.about.GetId()), k.about.GetBelow()...)
		k.mu.Unlock()
	}
	return ids
}

// Ask brings what the registry knows of instances behind relays up to date and keeps it so
// for a while. It waits until each relay has answered, a second at most, and says which have
// not.
func (c *Cells) Ask(ctx context.Context) []fleet.Peer {
	if c == nil {
		return nil
	}
	now := time.Now()
	c.mu.Lock()
	c.asked = now
	all := make([]*cell, 0, len(c.cells))
	for k := range c.cells {
		all = append(all, k)
	}
	var answers []fleet.Peer
	for home, m := range c.missed {
		if now.After(m.until) {
			delete(c.missed, home)
			continue
		}
		answers = append(answers, relayPeer(m.about, true))
	}
	c.mu.Unlock()
	for _, k := range all {
		k.ask()
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for _, k := range all {
		answers = append(answers, k.answer(ctx)...)
	}
	return distinct(answers)
}

func relayPeer(about *policydv1.Relay, silent bool) fleet.Peer {
	return fleet.Peer{
		ID: fleet.Clip(homeOf(about), fleet.MaxName), Address: fleet.Clip(about.GetAddress(), fleet.MaxReason),
		Version: fleet.Clip(about.GetVersion(), fleet.MaxName), Silent: silent, Relay: true,
	}
}

// WatchCell implements policydv1.RelayServiceServer.
func (c *Cells) WatchCell(stream grpc.BidiStreamingServer[policydv1.WatchCellRequest, policydv1.WatchCellResponse]) error {
	k := &cell{cells: c, wake: make(chan struct{}, 1), changed: make(chan struct{})}
	known := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- k.listen(stream, known) }() // ends with the stream

	late := time.NewTimer(introduceWithin)
	defer late.Stop()
	select {
	case <-known:
	case err := <-ended:
		return err
	case <-late.C:
		return status.Errorf(codes.InvalidArgument, "nobody was introduced within %s", introduceWithin)
	case <-c.draining:
		return status.Error(codes.Unavailable, "policyd is stopping")
	}
	if err := c.enter(k); err != nil {
		return err
	}
	err := k.serve(stream, ended)
	c.leave(k, err)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (c *Cells) enter(k *cell) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.cells) >= maxCells {
		return status.Errorf(codes.ResourceExhausted, "more than %d relays", maxCells)
	}
	c.cells[k] = struct{}{}
	delete(c.missed, homeOf(k.who()))
	if time.Since(c.asked) < linger {
		k.ask()
	}
	return nil
}

// leave notes that a relay is not connected any more. What was connected to it is not known
// until it is back, here, or nobody counts its instances any more.
func (c *Cells) leave(k *cell, err error) {
	k.stop()
	about, away := k.who(), leftFor
	if !errors.Is(err, io.EOF) {
		away = fleet.GoneAfter
		c.log.Warn("relay lost", "relay", about.GetAddress(), "id", about.GetId(), "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cells, k)
	for other := range c.cells {
		if homeOf(other.who()) == homeOf(about) {
			return // it is back already
		}
	}
	if len(c.missed) < maxCells {
		c.missed[homeOf(about)] = missedRelay{about: about, until: time.Now().Add(away)}
	}
}

// idle reports whether nobody has asked for a while.
func (c *Cells) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.asked) >= linger
}

// cell is one relay that is connected.
type cell struct {
	cells *Cells
	wake  chan struct{} // one slot: the question changed

	// mu guards the fields below.
	mu       sync.Mutex
	about    *policydv1.Relay
	question uint32
	source   *fleet.Source // nil: nobody asks
	ids      []string      // by number
	first    []fleet.Instance
	whole    bool          // everything known was received
	changed  chan struct{} // closed and replaced when whole changes
	below    []fleet.Peer
	over     bool
}

func (k *cell) who() *policydv1.Relay {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.about
}

// homeOf is what stays the same when a relay starts again.
func homeOf(about *policydv1.Relay) string { return cmp.Or(about.GetHome(), about.GetId()) }

// ask opens a question unless there is one.
func (k *cell) ask() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.source != nil || k.over {
		return
	}
	k.question++
	k.source = k.cells.cfg.Fleet.AddCell()
	k.ids, k.first = nil, nil
	k.ring()
}

// unask closes the question.
func (k *cell) unask() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.source == nil {
		return
	}
	k.source.Close()
	k.source, k.ids, k.first = nil, nil, nil
	k.setWhole(false)
	k.ring()
}

// stop ends the cell. Its instances stay a moment: they are on their way to others.
func (k *cell) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.setWhole(false)
	if source := k.source; source != nil {
		k.source = nil
		source.Lost()
		time.AfterFunc(fleet.GoneAfter, source.Close)
	}
}

// ring is guarded by mu.
func (k *cell) ring() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// setWhole is guarded by mu.
func (k *cell) setWhole(whole bool) {
	if k.whole != whole || k.over {
		k.whole = whole
		close(k.changed)
		k.changed = make(chan struct{})
	}
}

// answer waits until the relay has answered and says what it knows of relays.
func (k *cell) answer(ctx context.Context) []fleet.Peer {
	for {
		k.mu.Lock()
		whole, over, changed := k.whole, k.over, k.changed
		silent := over || k.source == nil || k.source.Full()
		answers := append([]fleet.Peer{relayPeer(k.about, silent || !whole)}, k.below...)
		k.mu.Unlock()
		if whole || over {
			return answers
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answers
		}
	}
}

// serve asks the relay while somebody asks, until the stream ends.
func (k *cell) serve(stream grpc.BidiStreamingServer[policydv1.WatchCellRequest, policydv1.WatchCellResponse], ended <-chan error) error {
	idle := time.NewTicker(linger / 4)
	defer idle.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-k.cells.draining:
			return status.Error(codes.Unavailable, "policyd is stopping")
		case <-idle.C:
			if k.cells.idle() {
				k.unask()
			}
		case <-k.wake:
			k.mu.Lock()
			m := &policydv1.WatchCellResponse{}
			if k.source != nil {
				m.Question = k.question
			}
			k.mu.Unlock()
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// listen takes what the relay says, until the stream ends. known is closed once it has said
// who it is.
func (k *cell) listen(stream grpc.BidiStreamingServer[policydv1.WatchCellRequest, policydv1.WatchCellResponse], known chan<- struct{}) error {
	for first := true; ; first = false {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := k.introduced(m.GetRelay(), first); err != nil {
			return err
		}
		if first {
			close(known)
		}
		if err := k.take(m, time.Now()); err != nil {
			return err
		}
	}
}

// introduced takes what the relay says of itself.
func (k *cell) introduced(about *policydv1.Relay, first bool) error {
	switch {
	case about == nil && !first:
		return nil
	case !fleet.ValidName(about.GetId()), len(about.GetHome()) > fleet.MaxName, len(about.GetAddress()) > fleet.MaxReason,
		len(about.GetVersion()) > fleet.MaxName:
		return status.Error(codes.InvalidArgument, "the relay does not say who it is")
	case len(about.GetBelow()) > maxRelays:
		return status.Errorf(codes.InvalidArgument, "%d relays below: at most %d", len(about.GetBelow()), maxRelays)
	case slices.ContainsFunc(about.GetBelow(), func(id string) bool { return !fleet.ValidName(id) }):
		return status.Error(codes.InvalidArgument, "a relay below has no name")
	}
	if self := k.cells.cfg.Self; self != "" && (about.GetId() == self || slices.Contains(about.GetBelow(), self)) {
		return status.Errorf(codes.FailedPrecondition, "loop: relay %s would be its own upstream", self)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !first && (about.GetId() != k.about.GetId() || about.GetHome() != k.about.GetHome()) {
		return status.Error(codes.InvalidArgument, "the relay says that it is another one")
	}
	k.about = about
	return nil
}

var (
	errNumber = status.Error(codes.InvalidArgument, "a number that no instance was given")
	errName   = status.Error(codes.InvalidArgument, "an instance without a name that can be shown")
	errFirst  = status.Error(codes.InvalidArgument, "an answer without an end")
)

// take takes one part of an answer.
func (k *cell) take(m *policydv1.WatchCellRequest, now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.source == nil || m.GetQuestion() != k.question {
		return nil // nobody asks any more
	}
	if len(m.GetAnswered())+len(m.GetSilent()) > maxRelays {
		return status.Errorf(codes.InvalidArgument, "more than %d relays", maxRelays)
	}
	k.below = relayPeers(m.GetAnswered(), m.GetSilent())
	ahead := now.Sub(m.GetServerTime().AsTime())
	instances := make([]fleet.Instance, 0, len(m.GetInstances()))
	for _, c := range m.GetInstances() {
		in := readInstance(c.GetInstance(), ahead)
		if !fleet.ValidName(in.ID) {
			return errName
		}
		switch n := int(c.GetNumber()); {
		case n == len(k.ids) && n < 2*fleet.MaxInstances:
			k.ids = append(k.ids, in.ID)
		case n >= len(k.ids) || k.ids[n] != in.ID:
			return errNumber
		}
		instances = append(instances, in)
	}
	switch {
	case k.whole:
		k.source.Update(instances, false)
	case m.GetComplete():
		k.source.Update(append(k.first, instances...), true)
		k.first = nil
		k.setWhole(true)
	case len(k.first) > maxFirst:
		return errFirst
	default:
		k.first = append(k.first, instances...)
	}
	for _, p := range m.GetProgress() {
		ids, err := k.numbered(p.GetRuns())
		if err != nil {
			return err
		}
		at := fleet.Standing{State: fleet.Stale, Revision: p.GetRevision(), Wanted: p.GetWantedRevision()}
		if state, ok := wire.State(p.GetState()); ok {
			at.State = state
		}
		k.source.Stand(ids, at, now)
	}
	return nil
}

// numbered returns the ids of a set of numbers. Guarded by mu.
func (k *cell) numbered(runs []uint32) ([]string, error) {
	var ids []string
	at := 0
	for i := 0; i < len(runs); i += 2 {
		at += int(runs[i])
		n := 0
		if i+1 < len(runs) {
			n = int(runs[i+1])
		}
		if at+n > len(k.ids) {
			return nil, errNumber
		}
		ids = append(ids, k.ids[at:at+n]...)
		at += n
	}
	return ids, nil
}

func relayPeers(answered, silent []*policydv1.Relay) []fleet.Peer {
	peers := make([]fleet.Peer, 0, len(answered)+len(silent))
	for _, about := range answered {
		peers = append(peers, relayPeer(about, false))
	}
	for _, about := range silent {
		peers = append(peers, relayPeer(about, true))
	}
	return peers
}

// relayProtos is the opposite of relayPeers.
func relayProtos(peers []fleet.Peer) (answered, silent []*policydv1.Relay) {
	for _, p := range peers {
		about := &policydv1.Relay{Id: p.ID, Address: p.Address, Version: p.Version}
		if p.Silent {
			silent = append(silent, about)
		} else {
			answered = append(answered, about)
		}
	}
	return answered, silent
}
