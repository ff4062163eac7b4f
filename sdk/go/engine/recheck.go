// SPDX-License-Identifier: Apache-2.0

package engine

// BodyLost ends a call that waits for a retry, because its body cannot be sent again after all:
// the permit goes back, and the decision says so.
func (c *Call) BodyLost(now Instant) *Decision {
	d := &c.decision
	*d = Decision{}
	if c.state != callWaits {
		return d
	}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	d.Code = CodeBody
	e.counters.suppressed[byBody]++
	c.giveBack(&c.permit)
	c.end(Failure)
	d.Breaker = c.leave(now, &eff)
	return d
}

// Recheck looks at a call that waits for a retry when the kill switches may have changed.
// If they have turned against the retry, the call is over: the permit has gone back and
// the decision says why. Otherwise the decision is to retry still, after the rest of the
// wait.
func (c *Call) Recheck(now Instant) *Decision {
	d := &c.decision
	*d = Decision{}
	if c.state != callWaits {
		return d
	}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	switch {
	case e.mode == ModeOff:
	case eff.ForcedOpen:
		d.Code = CodeBreaker
		c.blame(d, true, &eff)
		e.counters.suppressed[byBreaker]++
	case eff.Retry == 0:
		d.Code, d.By = CodeDisabled, eff.RetryBy
		e.counters.suppressed[bySwitch]++
	default:
		d.Retry = true
	}
	if !d.Retry {
		c.giveBack(&c.permit)
		c.end(Failure)
	}
	d.Breaker = c.leave(now, &eff)
	return d
}
