// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Compile turns a merged policy into the form of the hot path. It is total: a value
// outside its bounds, which validation would have refused, is pulled to the nearest bound.
func Compile(e Effective) Policy {
	c := compiler{e}
	p := Policy{
		Observe:     c.flag(Observe),
		MaxAttempts: c.count(MaxAttempts),
		Criticality: e.Criticality,
		Backoff: BackoffPolicy{
			Base:       c.duration(BackoffBase),
			Max:        c.duration(BackoffMax),
			Multiplier: c.number(BackoffMultiplier),
			Jitter:     Jitter(max(0, slices.Index(jitterWords, c.word(BackoffJitter)))),
		},
		Timeouts: TimeoutPolicy{Attempt: c.duration(TimeoutsAttempt), Overall: c.duration(TimeoutsOverall)},
		RetryOn:  compileRetryOn(c),
		RetryAfter: RetryAfterPolicy{
			Honor:  c.flag(RetryAfterHonor),
			Max:    c.duration(RetryAfterMax),
			Jitter: c.number(RetryAfterJitter),
		},
		Idempotency: compileIdempotency(c),
		Budget:      compileBudget(c),
		Breaker:     compileBreaker(c),
		Extras:      compileExtras(c),
	}
	p.Backoff.Base = min(p.Backoff.Base, p.Backoff.Max)
	return p
}

// compiler reads effective values within their bounds; an absent value reads as zero.
type compiler struct{ e Effective }

func (c compiler) number(f Field) int64 {
	r := c.e.At(f)
	if !r.Present() {
		return 0
	}
	if s := f.Spec(); s.Bounded {
		return min(max(r.Value.Int, s.Min), s.Max)
	}
	return r.Value.Int
}

func (c compiler) flag(f Field) bool              { return c.number(f) != 0 }
func (c compiler) count(f Field) int              { return int(c.number(f)) }
func (c compiler) duration(f Field) time.Duration { return time.Duration(c.number(f)) }
func (c compiler) word(f Field) string            { return c.e.At(f).Value.Text }
func (c compiler) set(f Field) []string           { return c.e.At(f).Value.Set }

func compileRetryOn(c compiler) RetryOn {
	var r RetryOn
	for _, item := range c.set(RetryOnHTTP) {
		if item == statusClass5xx {
			for status := 500; status <= 599; status++ {
				r.add(status)
			}
		} else if status, err := strconv.Atoi(item); err == nil && retryableStatus(status) {
			r.add(status)
		}
	}
	for _, item := range c.set(RetryOnGRPC) {
		if code, ok := GRPCCode(item); ok {
			r.grpc |= 1 << code
		}
	}
	for _, item := range c.set(RetryOnNetwork) {
		if i := slices.Index(networkErrors, item); i >= 0 {
			r.Network |= 1 << i
		}
	}
	return r
}

func (r *RetryOn) add(status int) { r.http[(status-100)/64] |= 1 << ((status - 100) % 64) }

func compileIdempotency(c compiler) IdempotencyPolicy {
	p := IdempotencyPolicy{
		Key: KeyPolicy{
			Enabled:    c.flag(IdempotencyKeyEnabled),
			Header:     c.word(IdempotencyKeyHeader),
			Auto:       c.flag(IdempotencyKeyAuto),
			Quoted:     c.word(IdempotencyKeyFormat) == "quoted",
			Remembered: c.duration(IdempotencyKeyRemembered),
		},
		OnlyIfNotSent: c.word(IdempotencyOtherwise) == "only-if-not-sent",
	}
	var other []string
	for _, m := range c.set(IdempotencyMethods) {
		if bit := methodBit(m); bit != 0 {
			p.methods |= bit
		} else {
			other = append(other, m)
		}
	}
	p.other = strings.Join(other, " ")
	return p
}

func compileBudget(c compiler) BudgetPolicy {
	p := BudgetPolicy{
		Ratio:               c.number(BudgetRatio),
		Window:              c.duration(BudgetWindow),
		MinRetriesPerSecond: c.number(BudgetMinRetriesPerSecond),
		Tokens: TokenPolicy{
			Enabled:         c.flag(BudgetTokensEnabled),
			Capacity:        c.number(BudgetTokensCapacity),
			RefillPerSecond: c.number(BudgetTokensRefillPerSecond),
			SuccessCredit:   c.number(BudgetTokensSuccessCredit),
			RetryCost:       c.number(BudgetTokensRetryCost),
		},
		SuccessGate: GatePolicy{
			Enabled:        c.flag(BudgetSuccessGateEnabled),
			Window:         c.count(BudgetSuccessGateWindow),
			MinSuccessRate: c.number(BudgetSuccessGateMinSuccessRate),
			MinCalls:       c.count(BudgetSuccessGateMinCalls),
			MaxAge:         c.duration(BudgetSuccessGateMaxAge),
		},
	}
	p.SuccessGate.MinCalls = min(p.SuccessGate.MinCalls, p.SuccessGate.Window)
	return p
}

func compileBreaker(c compiler) BreakerPolicy {
	p := BreakerPolicy{
		Consecutive: ConsecutiveRule{
			Enabled:  c.flag(BreakerConsecutiveEnabled),
			Failures: c.count(BreakerConsecutiveFailures),
			OpenFor:  c.duration(BreakerConsecutiveOpenFor),
		},
		Ratio: RatioRule{
			Enabled:  c.flag(BreakerRatioEnabled),
			Failures: c.number(BreakerRatioFailures),
			Window:   c.duration(BreakerRatioWindow),
			MinCalls: c.count(BreakerRatioMinCalls),
			OpenFor:  c.duration(BreakerRatioOpenFor),
		},
		Slow: SlowRule{
			Enabled:    c.flag(BreakerSlowEnabled),
			LongerThan: c.duration(BreakerSlowLongerThan),
			Ratio:      c.number(BreakerSlowRatio),
			Window:     c.duration(BreakerSlowWindow),
			MinCalls:   c.count(BreakerSlowMinCalls),
			OpenFor:    c.duration(BreakerSlowOpenFor),
		},
		HalfOpen: HalfOpenPolicy{
			Probes:       c.count(BreakerHalfOpenProbes),
			CloseAfter:   c.count(BreakerHalfOpenCloseAfter),
			ProbeTimeout: c.duration(BreakerHalfOpenProbeTimeout),
		},
		Reopen: ReopenPolicy{
			Multiplier: c.number(BreakerReopenMultiplier),
			Max:        c.duration(BreakerReopenMax),
			Jitter:     c.number(BreakerReopenJitter),
		},
		RecoverOver: c.duration(BreakerRecoverOver),
	}
	p.HalfOpen.CloseAfter = min(p.HalfOpen.CloseAfter, p.HalfOpen.Probes)
	p.Enabled = c.flag(BreakerEnabled) && (p.Consecutive.Enabled || p.Ratio.Enabled || p.Slow.Enabled)
	return p
}
