// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"time"
)

// CallOptions are what a caller says about a call before its first attempt.
type CallOptions struct {
	// Deadline is the caller's own; 0 for none.
	Deadline Instant
	// Idempotent: safe to repeat, by its method or because the application says so.
	Idempotent bool
	// Keyed: it carries an idempotency key that makes it safe to repeat.
	Keyed bool
	// NoRetry: one attempt whatever the policy says.
	NoRetry bool
	// Host is what the call goes to, for breaker.per: host; "" is a host as well.
	Host string
}

// Call is one call on its way. The order is Begin (and Enter, if it was queued), Settle, then for each retry Resume or
// Abandon, and Settle. A Call belongs to one goroutine. It obeys the policy that was in
// force when it began, and the breaker, budget and switches of the moment.
type Call struct {
	e        *Endpoint
	p        *Policy
	cell     *cell         // nil: began under the lock, so its success is settled there
	started  Instant       // the call
	sent     Instant       // the attempt in progress
	deadline Instant       // the caller's, 0 for none
	previous time.Duration // wait before
	permit   permit
	attempt  report // of the attempt in progress
	attempts uint8
	step     uint8 // retries since the backoff began
	state    callState
	counts   bool // the breaker admitted the attempt in progress
	keyed    bool
	safe     bool
	single   bool
	slot     bool         // holds one of the endpoint's
	host     *hostBreaker // nil unless there is one for each host
	more     *callExtras
	decision Decision
}

type callState uint8

const (
	callEnded  callState = iota
	callSent             // an attempt is in progress
	callWaits            // for a retry
	callQueued           // for a slot
)

// Decision is what a call may do next.
type Decision struct {
	// Proceed: send the attempt now. Answer of Begin and Resume; without it the call ends.
	Proceed bool
	// Retry: wait for Wait, then ask Resume. Answer of Settle; without it the call ends.
	Retry bool
	// Queued: all slots are taken. Wait for Turn, then ask Enter. Answer of Begin.
	Queued bool
	// Pending: other attempts of the call are still in progress. Answer of SettleAttempt.
	Pending bool
	// Observed: Code or Wait tell what would have been done, had the policy not been
	// observed only.
	Observed bool
	// Code says why the call was refused or is not repeated.
	Code Code
	Wait time.Duration
	// Asked is the wait that the server asked for, of CodeRetryAfter.
	Asked time.Duration
	// RetryAt is when trying again makes sense, 0 if unknown.
	RetryAt Instant
	// Rule is the rule that opened the breaker, of CodeBreaker.
	Rule Rule
	// By is the kill switch that decided or, of CodeBudget, that tightened the budget.
	By *Switch
	// Breaker is set once for each change of state that the breaker went through, on
	// whatever decision came next.
	Breaker *BreakerChange
}

// BreakerChange is a change of a breaker's reported state.
type BreakerChange struct {
	From, To BreakerState
	Rule     Rule    // of the opening
	Until    Instant // end of an open state, 0 if there is none
	By       *Switch // behind a forced state
	// Host whose breaker it is, under breaker.per: host; "" for that of the endpoint, and for
	// what a switch does to all.
	Host string
	// Next is a change that became known at the same time; nil for none.
	Next *BreakerChange
}

// Begin starts a call and decides on its first attempt. The Call is of use only if the
// decision is to proceed; what it held before is forgotten. Nothing is allocated.
//
// A decision lives in its Call: it holds until the Call's next method.
func (e *Endpoint) Begin(c *Call, now Instant, o CallOptions) *Decision {
	if int64(now) < e.fastUntil.Load() {
		c.start(e, now, &o)
		c.attempt.generation = e.generation.Load()
		c.cell = e.enter()
		c.decision.Proceed = true
		return &c.decision
	}
	if s := e.shutter.Load(); now < s.until {
		return e.turnAway(c, s)
	}
	c.start(e, now, &o)
	c.begin(now, o.Host)
	return &c.decision
}

// start fills the call field by field: a literal would be built elsewhere and copied.
func (c *Call) start(e *Endpoint, now Instant, o *CallOptions) {
	*c = Call{}
	c.e, c.p, c.started, c.sent = e, e.policy.Load(), now, now
	c.deadline, c.keyed, c.safe, c.single = o.Deadline, o.Keyed, o.Idempotent || o.Keyed, o.NoRetry
	c.attempts, c.state, c.counts = 1, callSent, true
}

// Deadline is the end of the whole call, Never if it has none.
func (c *Call) Deadline() Instant {
	end := Never
	if c.deadline != 0 {
		end = c.deadline
	}
	if overall := c.p.Timeouts.Overall; overall > 0 {
		end = min(end, c.started.Add(overall))
	}
	return end
}

// AttemptDeadline is the end of the attempt in progress, Never if it has none.
func (c *Call) AttemptDeadline() Instant {
	end := c.Deadline()
	if attempt := c.p.Timeouts.Attempt; attempt > 0 {
		end = min(end, c.sent.Add(attempt))
	}
	return end
}

// Attempts is the number of attempts sent so far.
func (c *Call) Attempts() int { return int(c.attempts) }

// Policy is the policy that the call obeys. It must not be changed.
func (c *Call) Policy() *Policy { return c.p }

// Succeed settles the usual case without a look at the clock: the first attempt succeeded
// and nothing is wrong. It counts the success as of the start of the attempt. If it reports
// false, it did nothing, and the attempt is to be settled by Settle.
func (c *Call) Succeed() bool {
	e := c.e
	if c.state != callSent || c.attempts > 1 || c.cell == nil || int64(c.sent) >= e.fastUntil.Load() ||
		c.attempt.generation != e.generation.Load() || e.slowAfter.Load() != math.MaxInt64 {
		return false
	}
	c.state = callEnded
	c.cell.word.Add(succeeded)
	return true
}

// Settle takes the outcome of the attempt in progress and decides whether the call waits
// for a retry. The permit of that retry is reserved now. A second Settle does nothing.
func (c *Call) Settle(now Instant, o Outcome) *Decision {
	if c.state != callSent {
		c.decision = Decision{}
		return &c.decision
	}
	e := c.e
	took := now - c.sent
	if o.Kind == OutcomeOK && c.attempts == 1 && c.cell != nil && int64(now) < e.fastUntil.Load() &&
		c.attempt.generation == e.generation.Load() && int64(took) <= e.slowAfter.Load() {
		c.state, c.decision.Proceed = callEnded, false
		c.cell.word.Add(succeeded)
		return &c.decision
	}
	c.attempt.took = time.Duration(took)
	c.settle(now, &o)
	return &c.decision
}

// Resume decides on the retry whose wait is over: the breaker and the kill switches may
// have changed. If the answer is not to proceed, the permit has gone back and the call is
// over.
func (c *Call) Resume(now Instant) *Decision {
	c.decision = Decision{}
	if c.state == callWaits {
		c.resume(now)
	}
	return &c.decision
}

// Abandon ends a call that its caller gives up, wherever it is: the permit of a retry that
// did not start, the slot of a probe and the place in a queue go back. After the end it does nothing, so it may
// be deferred. The decision is never to go on.
func (c *Call) Abandon(now Instant) *Decision {
	c.decision = Decision{}
	switch c.state {
	case callSent:
		c.attempt.took = time.Duration(now - c.sent)
		c.settle(now, &Outcome{Kind: OutcomeCancelled})
	case callWaits:
		c.abandon(now)
	case callQueued:
		c.quit(now)
	case callEnded:
	}
	return &c.decision
}
