// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// QueuePolicy rules the calls that are kept to be sent later.
type QueuePolicy struct {
	Enabled  bool
	MaxItems int // of one endpoint
	TTL      time.Duration
}

func compileQueue(c compiler) QueuePolicy {
	if !c.flag(OfflineQueueEnabled) {
		return QueuePolicy{}
	}
	return QueuePolicy{Enabled: true, MaxItems: c.count(OfflineQueueMaxItems), TTL: c.duration(OfflineQueueTTL)}
}

// Again is Begin for a call that was made before, did not succeed and was kept. It was
// counted then: what is sent now is a retry, which the switches, the success gate and the
// budget have to allow and which the budget pays for. A refusal counts nothing.
func (e *Endpoint) Again(c *Call, now Instant, o CallOptions) *Decision {
	c.start(e, now, &o)
	c.attempts = 2
	c.extra().kept = true
	c.begin(now, o.Host)
	return &c.decision
}

// kept reports whether it is one of Again.
func (c *Call) kept() bool { return c.more != nil && c.more.kept }

// repeat decides on the send of a kept call, in the order of blame.
func (c *Call) repeat(now Instant, eff *Effects) {
	e, d := c.e, &c.decision
	p := e.policy.Load()
	e.budget.fit(&p.Budget, eff.Factor, now)
	*d = Decision{}
	switch {
	case c.breakerShut(eff):
		d.Code = CodeBreaker
		c.blame(d, eff.ForcedOpen, eff)
	case eff.Retry == 0 || eff.Retry < Million && !chance(e.random(), eff.Retry):
		d.Code, d.By = CodeDisabled, eff.RetryBy
	case !e.gate.open(&p.Budget.SuccessGate):
		d.Code = CodeGate
	case !c.lend(&c.permit, p, eff):
		d.Code, d.By = CodeBudget, eff.FactorBy
	default:
		*d = c.admit(now, eff, true)
	}
	if !d.Proceed {
		c.giveBack(&c.permit)
		c.refuse()
		return
	}
	c.permit.held = false
	c.state = callSent
	e.counters.retries++
}
