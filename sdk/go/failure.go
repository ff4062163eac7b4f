// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"fmt"
	"strconv"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// failure describes decision d of now, after which the call makes no further attempt. It
// writes no text: under a storm, most errors are never read.
func (k *call) failure(d *engine.Decision, last error, now engine.Instant) *Error {
	e := &Error{
		Endpoint: k.ep.name, Code: Code(d.Code), Attempts: k.sends(), Elapsed: now.Sub(k.began),
		RetryAt: k.client.wall(d.RetryAt), Revision: k.revision, Err: last,
		why: why{ep: k.ep, policy: k.ep.Policy(), rule: d.Rule, asked: d.Asked, wait: d.RetryAt.Sub(now)},
	}
	if d.By != nil {
		s := shown(d.By)
		e.Switch = &s
	} else if e.Code == CodeBreaker {
		e.Host = k.engine.Host()
	}
	e.Scope = k.client.decider(k.ep, d)
	return e
}

// why is what the text of an Error is made of beside its exported fields.
type why struct {
	text   string         // instead of what follows from the policy
	ep     *endpoint      // nil for an Error that was not made here
	policy *engine.Policy // nil for an Error that was not made here
	rule   engine.Rule
	asked  time.Duration // by the server
	wait   time.Duration // until RetryAt, if that is set
}

// detail says what the code alone does not.
func (w *why) detail(code Code) string {
	p := w.policy
	if w.text != "" || p == nil {
		return w.text
	}
	switch code {
	case CodeBreaker:
		return ruleText(w.rule, &p.Breaker)
	case CodeConcurrency:
		return concurrencyText(p)
	case CodeBudget:
		return budgetText(p)
	case CodeGate:
		g := &p.Budget.SuccessGate
		return fmt.Sprintf("under %s of the last %d calls succeeded", percent(g.MinSuccessRate), g.Window)
	case CodeRetryAfter:
		if w.asked <= p.RetryAfter.Max {
			return "server asks for no retry"
		}
		return fmt.Sprintf("server asks %s, limit %s", w.asked, p.RetryAfter.Max)
	case CodeNotSafe:
		return "set an Idempotency-Key or policyd.Idempotent(true)"
	case CodeBody:
		return "the request has no GetBody and is longer than what is kept for a repeat, or GetBody failed"
	case CodeKeyConflict:
		return "the key was used for another request"
	case CodeDeadline:
		return "next try would pass the limit"
	default:
		return ""
	}
}

// budgetText names every limit that may have refused: a Decision does not say which did.
func budgetText(p *engine.Policy) string {
	if p.Extras != nil && p.Extras.BudgetShared {
		return "of the service"
	}
	text := fmt.Sprintf("%s of calls in %s", percent(p.Budget.Ratio), engine.FormatDuration(p.Budget.Window))
	if p.Budget.Tokens.Enabled {
		text += ", or tokens"
	}
	return text
}

// ruleText says what opened a breaker: "rule consecutive: 5 failures".
func ruleText(r engine.Rule, p *engine.BreakerPolicy) string {
	switch r {
	case engine.RuleConsecutive:
		return "rule consecutive: " + plural(p.Consecutive.Failures, "failure")
	case engine.RuleRatio:
		return fmt.Sprintf("rule ratio: %s failed in %s", percent(p.Ratio.Failures), engine.FormatDuration(p.Ratio.Window))
	case engine.RuleSlow:
		return fmt.Sprintf("rule slow: %s over %s", percent(p.Slow.Ratio), engine.FormatDuration(p.Slow.LongerThan))
	default:
		return ""
	}
}

// concurrencyText says what a call ran into: "64 calls at once, 10 waiting".
func concurrencyText(p *engine.Policy) string {
	if p.Extras == nil {
		return ""
	}
	c := &p.Extras.Concurrency
	if c.Queue == 0 {
		return plural(c.Limit, "call") + " at once"
	}
	return fmt.Sprintf("%s at once, %d waiting", plural(c.Limit, "call"), c.Queue)
}

// percent writes a share of millionths: 10 %, 12.5 %.
func percent(share int64) string {
	return strconv.FormatFloat(float64(share)/(engine.Million/100), 'f', -1, 64) + " %"
}

// decisive is the setting whose document is named as the one that decided.
func decisive(d *engine.Decision) engine.Field {
	switch Code(d.Code) {
	case CodeBreaker:
		switch d.Rule {
		case engine.RuleConsecutive:
			return engine.BreakerConsecutiveFailures
		case engine.RuleRatio:
			return engine.BreakerRatioFailures
		case engine.RuleSlow:
			return engine.BreakerSlowRatio
		default:
			return engine.BreakerEnabled
		}
	case CodeConcurrency:
		return engine.ConcurrencyLimit
	case CodeBudget:
		return engine.BudgetRatio
	case CodeGate:
		return engine.BudgetSuccessGateMinSuccessRate
	case CodeDeadline:
		return engine.TimeoutsOverall
	case CodeNotSafe:
		return engine.IdempotencyMethods
	case CodeRetryAfter:
		return engine.RetryAfterMax
	case CodeKeyConflict:
		return engine.IdempotencyKeyEnabled
	default:
		return engine.MaxAttempts
	}
}

// decider returns the scope whose switch or document decided.
func (c *Client) decider(ep *endpoint, d *engine.Decision) string {
	if d.By != nil {
		return string(d.By.Scope)
	}
	field := decisive(d)
	s := c.current.Load()
	for at := c.scopeNow(ep, s); at != ""; at = at.Parent() {
		if doc := s.documents[at]; doc != nil {
			if _, set := doc.Settings[field]; set {
				return string(at)
			}
		}
	}
	return engine.BuiltIn
}

// scopeNow returns whose policies the calls of ep obey. It takes no lock: the scope of an
// endpoint with a name of its own never changes.
func (c *Client) scopeNow(ep *endpoint, s *snapshot) engine.Scope {
	if !ep.unmatched {
		return ep.scope
	}
	if scope, err := engine.ParseScope(ep.name); err == nil && scope.Level() >= engine.LevelService {
		return scope
	}
	return s.matcher.HTTP("", ep.name, noPath).Scope
}
