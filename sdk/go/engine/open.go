// SPDX-License-Identifier: Apache-2.0

package engine

// Open opens the breaker until a moment, as if one of its rules had tripped at now, for
// tests of what calls do then. It reports false, and does nothing, if the policy has no
// breaker.
func (e *Endpoint) Open(now, until Instant) (*BreakerChange, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now = e.tick(now)
	p := &e.policy.Load().Breaker
	if !p.Enabled {
		return nil, false
	}
	rule := RuleSlow
	switch {
	case p.Consecutive.Enabled:
		rule = RuleConsecutive
	case p.Ratio.Enabled:
		rule = RuleRatio
	}
	eff := e.effects(now)
	e.open(p, rule, now, until)
	e.worst(e.policy.Load(), now, &eff) // which notes the changes
	return e.leave(now, &eff), true
}
