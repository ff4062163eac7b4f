// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/policyd/policyd/sdk/go/internal/quantile"

// Extras are the parts of a policy that most endpoints leave off. A policy that uses none
// of them has none, so that it stays small.
type Extras struct {
	Concurrency ConcurrencyPolicy
	Hedging     HedgingPolicy
	Fallback    FallbackPolicy
	// BudgetShared: all endpoints of the service share one budget.
	BudgetShared bool
	// BreakerPerHost: the endpoint has a breaker for each host.
	BreakerPerHost bool
	Nested         NestedPolicy
	Queue          QueuePolicy
}

// Equal reports whether two policies decide alike.
func (p *Policy) Equal(q *Policy) bool {
	a, b := *p, *q
	if a.Extras != nil && b.Extras != nil && *a.Extras == *b.Extras {
		a.Extras = b.Extras
	}
	return a == b
}

// locks reports whether calls have to be counted one by one, under the lock.
func (x *Extras) locks() bool {
	return x != nil && (x.Concurrency.Enabled || x.BudgetShared || x.BreakerPerHost)
}

func compileExtras(c compiler) *Extras {
	x := Extras{
		Concurrency: compileConcurrency(c), Hedging: compileHedging(c), Fallback: compileFallback(c),
		BudgetShared: c.word(BudgetScope) == "service", BreakerPerHost: c.word(BreakerPer) == "host", Nested: compileNested(c), Queue: compileQueue(c),
	}
	if x == (Extras{}) {
		return nil
	}
	return &x
}

// extras is the state that the Extras of a policy need, made at their first use. Guarded by
// Endpoint.mu.
type extras struct {
	limiter  limiter
	shared   *SharedBudget
	hedges   hedgeCounts      // sent
	observed uint64           // retries and hedges that would have been
	took     *quantile.Sketch // of first attempts; nil unless the policy asks for a quantile
	hosts    *hosts           // nil unless there is a breaker for each
	changes  *BreakerChange   // of breakers of hosts, to be told
}

func (e *Endpoint) extra() *extras {
	if e.more == nil {
		e.more = &extras{}
	}
	return e.more
}

// fitExtras makes the state that of p.
func (e *Endpoint) fitExtras(p *Policy) {
	e.fitSketch(p)
	if e.more != nil {
		e.more.limiter.grant(e.room(p))
	}
}

// callExtras is what a call holds of an endpoint's extras beside its slot.
type callExtras struct {
	ticket *ticket       // its place in the queue
	race   race          // of attempts at once
	lender *SharedBudget // of the permit; nil: the endpoint's own
	kept   bool          // it was counted when it was made
}
