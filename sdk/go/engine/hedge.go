// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/quantile"
)

// HedgingPolicy sends a further attempt while the one before is slow. Hedges are attempts:
// they count against MaxAttempts and draw from the budget as retries do.
type HedgingPolicy struct {
	Enabled bool
	// After is the wait since the attempt before; 0: what 95 % of first attempts take.
	After time.Duration
	Max   int // per call; at most maxHedges
}

const maxHedges = 2

func compileHedging(c compiler) HedgingPolicy {
	if !c.flag(HedgingEnabled) {
		return HedgingPolicy{}
	}
	p := HedgingPolicy{Enabled: true, Max: c.count(HedgingMax)}
	if d, err := time.ParseDuration(c.word(HedgingAfter)); err == nil {
		p.After = min(max(d, time.Millisecond), time.Hour)
	}
	return p
}

// race is the attempts of a call that are in progress at once. Guarded by Endpoint.mu.
type race struct {
	runs   [1 + maxHedges]run
	live   int
	hedges int // of the call
	failed bool
}

// run is one attempt of a race; number 0: none.
type run struct {
	report report
	sent   Instant
	number uint8
	counts bool
}

func (c *Call) race() *race {
	if c.more == nil {
		return nil
	}
	return &c.more.race
}

// hedging returns the call's rules for hedges, nil when it makes none.
func (c *Call) hedging() *HedgingPolicy {
	x := c.p.Extras
	if x == nil || !x.Hedging.Enabled || !c.safe || c.single {
		return nil
	}
	return &x.Hedging
}

// HedgeAfter returns how long after the start of the latest attempt a hedge may be asked
// for, if the call can have one at all.
func (c *Call) HedgeAfter() (time.Duration, bool) {
	rule := c.hedging()
	if rule == nil || c.state != callSent || int(c.attempts) >= c.p.MaxAttempts {
		return 0, false
	}
	if r := c.race(); r != nil && r.hedges >= rule.Max {
		return 0, false
	}
	if rule.After > 0 {
		return rule.After, true
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.e.more == nil || c.e.more.took == nil {
		return 0, false
	}
	d, ok := c.e.more.took.P95()
	return max(d, time.Millisecond), ok
}

// Hedge asks for a further attempt beside those in progress. If the answer is to proceed,
// its number is Attempts, and each attempt is to be settled by SettleAttempt. Otherwise the
// call goes on as it is; Code says why, in the order in which retries are blamed.
func (c *Call) Hedge(now Instant) *Decision {
	d := &c.decision
	*d = Decision{}
	rule := c.hedging()
	if rule == nil || c.state != callSent {
		return d
	}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	eff := e.effects(now)
	p := e.policy.Load()
	e.budget.fit(&p.Budget, eff.Factor, now)
	c.extra()
	if e.mode != ModeOff {
		c.hedge(now, p, rule, &eff)
	}
	d.Breaker = c.leave(now, &eff)
	return d
}

func (c *Call) hedge(now Instant, p *Policy, rule *HedgingPolicy, eff *Effects) {
	e, d, r := c.e, &c.decision, c.race()
	b := c.breaker()
	why := none
	var taken permit
	switch {
	case eff.ForcedOpen || !eff.ForcedClosed && p.Breaker.Enabled && !b.steady(&p.Breaker, now, e.random):
		why = byBreaker
		c.blame(d, eff.ForcedOpen, eff)
	case int(c.attempts) >= c.p.MaxAttempts || r.hedges >= rule.Max:
		why = byAttempts
	case eff.HedgingOff:
		why, d.By = bySwitch, eff.HedgingBy
	case eff.Retry == 0 || eff.Retry < Million && !chance(e.random(), eff.Retry):
		why, d.By = bySwitch, eff.RetryBy
	case !e.gate.open(&p.Budget.SuccessGate):
		why = byGate
	case !c.lend(&taken, p, eff):
		why, d.By = byBudget, eff.FactorBy
	case now >= c.Deadline():
		why = byDeadline
	}
	observed := e.observes()
	if why != none {
		c.giveBack(&taken)
		d.Code, d.Observed = why.code(), observed
		return
	}
	if observed {
		d.Observed = true
		e.extra().observed++
		r.hedges++
		return
	}
	if r.live == 0 {
		r.add(run{c.attempt, c.sent, c.attempts, c.counts})
	}
	c.attempts++
	r.hedges++
	c.counts = !eff.ForcedClosed || b.state == BreakerClosed
	c.attempt, c.sent = report{generation: b.generation, hedge: true}, now
	r.add(run{c.attempt, now, c.attempts, c.counts})
	e.extra().hedges.sent++
	d.Proceed = true
}

// steady reports whether a closed breaker lets a hedge through. Probes are no place for one.
func (b *breaker) steady(p *BreakerPolicy, now Instant, random func() uint64) bool {
	if b.state != BreakerClosed {
		return false
	}
	share := b.share(p, now)
	return share == Million || chance(random(), share)
}

func (r *race) add(n run) {
	for i := range r.runs {
		if r.runs[i].number == 0 {
			r.runs[i] = n
			r.live++
			return
		}
	}
}

func (r *race) remove(number int) (n run, ok bool) {
	for i := range r.runs {
		if number > 0 && int(r.runs[i].number) == number {
			n, r.runs[i] = r.runs[i], run{}
			r.live--
			return n, true
		}
	}
	return run{}, false
}

// SettleAttempt takes the outcome of one of several attempts in progress. An outcome that
// the policy wants retried is Pending while others go on, and to be thrown away. Any other
// one ends the call as Settle does: the other attempts are to be cancelled and need not be
// settled. The last attempt in progress is settled as by Settle.
func (c *Call) SettleAttempt(now Instant, number int, o Outcome) *Decision {
	r := c.race()
	if r == nil || r.live == 0 || c.state != callSent {
		return c.Settle(now, o)
	}
	d := &c.decision
	*d = Decision{}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	now = c.tick(now)
	n, ok := r.remove(number)
	if !ok {
		return d
	}
	eff := e.effects(now)
	c.attempt, c.sent, c.counts = n.report, n.sent, n.counts
	c.attempt.took = now.Sub(n.sent)
	_, retryable := o.classify(c.p, c.keyed)
	if retryable && r.live > 0 && e.mode != ModeOff {
		c.count(now, n.number, &o)
		r.failed, d.Pending = true, true
	} else {
		c.loseOthers(now)
		c.conclude(now, n.number, &o, &eff)
	}
	d.Breaker = c.leave(now, &eff)
	return d
}

// loseOthers settles the attempts of a race that is decided: nothing is known of them, but
// that a first attempt took at least so long.
func (c *Call) loseOthers(now Instant) {
	r := c.race()
	if r == nil || r.live == 0 {
		return
	}
	kept, counts := c.attempt, c.counts
	for i := range r.runs {
		n := &r.runs[i]
		if n.number == 0 {
			continue
		}
		c.attempt, c.counts = n.report, n.counts
		c.attempt.took = now.Sub(n.sent)
		if n.number == 1 {
			c.e.learn(c.attempt.took)
		}
		c.count(now, n.number, &Outcome{Kind: OutcomeCancelled})
		*n = run{}
	}
	r.live = 0
	c.attempt, c.counts = kept, counts
}

// learn takes how long a first attempt took.
func (e *Endpoint) learn(took time.Duration) {
	if e.more != nil && e.more.took != nil {
		e.more.took.Add(took)
	}
}

// fitSketch keeps a sketch while p asks for a quantile.
func (e *Endpoint) fitSketch(p *Policy) {
	switch wanted := p.Extras != nil && p.Extras.Hedging.Enabled && p.Extras.Hedging.After == 0; {
	case wanted && e.extra().took == nil:
		e.more.took = &quantile.Sketch{}
	case !wanted && e.more != nil:
		e.more.took = nil
	}
}

// patience is how long an attempt may take before the lock is needed to settle it.
func (e *Endpoint) patience(p *Policy) int64 {
	switch {
	case e.more != nil && e.more.took != nil:
		return -1 // every one is measured
	case p.Breaker.Enabled && p.Breaker.Slow.Enabled:
		return int64(p.Breaker.Slow.LongerThan)
	}
	return math.MaxInt64
}

// hedgeCounts counts hedges.
type hedgeCounts struct {
	sent uint64
	HedgeStats
}

// hedges counts the hedges.
func (e *Endpoint) hedges() hedgeCounts {
	if e.more == nil {
		return hedgeCounts{}
	}
	return e.more.hedges
}

// countHedge counts a hedge that did not answer its call.
func (e *Endpoint) countHedge(class Class) {
	switch h := &e.extra().hedges; class {
	case Failure:
		h.Failed++
	case Neutral:
		h.Lost++
	case Success, Refused:
	}
}

// observed is the number of retries and hedges that were not made because the policy is
// observed only.
func (e *Endpoint) observed() uint64 {
	if e.more == nil {
		return 0
	}
	return e.more.observed
}
