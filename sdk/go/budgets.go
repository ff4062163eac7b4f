// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// sharedBudget returns the budget that an endpoint at scope shares with the others of its
// service, nil if it has its own. Client.mu is held.
func (c *Client) sharedBudget(s *snapshot, scope engine.Scope, p *engine.Policy, now time.Time) *engine.SharedBudget {
	if p.Extras == nil || !p.Extras.BudgetShared {
		return nil
	}
	for scope.Level() > engine.LevelService {
		scope = scope.Parent()
	}
	if scope.Level() != engine.LevelService {
		return nil
	}
	b := s.budgets[scope]
	if b == nil {
		policy, overlay := c.compile(s, scope)
		b = engine.NewSharedBudget(engine.Config{Origin: c.origin}, policy, overlay, c.instant(now))
		if s.budgets == nil {
			s.budgets = map[engine.Scope]*engine.SharedBudget{}
		}
		s.budgets[scope] = b
	}
	return b
}

// reloadBudgets puts a snapshot in force for shared budgets, and forgets those that are no
// longer shared. Client.mu is held.
func (c *Client) reloadBudgets(s *snapshot, now time.Time) {
	for scope, b := range s.budgets {
		policy, overlay := c.compile(s, scope)
		if policy.Extras == nil || !policy.Extras.BudgetShared {
			delete(s.budgets, scope)
			continue
		}
		b.Reload(policy, overlay, c.instant(now))
	}
}
