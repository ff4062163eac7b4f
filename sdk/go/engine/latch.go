// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"
)

// latch keeps a shutter closed without a look at the clock, which costs more than the rest of
// a refusal. It goes with its shutter: whatever ends a refusal early puts another in place.
type latch struct {
	on    atomic.Bool
	since atomic.Int64
}

// latchEvery is how many refusals there are to each look at the clock under a latch, and to
// each try to put one on: what refuses seldom needs none.
const latchEvery = 64

// BeginLatched is Begin without the time, for a call that is certain to be refused because
// the endpoint is latched; as is a moment not long ago, when that was seen. Otherwise ok is
// false, nothing has happened, and the call is for Begin.
func (e *Endpoint) BeginLatched(c *Call) (d *Decision, as Instant, ok bool) {
	s := e.shutter.Load()
	if !s.on.Load() || e.refused.Load()%latchEvery == 0 {
		return nil, 0, false
	}
	return e.turnAway(c, s), Instant(s.since.Load()), true
}

// Latch latches an endpoint that refuses often, if it is certain to go on refusing for more
// than twice d; now is the time that the last refusal was given. The caller has to call
// release when d is over. If that comes late by more than d, up to 63 calls too many are
// refused.
func (e *Endpoint) Latch(now Instant, d time.Duration) (release func(), ok bool) {
	s := e.shutter.Load()
	if e.refused.Load()%latchEvery != 0 || s.on.Load() || s.until.Sub(now) <= 2*d {
		return nil, false
	}
	s.since.Store(int64(now))
	if !s.on.CompareAndSwap(false, true) {
		return nil, false
	}
	return func() { s.on.Store(false) }, true
}

// turnAway refuses a call that has not begun.
func (e *Endpoint) turnAway(c *Call, s *shutter) *Decision {
	e.refused.Add(1)
	c.state = callEnded
	c.decision = Decision{}
	c.decision.Code, c.decision.Rule, c.decision.RetryAt, c.decision.By = CodeBreaker, s.rule, s.at, s.by
	return &c.decision
}
