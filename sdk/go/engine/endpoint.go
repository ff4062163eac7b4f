// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Mode says whether decisions act.
type Mode uint8

// Modes of an endpoint.
const (
	ModeEnforce Mode = iota
	ModeObserve      // decide and count, but change nothing
	ModeOff          // count calls and attempts, decide nothing
)

func (m Mode) String() string { return [...]string{"enforce", "observe", "off"}[m] }

// Endpoint is the state of one target of calls: breaker, budget, success gate and counters.
// It outlives the policies that it obeys. Safe for concurrent use; no method blocks for
// longer than a few short computations.
//
// The usual call, which succeeds at once while nothing is wrong, takes no lock: it adds to
// one of a few cells that different processors seldom share. Every other event takes the
// lock and first moves what the cells hold into the windows. Cells are emptied whenever a
// slice of any window ends, so what they hold belongs to the newest slices.
type Endpoint struct {
	// Read by every call, written seldom.
	fastUntil  atomic.Int64 // before it, calls are admitted and counted in the cells
	shutter    atomic.Pointer[shutter]
	slowAfter  atomic.Int64 // attempts that take longer need the lock
	generation atomic.Uint32
	salt       atomic.Uint32 // deals goroutines to the cells
	policy     atomic.Pointer[Policy]
	cells      atomic.Pointer[[]*cell] // a power of two
	random     func() uint64
	mode       Mode
	reported   BreakerState

	// On cache lines that the above is not on.
	mu       sync.Mutex
	refused  atomic.Uint64 // by the shutter
	overlay  Overlay
	origin   time.Time
	latest   Instant
	counters counters
	budget   budget
	gate     gate
	breaker  breaker
	more     *extras // nil until the policy needs it
}

// cell counts calls that began (low half) and that succeeded at once (high half) since it
// was emptied. Padded to a cache line of its own.
type cell struct {
	word atomic.Uint64
	// missed counts calls that met another processor here.
	missed atomic.Uint64
	_      [48]byte
}

// enter counts a call and returns its cell, which is the same for all calls of a goroutine
// until the cells are dealt anew.
func (e *Endpoint) enter() *cell {
	cells := *e.cells.Load()
	c := cells[0]
	if len(cells) > 1 {
		var here byte // its address tells goroutines apart
		at := uint64(uintptr(unsafe.Pointer(&here))>>11) ^ uint64(e.salt.Load())
		c = cells[at*0x9e3779b97f4a7c15>>32&uint64(len(cells)-1)]
	}
	if word := c.word.Load(); !c.word.CompareAndSwap(word, word+1) {
		c.word.Add(1)
		if c.missed.Add(1)%manyMisses == 0 && e.mu.TryLock() {
			e.spread()
			e.mu.Unlock()
		}
	}
	return c
}

// spread doubles the cells, up to four times the number of processors. Cells in use stay.
func (e *Endpoint) spread() {
	cells := *e.cells.Load()
	if len(cells) >= min(4*runtime.GOMAXPROCS(0), maxCells) {
		return
	}
	more := append(make([]*cell, 0, 2*len(cells)), cells...)
	for range cells {
		more = append(more, new(cell))
	}
	e.cells.Store(&more)
}

const (
	maxCells   = 64
	manyMisses = 32
)

const succeeded = 1 << 32

// ajar is the shutter that refuses nothing.
//
//nolint:gochecknoglobals // never written
var ajar = shutter{}

// shutter refuses first attempts until a moment, without the lock.
type shutter struct {
	refusal
	latch
}

// refusal is what a shutter does. Immutable.
type refusal struct {
	until Instant
	rule  Rule
	at    Instant // when trying again makes sense
	by    *Switch
}

// Config is what an endpoint needs beside its policy.
type Config struct {
	// Origin is the time of Instant 0: it relates the time line of calls to the ends of
	// kill switches.
	Origin time.Time
	// Random returns uniform random numbers. It must be safe for concurrent use when
	// endpoints share it; one endpoint calls it under its lock.
	Random func() uint64
	Mode   Mode
}

// NewEndpoint returns the state of a target that had no calls yet. The policy must not be
// changed afterwards; endpoints may share it.
func NewEndpoint(c Config, p *Policy, o Overlay, now Instant) *Endpoint {
	e := &Endpoint{overlay: o, mode: c.Mode, random: c.Random, origin: c.Origin, latest: now}
	e.policy.Store(p)
	e.cells.Store(&[]*cell{new(cell)})
	e.shutter.Store(&ajar)
	e.budget = newBudget(&p.Budget, e.effects(now).Factor, now)
	e.gate = newGate(&p.Budget.SuccessGate, now)
	e.breaker = newBreaker(&p.Breaker, now)
	e.fitExtras(p)
	e.fitHosts(p, p, now)
	eff := e.effects(now)
	e.reported = e.reports(&eff)
	e.rearm(now, &eff)
	return e
}

// Policy returns the policy in force. It must not be changed.
func (e *Endpoint) Policy() *Policy { return e.policy.Load() }

// Reload puts another policy, other kill switches or another mode into force. What was
// learnt is kept as far as it still has a meaning: an open breaker stays open, no budget is
// refilled. Calls that wait look at the switches again in Resume. The result is nil unless
// the reported state of the breaker changed.
func (e *Endpoint) Reload(p *Policy, o Overlay, m Mode, now Instant) *BreakerChange {
	e.mu.Lock()
	defer e.mu.Unlock()
	now = e.tick(now)
	old := e.policy.Load()
	e.overlay, e.mode = o, m
	e.policy.Store(p)
	eff := e.effects(now)
	e.budget.fit(&p.Budget, eff.Factor, now)
	e.gate.fit(&p.Budget.SuccessGate, now)
	e.breaker.fit(&old.Breaker, &p.Breaker, now)
	e.fitHosts(old, p, now)
	e.fitExtras(p)
	e.tick(now)
	return e.leave(now, &eff)
}

// effects returns what the switches do at now.
func (e *Endpoint) effects(now Instant) Effects {
	if e.overlay.Empty() {
		return NoEffects()
	}
	return e.overlay.At(e.time(now))
}

// tick moves the state to now and returns it, or the latest moment seen if that is later:
// callers that read the clock at the same time may get the lock in any order.
func (e *Endpoint) tick(now Instant) Instant {
	e.gather()
	now = max(now, e.latest)
	e.latest = now
	p := e.policy.Load()
	e.budget.advance(now)
	e.gate.advance(now)
	if p.Breaker.Enabled {
		e.breaker.advance(&p.Breaker, p.Timeouts.Attempt, now, e.random)
	}
	return now
}

// gather moves what the cells hold into the newest slices.
func (e *Endpoint) gather() {
	var began, ok, missed uint64
	for _, c := range *e.cells.Load() {
		if c.word.Load() != 0 {
			word := c.word.Swap(0)
			began += word % succeeded
			ok += word / succeeded
			if c.missed.Load() != 0 {
				missed += c.missed.Swap(0)
			}
		}
	}
	if began|ok == 0 {
		return
	}
	if missed > began/256 {
		e.salt.Add(1)
	}
	p := e.policy.Load()
	e.counters.calls += began
	e.counters.ok += ok
	e.budget.add(uint32(min(began, math.MaxUint32)), 0)
	e.budget.tokens.credit(&p.Budget.Tokens, ok)
	e.gate.succeeded(ok)
	if p.Breaker.Enabled {
		e.breaker.healthy(uint32(min(ok, math.MaxUint32)))
	}
}

// leave ends a change under the lock: it says what calls may do without the lock from now
// on, and returns the change of the breaker's reported state, if any.
func (e *Endpoint) leave(now Instant, eff *Effects) *BreakerChange {
	e.rearm(now, eff)
	change := e.transition(eff)
	if e.more != nil && e.more.changes != nil {
		if change != nil {
			e.turned(change)
		}
		change, e.more.changes = e.more.changes, nil
	}
	return change
}

// rearm says what calls may do without the lock, and until when.
func (e *Endpoint) rearm(now Instant, eff *Effects) {
	p, b := e.policy.Load(), &e.breaker
	change := Never
	if !e.overlay.Empty() {
		if next, ok := e.overlay.NextChange(e.time(now)); ok {
			change = e.instant(next)
		}
	}
	fast, shut := Instant(math.MinInt64), refusal{}
	switch {
	case e.mode == ModeOff:
	case eff.ForcedOpen && eff.First == 0:
		shut = refusal{until: change, at: e.instant(eff.FirstBy.Ends), by: eff.FirstBy}
	case b.state == BreakerOpen && !eff.ForcedClosed:
		shut = refusal{until: min(change, b.until), at: b.until, rule: b.rule}
	case b.state == BreakerClosed && !b.recovering && eff.First == Million:
		fast = min(change, e.budget.ends(), e.gate.ends(), b.ends())
	}
	if e.observes() {
		shut = refusal{}
	}
	if p.Extras.locks() {
		fast, shut = math.MinInt64, refusal{}
	}
	e.slowAfter.Store(e.patience(p))
	e.generation.Store(b.generation)
	if e.shutter.Load().refusal != shut {
		e.shutter.Store(&shutter{refusal: shut})
	}
	e.fastUntil.Store(int64(fast))
}

// time and instant relate the time line of calls to that of switches.
func (e *Endpoint) time(at Instant) time.Time    { return e.origin.Add(time.Duration(at)) }
func (e *Endpoint) instant(at time.Time) Instant { return Instant(at.Sub(e.origin)) }
