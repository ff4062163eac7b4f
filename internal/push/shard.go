// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"slices"
	"sync"
	"time"
)

// shard sends to its share of the streams, from one goroutine: ten thousand wake-ups cost
// more than ten thousand sends.
type shard struct {
	// set once by newShard, read-only
	hub   *Hub
	index int
	wake  chan struct{} // one slot

	// mu guards the fields below.
	mu      sync.Mutex
	moves   []move
	fresh   []*view // not queued yet, ordinary
	pressed []*view // the same, urgent

	// owned by run
	queue []*view
	beats [beatSlots][]*stream
	slot  int
}

// move puts a stream into a view of a shard, takes it to another, or out (nil).
type move struct {
	s  *stream
	to *view
}

// place is where a stream stands in its shard.
type place struct {
	view   *view // nil: nowhere
	member int   // index in the view's part
	slot   int
	beat   int // index in the slot
}

const (
	// beatSlots spread the heartbeats over their period.
	beatSlots = 30
	// batch is how many streams are visited before the shard looks for something urgent.
	batch = 128
)

func newShard(h *Hub, index int) *shard {
	return &shard{hub: h, index: index, wake: make(chan struct{}, 1)}
}

func (s *shard) move(m move) {
	s.mu.Lock()
	s.moves = append(s.moves, m)
	s.mu.Unlock()
	s.ring()
}

// dirty asks the shard to visit the streams of views, before all others if urgent.
func (s *shard) dirty(views map[*view]struct{}, urgent bool) {
	s.mu.Lock()
	for v := range views {
		if urgent {
			s.pressed = append(s.pressed, v)
		} else {
			s.fresh = append(s.fresh, v)
		}
	}
	s.mu.Unlock()
	s.ring()
}

func (s *shard) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *shard) run(ctx context.Context) {
	beat := time.NewTicker(max(s.hub.cfg.Heartbeat/beatSlots, time.Millisecond))
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.beat()
		case <-s.wake:
		}
		for s.collect(); len(s.queue) > 0 && ctx.Err() == nil; s.collect() {
			s.visit()
			select {
			case <-beat.C:
				s.beat()
			default:
			}
		}
	}
}

// collect takes what others left.
func (s *shard) collect() {
	s.mu.Lock()
	moves, fresh, pressed := s.moves, s.fresh, s.pressed
	s.moves, s.fresh, s.pressed = nil, nil, nil
	s.mu.Unlock()
	for _, m := range moves {
		s.apply(m)
	}
	for _, v := range pressed {
		s.enqueue(v, true)
	}
	for _, v := range fresh {
		s.enqueue(v, false)
	}
}

// enqueue starts a new round over the streams of a view. In a round that is under way the
// streams at its start are behind again: they come first in the next one.
func (s *shard) enqueue(v *view, front bool) {
	p := &v.parts[s.index]
	if len(p.members) == 0 {
		return
	}
	if p.queued && front {
		s.queue = slices.DeleteFunc(s.queue, func(o *view) bool { return o == v })
		p.queued = false
	}
	// A round ends where it started, with everybody at the newest state.
	p.left = len(p.members)
	switch {
	case p.queued:
	case front:
		s.queue = slices.Insert(s.queue, 0, v)
	default:
		s.queue = append(s.queue, v)
	}
	p.queued = true
}

// visit brings the next streams of the first view in the queue forward.
func (s *shard) visit() {
	v := s.queue[0]
	p := &v.parts[s.index]
	now := s.hub.now()
	p.left = min(p.left, len(p.members))
	for range min(batch, p.left) {
		if p.cursor >= len(p.members) {
			p.cursor = 0
		}
		p.members[p.cursor].pump(now)
		p.cursor++
		p.left--
	}
	if p.left == 0 {
		p.queued = false
		s.queue = slices.Delete(s.queue, 0, 1)
	}
}

func (s *shard) beat() {
	s.collect()
	now := s.hub.now()
	if hub := s.hub.snap.Load(); hub.epoch != "" {
		// Made before any stream's state is looked at; see Hub.snap.
		hb := heartbeatFrame(hub, s.hub.reading())
		for _, st := range s.beats[s.slot] {
			st.beat(hub, hb, now)
		}
	}
	s.slot = (s.slot + 1) % beatSlots
}

func (s *shard) apply(m move) {
	at := &m.s.place
	if at.view != nil {
		s.leave(m.s)
	} else if m.to != nil {
		at.slot = s.emptiest()
		at.beat = len(s.beats[at.slot])
		s.beats[at.slot] = append(s.beats[at.slot], m.s)
	}
	if at.view = m.to; m.to == nil {
		s.silence(m.s)
		return
	}
	p := &m.to.parts[s.index]
	at.member = len(p.members)
	p.members = append(p.members, m.s)
	m.s.pump(s.hub.now())
}

// leave takes a stream out of its view's part; the last one fills its place.
func (s *shard) leave(st *stream) {
	p := &st.place.view.parts[s.index]
	last := len(p.members) - 1
	p.members[st.place.member] = p.members[last]
	p.members[st.place.member].place.member = st.place.member
	p.members[last] = nil
	p.members = p.members[:last]
	if p.queued {
		// The one that moved may have been skipped.
		p.left = len(p.members)
	}
}

func (s *shard) silence(st *stream) {
	slot := s.beats[st.place.slot]
	last := len(slot) - 1
	slot[st.place.beat] = slot[last]
	slot[st.place.beat].place.beat = st.place.beat
	slot[last] = nil
	s.beats[st.place.slot] = slot[:last]
}

func (s *shard) emptiest() int {
	least := 0
	for i := range s.beats {
		if len(s.beats[i]) < len(s.beats[least]) {
			least = i
		}
	}
	return least
}
