// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"time"
)

// gate remembers how the last calls ended: a ring of bits, and for each tenth of the
// greatest age the call that came first in it. Guarded by Endpoint.mu.
type gate struct {
	size    uint64   // calls remembered; 0: off
	ring    []uint64 // bit set: the call succeeded
	next    uint64   // number of the next call
	width   time.Duration
	newest  int64                // number of the newest slice
	started [windowSlices]uint64 // number of the first call of each slice
}

func newGate(p *GatePolicy, now Instant) gate {
	if !p.Enabled {
		return gate{}
	}
	size := uint64(max(p.Window, 1))
	g := gate{size: size, ring: make([]uint64, (size+63)/64), width: sliceOf(p.MaxAge)}
	g.newest = now.slot(g.width)
	return g
}

// advance starts the slices up to now.
func (g *gate) advance(now Instant) {
	if g.size == 0 {
		return
	}
	at := now.slot(g.width)
	if at-g.newest > windowSlices {
		g.newest = at - windowSlices
	}
	for g.newest < at {
		g.newest++
		g.started[position(g.newest)] = g.next
	}
}

// oldest is the number of the first call that still counts.
func (g *gate) oldest() uint64 {
	first := g.started[position(g.newest-windowSlices+1)]
	if g.next > g.size {
		first = max(first, g.next-g.size)
	}
	return first
}

// failed records a call that did not succeed.
func (g *gate) failed() {
	if g.size > 0 {
		i := g.next % g.size
		g.ring[i/64] &^= 1 << (i % 64)
		g.next++
	}
}

// succeeded records n calls that succeeded.
func (g *gate) succeeded(n uint64) {
	if g.size == 0 {
		return
	}
	for range min(n, g.size) {
		i := g.next % g.size
		g.ring[i/64] |= 1 << (i % 64)
		g.next++
	}
	if n > g.size { // the ring holds nothing but successes now
		g.next += n - g.size
	}
}

// counts returns how many calls are known and how many of them succeeded.
func (g *gate) counts() (known, ok uint64) {
	if g.size == 0 {
		return 0, 0
	}
	first := g.oldest()
	if known = g.next - first; known == 0 {
		return 0, 0
	}
	from, to := first%g.size, (g.next-1)%g.size+1
	if from < to {
		return known, g.ones(from, to)
	}
	return known, g.ones(from, g.size) + g.ones(0, to)
}

// ones counts the bits of the ring from one position to another.
func (g *gate) ones(from, to uint64) (n uint64) {
	for i := from; i < to; {
		word := g.ring[i/64] >> (i % 64)
		if left := to - i; left < 64-i%64 {
			word &= 1<<left - 1
		}
		n += uint64(bits.OnesCount64(word))
		i += 64 - i%64
	}
	return n
}

// open reports whether retries may pass. It stays open while too few calls are known.
func (g *gate) open(p *GatePolicy) bool {
	if !p.Enabled || g.size == 0 {
		return true
	}
	known, ok := g.counts()
	return known < uint64(max(p.MinCalls, 1)) || ok*Million >= known*uint64(p.MinSuccessRate)
}

// fit makes the gate that of p and keeps the calls that still fit: the newest ones, each at
// the start of the slice it was in.
func (g *gate) fit(p *GatePolicy, now Instant) {
	if p.Enabled && g.size == uint64(max(p.Window, 1)) && g.width == sliceOf(p.MaxAge) {
		return
	}
	old := *g
	*g = newGate(p, now)
	if old.size == 0 || g.size == 0 {
		return
	}
	first := old.oldest()
	if old.next-first > g.size {
		first = old.next - g.size
	}
	for call := first; call < old.next; call++ {
		i := call % old.size
		if old.ring[i/64]&(1<<(i%64)) != 0 {
			g.succeeded(1)
		} else {
			g.failed()
		}
	}
	// Slices of the new width begin with the first call of an old slice that begins in them.
	for k := range int64(windowSlices) {
		slice := g.newest - windowSlices + 1 + k
		starts, mark := slice*int64(g.width), old.next
		for j := old.newest; j > old.newest-windowSlices && j*int64(old.width) >= starts; j-- {
			mark = old.started[position(j)]
		}
		g.started[position(slice)] = max(mark, first) - first
	}
}

// ends is the moment at which the newest slice ends.
func (g *gate) ends() Instant {
	if g.size == 0 {
		return Never
	}
	return Instant((g.newest + 1) * int64(g.width))
}
