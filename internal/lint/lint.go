// SPDX-License-Identifier: Apache-2.0

// Package lint gives advice on policies: findings P1xx. It never refuses anything and does
// no I/O.
package lint

import (
	"fmt"
	"math"
	"time"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Level is how much a finding matters.
type Level string

// Levels of findings.
const (
	LevelError   Level = "error"
	LevelWarning Level = "warning"
	LevelInfo    Level = "info"
)

// Finding is one piece of advice about the document at Scope.
type Finding struct {
	Code    string // P1xx
	Level   Level
	Scope   engine.Scope
	Path    string // for example "spec.backoff.jitter"
	Message string
}

// Facts are what is known of the traffic under a scope; zero means unknown.
type Facts struct {
	Instances      int
	CallsPerSecond float64
}

// Check returns the findings about the document at scope in set, by code. A finding needs
// the document to have a part in it: what it only inherits is not held against it.
func Check(set policy.Set, scope engine.Scope, facts Facts) []Finding {
	p, ok := set[scope]
	if !ok {
		return nil
	}
	c := checker{p: p, path: policy.Path(set, scope), facts: facts}
	c.e = engine.Merge(scope, c.path)
	for _, check := range []func(*checker){
		(*checker).ratioAboveCeiling, (*checker).floorAddsLoad, (*checker).unsafeRetried, (*checker).noJitter,
		(*checker).tokensAboveRatio, (*checker).gateOff, (*checker).retries500, (*checker).deadlineTooShort,
		(*checker).slowUnreachable, (*checker).queueOutlivesKeys, (*checker).sameAsInherited,
	} {
		check(&c)
	}
	return c.found
}

type checker struct {
	p     *policy.Policy
	path  []engine.Document
	e     engine.Effective
	facts Facts
	found []Finding
}

func (c *checker) add(code string, level Level, f engine.Field, format string, args ...any) {
	path := ""
	if f != 0 {
		path = "spec." + f.Path()
	}
	c.found = append(c.found, Finding{Code: code, Level: level, Scope: c.p.Scope, Path: path, Message: fmt.Sprintf(format, args...)})
}

// sets returns the first of fields that the document itself sets, 0 if none.
func (c *checker) sets(fields ...engine.Field) engine.Field {
	for _, f := range fields {
		if _, ok := c.p.Settings[f]; ok {
			return f
		}
	}
	return 0
}

func (c *checker) on(f engine.Field) bool                { return c.e.Value(f).True() }
func (c *checker) duration(f engine.Field) time.Duration { return c.e.Value(f).Duration() }

func (c *checker) ratioAboveCeiling() {
	r := c.e.At(engine.BudgetRatio)
	if c.sets(engine.BudgetRatio) != 0 && r.Clipped != nil {
		c.add("P101", LevelError, engine.BudgetRatio, "budget.ratio %s is above the ceiling %s of %s, which holds", r.Clipped, r.Value, r.Ceiling.From)
	}
}

func (c *checker) floorAddsLoad() {
	floor := c.e.Value(engine.BudgetMinRetriesPerSecond).Float()
	if c.sets(engine.BudgetMinRetriesPerSecond) == 0 || c.facts.Instances == 0 || c.facts.CallsPerSecond <= 0 {
		return
	}
	if share := floor * float64(c.facts.Instances) / c.facts.CallsPerSecond; share > 0.10 {
		c.add("P102", LevelWarning, engine.BudgetMinRetriesPerSecond, "%s/s × %d instances = +%.1f %% of %.0f calls/s",
			c.e.Value(engine.BudgetMinRetriesPerSecond), c.facts.Instances, 100*share, c.facts.CallsPerSecond)
	}
}

func (c *checker) unsafeRetried() {
	f := c.sets(engine.IdempotencyMethods, engine.MatchHTTPMethod, engine.IdempotencyKeyEnabled)
	if f == 0 || c.on(engine.IdempotencyKeyEnabled) || c.e.Value(engine.MaxAttempts).Int < 2 {
		return
	}
	methods := c.e.Value(engine.IdempotencyMethods)
	candidates := []string{"POST", "PATCH"}
	if own := c.e.Value(engine.MatchHTTPMethod).Text; own != "" {
		candidates = []string{own}
	}
	for _, m := range candidates {
		if (m == "POST" || m == "PATCH") && methods.Has(m) {
			c.add("P103", LevelError, f, "%s is repeated without an idempotency key: it may happen twice", m)
		}
	}
}

func (c *checker) noJitter() {
	if c.sets(engine.BackoffJitter) != 0 && c.e.Value(engine.BackoffJitter).Text == "none" {
		c.add("P104", LevelWarning, engine.BackoffJitter, "backoff.jitter none: all callers retry at the same moment")
	}
}

func (c *checker) tokensAboveRatio() {
	f := c.sets(engine.BudgetTokensSuccessCredit, engine.BudgetTokensRetryCost, engine.BudgetTokensEnabled, engine.BudgetTokensCapacity, engine.BudgetRatio)
	if f == 0 || !c.on(engine.BudgetTokensEnabled) {
		return
	}
	credit, cost, ratio := c.e.Value(engine.BudgetTokensSuccessCredit), c.e.Value(engine.BudgetTokensRetryCost), c.e.Value(engine.BudgetRatio)
	switch {
	case cost.Int == 0:
		c.add("P105", LevelWarning, f, "budget.tokens.retryCost 0: the bucket never stops a retry")
	case credit.Float()/cost.Float() > ratio.Float()+1e-9:
		c.add("P105", LevelWarning, f, "tokens pay for %s retries per success, budget.ratio allows %s", format(credit.Float()/cost.Float()), ratio)
	}
}

func (c *checker) gateOff() {
	if c.sets(engine.BudgetSuccessGateEnabled) != 0 && !c.on(engine.BudgetSuccessGateEnabled) {
		c.add("P106", LevelWarning, engine.BudgetSuccessGateEnabled, "the success gate is off: retries go on while most calls fail")
	}
}

func (c *checker) retries500() {
	statuses := c.e.Value(engine.RetryOnHTTP)
	if c.sets(engine.RetryOnHTTP) != 0 && (statuses.Has("500") || statuses.Has("5xx")) {
		c.add("P107", LevelWarning, engine.RetryOnHTTP, "500 is retried: it often means a bug that another attempt meets again")
	}
}

func (c *checker) deadlineTooShort() {
	f := c.sets(engine.TimeoutsOverall, engine.TimeoutsAttempt, engine.MaxAttempts, engine.BackoffBase, engine.BackoffMax, engine.BackoffMultiplier)
	overall := c.duration(engine.TimeoutsOverall)
	attempts := c.e.Value(engine.MaxAttempts).Int
	if f == 0 || overall == 0 || attempts < 2 {
		return
	}
	if needs := c.longest(attempts); needs > overall {
		c.add("P110", LevelWarning, engine.TimeoutsOverall, "timeouts.overall %s ends before attempt %d can finish (needs %s)",
			engine.FormatDuration(overall), attempts, engine.FormatDuration(needs.Round(time.Millisecond)))
	}
}

// longest returns how long a call takes whose attempts all run into their time-out, with
// the longest waits between them. Attempts without a time-out count as none.
func (c *checker) longest(attempts int64) time.Duration {
	total := float64(attempts) * float64(c.duration(engine.TimeoutsAttempt))
	wait, longest := float64(c.duration(engine.BackoffBase)), float64(c.duration(engine.BackoffMax))
	for range attempts - 1 {
		total += min(wait, longest)
		wait = min(wait*c.e.Value(engine.BackoffMultiplier).Float(), longest)
	}
	return time.Duration(min(total, math.MaxInt64/2))
}

func (c *checker) slowUnreachable() {
	f := c.sets(engine.BreakerSlowLongerThan, engine.BreakerSlowEnabled, engine.TimeoutsAttempt)
	attempt, slow := c.duration(engine.TimeoutsAttempt), c.duration(engine.BreakerSlowLongerThan)
	if f != 0 && c.on(engine.BreakerSlowEnabled) && attempt > 0 && slow >= attempt {
		c.add("P111", LevelWarning, f, "breaker.slow.longerThan %s can never be reached: timeouts.attempt is %s",
			engine.FormatDuration(slow), engine.FormatDuration(attempt))
	}
}

func (c *checker) queueOutlivesKeys() {
	f := c.sets(engine.OfflineQueueTTL, engine.OfflineQueueEnabled, engine.IdempotencyKeyRemembered)
	ttl, remembered := c.duration(engine.OfflineQueueTTL), c.duration(engine.IdempotencyKeyRemembered)
	if f != 0 && c.on(engine.OfflineQueueEnabled) && ttl >= remembered {
		c.add("P114", LevelWarning, f, "offlineQueue.ttl %s: the service forgets keys after %s, so that a late call may happen twice",
			engine.FormatDuration(ttl), engine.FormatDuration(remembered))
	}
}

func (c *checker) sameAsInherited() {
	for f := range c.p.Settings {
		if f.Spec().Own || c.e.At(f).Clipped != nil {
			return
		}
	}
	if engine.Merge(c.p.Scope, c.path[:len(c.path)-1]).Equal(c.e) {
		c.add("P115", LevelInfo, 0, "the policy is what %s inherits anyway", c.p.Scope)
	}
}

// format writes a number with at most three decimals.
func format(f float64) string {
	v, ok := engine.Decimal(math.Round(f*1000) / 1000)
	if !ok {
		return fmt.Sprint(f)
	}
	return v.String()
}
