// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"time"
)

// SharedBudget is the one budget of all endpoints of a service, for policies with
// budget.scope: service. The success gate stays with each endpoint: it looks at how the
// endpoint does. Safe for concurrent use.
type SharedBudget struct {
	mu      sync.Mutex
	origin  time.Time
	policy  BudgetPolicy
	overlay Overlay // of the service
	latest  Instant
	budget  budget
}

// NewSharedBudget returns the budget of a service that had no calls yet, by the policy and
// the kill switches at the service. Of c only Origin is used.
func NewSharedBudget(c Config, p *Policy, o Overlay, now Instant) *SharedBudget {
	s := &SharedBudget{origin: c.Origin, policy: p.Budget, overlay: o, latest: now}
	s.budget = newBudget(&s.policy, s.factor(now), now)
	return s
}

// Reload puts another policy or other kill switches into force; no edit refills the budget.
// Call it before the endpoints of the service are reloaded.
func (s *SharedBudget) Reload(p *Policy, o Overlay, now Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	s.policy, s.overlay = p.Budget, o
	s.budget.fit(&s.policy, s.factor(s.latest), s.latest)
}

func (s *SharedBudget) factor(now Instant) int64 {
	if s.overlay.Empty() {
		return Million
	}
	return s.overlay.At(s.origin.Add(time.Duration(now))).Factor
}

// tick moves the budget to now.
func (s *SharedBudget) tick(now Instant) {
	s.latest = max(s.latest, now)
	s.budget.advance(s.latest)
	s.budget.fit(&s.policy, s.factor(s.latest), s.latest)
}

// called counts a call.
func (s *SharedBudget) called(now Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	s.budget.add(1, 0)
}

// take reserves a retry of an endpoint whose own switches leave it factor of the budget: it
// may spend only that share of what there is in all.
func (s *SharedBudget) take(factor int64, now Instant) (permit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	b := &s.budget
	if !b.available(&s.policy) {
		return permit{}, false
	}
	if factor < b.size.factor {
		size := b.size
		size.factor = factor
		rest := b.tokens.capacity - shareOf(s.policy.Tokens.Capacity, factor)
		if size.allowance(b.sumAll) <= int64(b.sumMarked) ||
			s.policy.Tokens.Enabled && b.tokens.balance-s.policy.Tokens.RetryCost < rest {
			return permit{}, false
		}
	}
	return b.take(&s.policy), true
}

func (s *SharedBudget) giveBack(p *permit, now Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	s.budget.giveBack(p)
}

func (s *SharedBudget) credit(now Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	s.budget.tokens.credit(&s.policy.Tokens, 1)
}

func (s *SharedBudget) status(now Instant) BudgetStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	return s.budget.status()
}

// status is what the budget allows, the gate aside.
func (b *budget) status() BudgetStatus {
	s := BudgetStatus{Allowed: b.size.allowance(b.sumAll), Used: int64(b.sumMarked), Left: b.left()}
	if b.tokens.enabled {
		s.Tokens, s.Capacity = b.tokens.balance, b.tokens.capacity
	}
	return s
}

// Share gives the endpoint the budget of its service, nil for none. It is used while the
// policy says so; call it before the Reload that brings such a policy.
func (e *Endpoint) Share(s *SharedBudget) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s != nil || e.more != nil {
		e.extra().shared = s
	}
}

// shared is the budget in use, nil if that is the endpoint's own.
func (e *Endpoint) shared() *SharedBudget {
	if e.more == nil || e.more.shared == nil {
		return nil
	}
	if x := e.policy.Load().Extras; x == nil || !x.BudgetShared {
		return nil
	}
	return e.more.shared
}

// called counts a call in the budget.
func (e *Endpoint) called(now Instant) {
	if s := e.shared(); s != nil {
		s.called(now)
		return
	}
	e.budget.add(1, 0)
}

// credit counts a success on the first attempt in the bucket of tokens.
func (e *Endpoint) credit() {
	if s := e.shared(); s != nil {
		s.credit(e.latest)
		return
	}
	e.budget.tokens.credit(&e.policy.Load().Budget.Tokens, 1)
}

// lend is reserve into a permit.
func (c *Call) lend(into *permit, p *Policy, eff *Effects) (ok bool) {
	*into, ok = c.reserve(p, eff)
	return ok
}

// reserve takes a permit for a retry or hedge.
func (c *Call) reserve(p *Policy, eff *Effects) (permit, bool) {
	e := c.e
	if s := e.shared(); s != nil {
		got, ok := s.take(eff.Factor, e.latest)
		if ok {
			c.extra().lender = s
		}
		return got, ok
	}
	if c.more != nil {
		c.more.lender = nil
	}
	if !e.budget.available(&p.Budget) {
		return permit{}, false
	}
	return e.budget.take(&p.Budget), true
}

// giveBack returns the permit of a retry that does not start.
func (c *Call) giveBack(p *permit) {
	if !p.held {
		return
	}
	if c.more != nil && c.more.lender != nil {
		c.more.lender.giveBack(p, c.e.latest)
		return
	}
	c.e.budget.giveBack(p)
}

func (c *Call) extra() *callExtras {
	if c.more == nil {
		c.more = &callExtras{}
	}
	return c.more
}
