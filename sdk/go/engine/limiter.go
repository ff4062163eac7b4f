// SPDX-License-Identifier: Apache-2.0

package engine

import "math"

// ConcurrencyPolicy bounds the calls at once on one instance. A call takes its slot before
// its first attempt and keeps it to its end, waits between attempts included.
type ConcurrencyPolicy struct {
	Enabled bool
	Limit   int
	// Queue is how many callers may wait for a slot; 0: a call above the limit is refused.
	Queue int
}

func compileConcurrency(c compiler) ConcurrencyPolicy {
	if !c.flag(ConcurrencyEnabled) {
		return ConcurrencyPolicy{}
	}
	p := ConcurrencyPolicy{Enabled: true, Limit: c.count(ConcurrencyLimit)}
	if c.word(ConcurrencyWhenFull) == "wait" {
		p.Queue = c.count(ConcurrencyQueue)
	}
	return p
}

// limiter counts the calls that hold a slot and queues those that wait for one, first come,
// first served. Guarded by Endpoint.mu.
type limiter struct {
	running     int
	waiting     int
	left        uint64 // callers that left the queue
	first, last *ticket
}

// ticket is a place in the queue. Turn is closed when the slot is there.
type ticket struct {
	turn       chan struct{}
	next, prev *ticket
	granted    bool
}

// take takes a free slot. Nobody overtakes those who wait.
func (l *limiter) take(limit int) bool {
	if l.running >= limit || l.waiting > 0 {
		return false
	}
	l.running++
	return true
}

func (l *limiter) enqueue() *ticket {
	t := &ticket{turn: make(chan struct{}), prev: l.last}
	if l.last == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
	l.waiting++
	return t
}

func (l *limiter) remove(t *ticket) {
	if t.prev == nil {
		l.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.next, t.prev = nil, nil
	l.waiting--
}

// grant hands free slots to those who have waited longest.
func (l *limiter) grant(limit int) {
	for l.first != nil && l.running < limit {
		t := l.first
		l.remove(t)
		l.running++
		t.granted = true
		close(t.turn)
	}
}

// release gives a slot back.
func (l *limiter) release(limit int) {
	l.running--
	l.grant(limit)
}

// room is the number of calls that may run at once under p.
func (e *Endpoint) room(p *Policy) int {
	if p.Extras == nil || !p.Extras.Concurrency.Enabled || e.mode == ModeOff || e.observes() {
		return math.MaxInt
	}
	return p.Extras.Concurrency.Limit
}

// place asks for a slot. It reports whether the call may go on now; otherwise it is refused
// or waits. Under an observed policy every call goes on, and d says what it would have met.
func (c *Call) place(d *Decision) bool {
	e := c.e
	p := e.policy.Load()
	if p.Extras == nil || !p.Extras.Concurrency.Enabled || e.mode == ModeOff {
		return true
	}
	rule, l := &p.Extras.Concurrency, &e.extra().limiter
	switch observed := e.observes(); {
	case l.take(rule.Limit):
	case observed:
		l.running++
		d.Code, d.Observed = CodeConcurrency, true
		e.counters.suppressed[byConcurrency]++
	case l.waiting < rule.Queue:
		c.extra().ticket = l.enqueue()
		c.state = callQueued
		d.Queued = true
		return false
	default:
		d.Code = CodeConcurrency
		return false
	}
	c.slot = true
	return true
}

// leaveSlot gives the slot of a call that has ended to the next in the queue.
func (c *Call) leaveSlot() {
	if c.slot {
		c.slot = false
		e := c.e
		e.more.limiter.release(e.room(e.policy.Load()))
	}
}

// leaveQueue takes a call out of the queue. It reports whether it had got its slot.
func (c *Call) leaveQueue() bool {
	t := c.more.ticket
	c.more.ticket = nil
	if t.granted {
		c.slot = true
		return true
	}
	c.e.more.limiter.remove(t)
	return false
}

// Turn is closed when a call that was told Queued has its slot; then it asks Enter. The
// channel is nil, and never ready, for any other call.
func (c *Call) Turn() <-chan struct{} {
	if c.more == nil || c.more.ticket == nil {
		return nil
	}
	return c.more.ticket.turn
}

// Enter ends the wait of a call that was told Queued, and decides on its first attempt as
// Begin does. A call that has not got its turn yet gives up its place and is refused.
func (c *Call) Enter(now Instant) *Decision {
	d := &c.decision
	*d = Decision{}
	if c.state != callQueued {
		return d
	}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	if c.leaveQueue() {
		c.sent = now
		c.first(now, &eff)
	} else {
		d.Code = CodeConcurrency
		c.refuse()
	}
	d.Breaker = c.leave(now, &eff)
	return d
}

// quit ends a call whose caller leaves the queue.
func (c *Call) quit(now Instant) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	c.leaveQueue()
	if c.state = callEnded; !c.kept() {
		e.more.limiter.left++
	}
	c.leaveSlot()
	eff := e.effects(now)
	c.decision.Breaker = c.leave(now, &eff)
}

// ConcurrencyStatus is how many calls hold a slot and how many wait for one.
type ConcurrencyStatus struct {
	Running, Waiting int
	Limit, Queue     int // 0 without a limit
}

// leavers is how many callers have left the queue.
func (e *Endpoint) leavers() uint64 {
	if e.more == nil {
		return 0
	}
	return e.more.limiter.left
}

func (e *Endpoint) concurrencyStatus(p *Policy) (s ConcurrencyStatus) {
	if e.more != nil {
		s.Running, s.Waiting = e.more.limiter.running, e.more.limiter.waiting
	}
	if p.Extras != nil {
		s.Limit, s.Queue = p.Extras.Concurrency.Limit, p.Extras.Concurrency.Queue
	}
	return s
}
