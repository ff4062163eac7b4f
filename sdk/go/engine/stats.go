// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

// Stats is a snapshot of an endpoint. Counts grow from its creation on.
type Stats struct {
	Calls     uint64 // started, refused ones included
	OK        uint64 // answered on the first attempt
	Rescued   uint64 // answered on a retry
	Failed    uint64
	Cancelled uint64 // by the caller, in the queue or later
	Rejected  uint64 // refused before the first attempt
	Hedges    uint64 // sent beside a slow attempt
	Hedged    HedgeStats
	// Retries sent, and the attempts of either kind that failed.
	Retries, FirstFailed, RetriesFailed uint64
	// Observed are retries that would have been made, had the policy not been observed only.
	Observed uint64

	// Breaker is the worst of them where each host has one.
	Breaker BreakerStatus
	// Hosts are those whose breaker does not let everything through, worst first.
	Hosts  []HostStatus
	Budget BudgetStatus
	// Concurrency is of calls under a limit.
	Concurrency ConcurrencyStatus
	// Change is set when the reported state of the breaker changed unseen, by time alone.
	Change *BreakerChange

	suppressed [numReasons]uint64
	left       uint64 // of Cancelled, those that made no attempt
}

// HedgeStats is what became of hedges.
type HedgeStats struct {
	// Answered are those whose answer was taken, and Rescued those of them that count under
	// Stats.Rescued. Lost are those that lost to another attempt or were cancelled.
	Answered, Rescued, Failed, Lost uint64
}

// Attempts is the number of attempts sent.
func (s *Stats) Attempts() uint64 { return s.Calls - s.Rejected - s.left + s.Retries + s.Hedges }

// Suppressed is the number of retries that a reason of Codes prevented. Under an observed
// policy it also counts what would have been prevented, first attempts included.
func (s *Stats) Suppressed(c Code) uint64 {
	if i := slices.Index(codes[:none], c); i >= 0 {
		return s.suppressed[i]
	}
	return 0
}

// BreakerStatus is what a breaker does at a moment.
type BreakerStatus struct {
	State BreakerState
	Rule  Rule    // that opened it, unless closed
	Until Instant // end of an open state; 0 otherwise
	// Admitted is the share of first attempts let through, in millionths: below Million
	// while open, forced open, or coming back.
	Admitted int64
	// Probes in progress, probes that succeeded, and how many must, while half-open.
	Probes, Succeeded, Needed int
	By                        *Switch // behind a forced state
}

// HostStatus is the breaker of one host, under breaker.per: host.
type HostStatus struct {
	Host string
	BreakerStatus
}

// BudgetStatus is what a budget allows at a moment.
type BudgetStatus struct {
	Allowed, Used, Left int64 // retries in the window
	Tokens, Capacity    int64 // in millionths; 0 without tokens
	Known, Succeeded    int   // calls that the success gate looks at
	GateOpen            bool
	By                  *Switch // that tightens it
}

// counters are guarded by Endpoint.mu.
type counters struct {
	calls, ok, rescued, failed, cancelled, rejected uint64
	retries, firstFailed, retriesFailed             uint64
	suppressed                                      [numReasons]uint64
}

// attempt counts a failed attempt.
func (c *counters) attempt(class Class, number uint8) {
	switch {
	case class != Failure:
	case number == 1:
		c.firstFailed++
	default:
		c.retriesFailed++
	}
}

// Stats returns the counts so far and the state at now. An open breaker without traffic
// becomes half-open in it by time.
func (e *Endpoint) Stats(now Instant) Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	now = e.tick(now)
	eff := e.effects(now)
	p := e.policy.Load()
	e.budget.fit(&p.Budget, eff.Factor, now)
	c := &e.counters
	refused, left, h := e.refused.Load(), e.leavers(), e.hedges()
	s := Stats{
		Calls: c.calls + c.rejected + refused + left, OK: c.ok, Rescued: c.rescued, Failed: c.failed,
		Cancelled: c.cancelled + left, left: left, Rejected: c.rejected + refused,
		Retries: c.retries, Hedges: h.sent, FirstFailed: c.firstFailed, RetriesFailed: c.retriesFailed,
		Hedged:   h.HedgeStats,
		Observed: e.observed(), suppressed: c.suppressed,
		Budget:      e.budgetStatus(p, &eff),
		Concurrency: e.concurrencyStatus(p),
	}
	s.Breaker, s.Hosts = e.breakerStatus(p, &eff, now)
	s.Change = e.leave(now, &eff)
	return s
}

func (e *Endpoint) breakerStatus(p *Policy, eff *Effects, now Instant) (s BreakerStatus, hosts []HostStatus) {
	b, hosts := e.worst(p, now, eff)
	switch {
	case eff.ForcedOpen:
		return BreakerStatus{State: BreakerForcedOpen, By: eff.FirstBy, Admitted: eff.First}, nil
	case eff.ForcedClosed:
		return BreakerStatus{State: BreakerForcedClosed, By: eff.ClosedBy, Admitted: Million}, nil
	}
	s = b.status(&p.Breaker, now)
	s.Admitted = min(s.Admitted, eff.First)
	return s, hosts
}

// status is what a breaker does at now, switches aside.
func (b *breaker) status(p *BreakerPolicy, now Instant) BreakerStatus {
	s := BreakerStatus{State: b.state, Admitted: 0}
	switch b.state {
	case BreakerOpen:
		s.Rule, s.Until = b.rule, b.until
	case BreakerHalfOpen:
		s.Rule, s.Probes, s.Succeeded, s.Needed = b.rule, len(b.probes), b.succeeded, p.HalfOpen.CloseAfter
	default:
		s.Admitted = b.share(p, now)
	}
	return s
}

func (e *Endpoint) budgetStatus(p *Policy, eff *Effects) BudgetStatus {
	s := e.budget.status()
	if shared := e.shared(); shared != nil {
		s = shared.status(e.latest)
	}
	known, ok := e.gate.counts()
	s.Known, s.Succeeded, s.GateOpen, s.By = int(known), int(ok), e.gate.open(&p.Budget.SuccessGate), eff.FactorBy
	return s
}
