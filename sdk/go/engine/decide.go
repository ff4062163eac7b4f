// SPDX-License-Identifier: Apache-2.0

package engine

// begin decides on the first attempt under the lock.
func (c *Call) begin(now Instant, host string) {
	e, d := c.e, &c.decision
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.at(host, now)
	eff := e.effects(now)
	*d = Decision{}
	switch {
	case c.place(d):
		c.first(now, &eff)
	case !d.Queued:
		c.refuse()
	}
	d.Breaker = c.leave(now, &eff)
}

// first decides on the first attempt of a call that may run.
func (c *Call) first(now Instant, eff *Effects) {
	e, d := c.e, &c.decision
	if c.kept() {
		c.repeat(now, eff)
		return
	}
	observed := *d // by the limit of calls at once
	*d = c.admit(now, eff, true)
	if d.Proceed {
		e.counters.calls++
		e.called(now)
		c.state = callSent
	} else {
		c.refuse()
	}
	if observed.Observed && d.Proceed {
		d.Code, d.Observed = observed.Code, true
	}
}

// refuse ends a call before its first attempt.
func (c *Call) refuse() {
	if !c.kept() {
		c.e.counters.rejected++
	}
	c.state = callEnded
	c.leaveSlot()
}

// admit asks the kill switches and the breaker about an attempt. What an observed policy
// would refuse is sent, but its result does not count.
func (c *Call) admit(now Instant, eff *Effects, first bool) Decision {
	e := c.e
	p := e.policy.Load()
	b := c.breaker()
	c.attempt = report{generation: b.generation}
	c.counts = true
	if e.mode == ModeOff {
		c.counts = false
		return Decision{Proceed: true}
	}
	forced := false
	switch {
	case eff.ForcedOpen && !first, first && eff.First < Million && !chance(e.random(), eff.First):
		forced = true
	case eff.ForcedClosed:
		c.counts = b.state == BreakerClosed
		return Decision{Proceed: true}
	case p.Breaker.Enabled:
		probe, ok := b.admit(&p.Breaker, now, e.random)
		if ok {
			c.attempt.probe = probe
			return Decision{Proceed: true}
		}
	default:
		return Decision{Proceed: true}
	}
	d := Decision{Code: CodeBreaker}
	c.blame(&d, forced, eff)
	if e.observes() {
		c.counts = false
		d.Proceed, d.Observed = true, true
	}
	if !first || d.Observed {
		e.counters.suppressed[byBreaker]++
	}
	return d
}

// blame says who is behind CodeBreaker and when to try again.
func (c *Call) blame(d *Decision, forced bool, eff *Effects) {
	if forced {
		d.By = eff.FirstBy
		if eff.ForcedOpen {
			d.RetryAt = c.e.instant(d.By.Ends)
		}
		return
	}
	b := c.breaker()
	d.Rule = b.rule
	if b.state == BreakerOpen {
		d.RetryAt = b.until
	}
}

// observes reports whether decisions are made but not carried out.
func (e *Endpoint) observes() bool { return e.mode == ModeObserve || e.policy.Load().Observe }

// reports is the state of the breaker as people see it.
func (e *Endpoint) reports(eff *Effects) BreakerState {
	switch {
	case eff.ForcedOpen:
		return BreakerForcedOpen
	case eff.ForcedClosed:
		return BreakerForcedClosed
	}
	return e.breaker.state
}

// transition notes a change of the reported state.
func (e *Endpoint) transition(eff *Effects) *BreakerChange {
	s := e.reports(eff)
	if s == e.reported {
		return nil
	}
	change := &BreakerChange{From: e.reported, To: s}
	switch s {
	case BreakerForcedOpen:
		change.By = eff.FirstBy
	case BreakerForcedClosed:
		change.By = eff.ClosedBy
	default:
		e.breaker.explain(change)
	}
	e.reported = s
	return change
}

// explain says why a breaker went into the state that it is in, and until when.
func (b *breaker) explain(ch *BreakerChange) {
	switch ch.To {
	case BreakerOpen:
		ch.Rule, ch.Until = b.rule, b.until
	case BreakerHalfOpen:
		ch.Rule = b.rule
	default:
	}
}

// settle takes the outcome of an attempt under the lock.
func (c *Call) settle(now Instant, o *Outcome) {
	e, d := c.e, &c.decision
	*d = Decision{}
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	if r := c.race(); r != nil {
		r.remove(int(c.attempts)) // the one that is settled
	}
	c.loseOthers(now)
	c.conclude(now, c.attempts, o, &eff)
	d.Breaker = c.leave(now, &eff)
}

// count takes the outcome of an attempt into the breaker and the counters.
func (c *Call) count(now Instant, number uint8, o *Outcome) (class Class, retryable bool) {
	e := c.e
	p := e.policy.Load()
	class, retryable = o.classify(c.p, c.keyed)
	if c.counts && p.Breaker.Enabled {
		c.attempt.class = class
		c.breaker().settle(&p.Breaker, c.attempt, now, e.random)
	}
	if c.attempt.hedge {
		e.countHedge(class)
	} else {
		e.counters.attempt(class, number)
	}
	return class, retryable
}

// conclude takes the outcome of the attempt that decides how the call goes on.
func (c *Call) conclude(now Instant, number uint8, o *Outcome, eff *Effects) {
	e, d := c.e, &c.decision
	p := e.policy.Load()
	class, retryable := c.count(now, number, o)
	if number == 1 && (class == Success || class == Refused) {
		e.learn(c.attempt.took)
	}
	e.budget.fit(&p.Budget, eff.Factor, now)
	switch {
	case e.mode == ModeOff:
		c.end(class)
	case retryable:
		*d = c.decide(now, o, eff)
	case c.keyed && o.Kind == OutcomeHTTP && o.Code == statusUnprocessable:
		d.Code = CodeConflict
		e.counters.suppressed[byConflict]++
		c.end(class)
	default:
		c.end(class)
	}
}

// decide says whether a call whose attempt failed waits for a retry. The conditions come in
// the order of blame.
func (c *Call) decide(now Instant, o *Outcome, eff *Effects) Decision {
	e := c.e
	p := e.policy.Load()
	var d Decision
	step := int(c.step) + 1
	wait, allowed := c.p.Backoff.Wait(step, c.previous, e.random), true
	if asked := o.Server; asked.Kind == AskedStop || asked.Kind != AskedNothing && c.p.RetryAfter.Honor {
		wait, allowed = c.p.RetryAfter.wait(asked, c.p.Backoff.Step(step), e.random)
	}
	why := none
	switch {
	case c.breakerShut(eff):
		why = byBreaker
		c.blame(&d, eff.ForcedOpen, eff)
	case c.single || int(c.attempts) >= c.p.MaxAttempts:
		why = byAttempts
	case eff.Retry == 0 || eff.Retry < Million && !chance(e.random(), eff.Retry):
		why, d.By = bySwitch, eff.RetryBy
	case !c.safe && (!c.p.Idempotency.OnlyIfNotSent || !o.notSent()):
		why = bySafety
	case o.BodyLost:
		why = byBody
	case !e.gate.open(&p.Budget.SuccessGate):
		why = byGate
	case !c.lend(&c.permit, p, eff):
		why, d.By = byBudget, eff.FactorBy
	case !allowed:
		why, d.Asked = byServer, o.Server.For
		if d.Asked > 0 {
			d.RetryAt = now.Add(d.Asked)
		}
	case now.Add(wait) >= c.Deadline():
		why = byDeadline
	}
	if why != none {
		c.giveBack(&c.permit)
		e.counters.suppressed[why]++
		d.Code = why.code()
		d.Observed = e.observes()
		c.end(Failure)
		return d
	}
	d.Wait = wait
	if e.observes() {
		d.Observed = true
		e.extra().observed++
		c.end(Failure)
		return d
	}
	d.Retry = true
	c.previous = wait
	c.step++
	if o.Server.Kind == AskedPushback && c.p.RetryAfter.Honor {
		c.step, c.previous = 0, 0
	}
	c.state = callWaits
	return d
}

// breakerShut reports whether the breaker lets nothing through.
func (c *Call) breakerShut(eff *Effects) bool {
	return eff.ForcedOpen || !eff.ForcedClosed && c.e.policy.Load().Breaker.Enabled && c.breaker().state == BreakerOpen
}

// end counts how a call ended.
func (c *Call) end(class Class) {
	e := c.e
	c.state = callEnded
	c.leaveSlot()
	switch class {
	case Success, Refused:
		if c.rescued() {
			e.counters.rescued++
		} else {
			e.counters.ok++
			if class == Success && c.attempts == 1 {
				e.credit()
			}
		}
		if c.attempt.hedge {
			h := &e.extra().hedges
			h.Answered++
			h.Rescued += uint64(bit(c.rescued()))
		}
		e.gate.succeeded(1)
	case Failure:
		if !c.kept() {
			e.counters.failed++
		}
		e.gate.failed()
	case Neutral:
		e.counters.cancelled++
	}
}

// rescued reports whether an attempt of the call failed before the one that answered.
func (c *Call) rescued() bool {
	r := c.race()
	return c.attempts > 1 && (r == nil || r.failed || int(c.attempts) > 1+r.hedges)
}

// resume decides on a retry under the lock.
func (c *Call) resume(now Instant) {
	e, d := c.e, &c.decision
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	p := e.policy.Load()
	e.budget.fit(&p.Budget, eff.Factor, now)
	switch {
	case e.mode == ModeOff:
	case eff.Retry == 0 && !c.breakerShut(&eff):
		d.Code, d.By = CodeDisabled, eff.RetryBy
		e.counters.suppressed[bySwitch]++
	case now >= c.Deadline() && !c.breakerShut(&eff):
		d.Code = CodeDeadline
		e.counters.suppressed[byDeadline]++
	default:
		*d = c.admit(now, &eff, false)
	}
	if d.Proceed {
		c.attempts++
		c.sent, c.state = now, callSent
		c.permit.held = false
		e.counters.retries++
	} else {
		c.giveBack(&c.permit)
		c.end(Failure)
	}
	d.Breaker = c.leave(now, &eff)
}

// abandon ends a call that waits for a retry.
func (c *Call) abandon(now Instant) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	c.giveBack(&c.permit)
	c.end(Failure)
	eff := e.effects(now)
	c.decision.Breaker = c.leave(now, &eff)
}
