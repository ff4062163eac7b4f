// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
	// maxMessage fits 500 instances whose reports list 200 endpoints each.
	maxMessage = 64 << 20
	// maxFirst bounds the instances of a first answer while it is incomplete. What exceeds it
	// exceeds what a source keeps.
	maxFirst = 2 * fleet.MaxInstances
)

// mirror keeps a fleet.Source as another replica has its instances.
type mirror struct {
	peer   store.Peer
	self   string
	source *fleet.Source
	log    *slog.Logger
	stop   context.CancelFunc
	gone   <-chan struct{} // closed when the mirror ends

	// mu guards the fields below.
	mu      sync.Mutex
	whole   bool          // everything was received on the stream that is open now
	changed chan struct{} // closed and replaced when whole changes
	relays  []fleet.Peer
}

// current waits until the source is up to date and reports false if ctx ends first.
func (m *mirror) current(ctx context.Context) bool {
	for {
		m.mu.Lock()
		whole, changed := m.whole, m.changed
		m.mu.Unlock()
		if whole {
			return true
		}
		select {
		case <-changed:
		case <-m.gone:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (m *mirror) setRelays(relays []fleet.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relays = relays[:min(len(relays), maxRelays)]
}

// below returns the relays of the replica.
func (m *mirror) below() []fleet.Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.relays
}

func (m *mirror) setWhole(whole bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole != whole {
		m.whole = whole
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

func (m *mirror) run(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		err := m.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setWhole(false)
		m.source.Lost()
		m.log.DebugContext(ctx, "replica does not answer", "peer", m.peer.Address, "error", err)
		if time.Since(began) > maxPause {
			pause = firstPause
		}
		sleep(ctx, pause)
	}
}

// follow receives until the stream breaks.
func (m *mirror) follow(ctx context.Context) error {
	conn, err := dial(m.peer.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := policydv1.NewPeerServiceClient(conn).WatchFleet(ctx, &policydv1.WatchFleetRequest{PeerId: m.self})
	if err != nil {
		return err
	}
	var first []fleet.Instance
	for complete := false; ; {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		instances := readInstances(message, time.Now())
		m.setRelays(relayPeers(message.GetRelays(), message.GetSilentRelays()))
		switch {
		case complete:
			m.source.Update(instances, false)
		case message.GetComplete():
			complete = true
			m.source.Update(append(first, instances...), true)
			first = nil
			m.setWhole(true)
			m.source.Update(nil, false) // who follows learns that the replica has answered
		case len(first) < maxFirst:
			first = append(first, instances...)
		}
	}
}

// readInstances moves the times of a message from the replica's clock to ours.
func readInstances(m *policydv1.WatchFleetResponse, now time.Time) []fleet.Instance {
	ahead := now.Sub(m.GetServerTime().AsTime())
	instances := make([]fleet.Instance, 0, len(m.GetInstances()))
	for _, p := range m.GetInstances() {
		if in := readInstance(p, ahead); fleet.ValidName(in.ID) {
			instances = append(instances, in)
		}
	}
	return instances
}

// readInstance reads an instance whose times are of a clock that ours is ahead of.
func readInstance(p *policydv1.PeerInstance, ahead time.Duration) fleet.Instance {
	in := wire.Instance(p.GetInstance())
	in.Drill = p.GetDrill()
	in.BackBy, in.ReportedAt = sdkwire.Time(p.GetBackBy()), sdkwire.Time(p.GetReportedAt())
	if p.GetReport() != nil {
		in.Report = wire.Report(p.GetReport())
	}
	for _, t := range []*time.Time{&in.Since, &in.ConnectedAt, &in.LastSeen, &in.ReportedAt, &in.BackBy} {
		if !t.IsZero() {
			*t = t.Add(ahead)
		}
	}
	in.Clip()
	return in
}
