// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"
)

// BreakerState is what a breaker does with attempts.
type BreakerState uint8

// States of a breaker. Forced states come from kill switches and hide the state that the
// breaker itself is in, which goes on below them.
const (
	BreakerClosed BreakerState = iota
	BreakerOpen
	BreakerHalfOpen
	BreakerForcedOpen
	BreakerForcedClosed
)

func (s BreakerState) String() string {
	return [...]string{"closed", "open", "half-open", "forced-open", "forced-closed"}[s]
}

// Rule is the rule that opened a breaker.
type Rule uint8

// Rules of breakers.
const (
	RuleNone Rule = iota
	RuleConsecutive
	RuleRatio
	RuleSlow
)

func (r Rule) String() string { return [...]string{"", "consecutive", "ratio", "slow"}[r] }

// firstShare is what a breaker admits right after it has closed.
const firstShare = Million / 10

// breaker is the breaker of one endpoint, without the forced states. Guarded by
// Endpoint.mu. Every method but fit expects advance to have been called for now.
type breaker struct {
	state BreakerState // closed, open or half-open
	rule  Rule         // that opened it last
	// generation grows with each change of state; results of an earlier one do not count.
	generation  uint32
	consecutive uint32
	ratio, slow *window // nil while their rule is off

	// while open, and until it closes
	opened, until Instant
	repeats       int    // times in a row that it opened again from half-open
	stretch       uint64 // the random number behind the jitter of until

	// while half-open
	probes    []probe
	nextProbe uint32
	succeeded int

	// while closed: when it closed; recovering until the admitted share is whole again
	closed     Instant
	recovering bool
}

// probe is an attempt let through while half-open.
type probe struct {
	id      uint32 // never 0
	started Instant
}

func newBreaker(p *BreakerPolicy, now Instant) breaker {
	return breaker{
		ratio: windowIf(p.Enabled && p.Ratio.Enabled, p.Ratio.Window, now),
		slow:  windowIf(p.Enabled && p.Slow.Enabled, p.Slow.Window, now),
	}
}

func windowIf(on bool, length time.Duration, now Instant) *window {
	if !on {
		return nil
	}
	w := newWindow(length, now)
	return &w
}

// advance brings windows and state up to now: what time alone changes. attempt is the
// timeout of an attempt, 0 for none: a probe that outlives it has failed; one that outlives
// ProbeTimeout gives its slot back.
func (b *breaker) advance(p *BreakerPolicy, attempt time.Duration, now Instant, random func() uint64) {
	for _, w := range [...]*window{b.ratio, b.slow} {
		if w != nil {
			w.advance(now)
		}
	}
	for {
		switch {
		case b.state == BreakerClosed && b.recovering && now.Sub(b.closed) >= p.RecoverOver:
			b.recovering = false
		case b.state == BreakerOpen && now >= b.until:
			b.enter(BreakerHalfOpen)
		case b.state == BreakerHalfOpen && attempt > 0 && attempt <= p.HalfOpen.ProbeTimeout &&
			len(b.probes) > 0 && now.Sub(b.probes[0].started) >= attempt:
			b.reopen(p, b.probes[0].started.Add(attempt), random)
			continue // it may be half-open again by now
		case b.state == BreakerHalfOpen:
			b.probes = slices.DeleteFunc(b.probes, func(pr probe) bool {
				return now.Sub(pr.started) >= p.HalfOpen.ProbeTimeout
			})
		}
		return
	}
}

func (b *breaker) enter(s BreakerState) {
	b.state = s
	b.generation++
	b.probes = b.probes[:0]
	b.succeeded, b.consecutive, b.recovering = 0, 0, false
}

// share is the share, in millionths, of attempts that a closed breaker admits.
func (b *breaker) share(p *BreakerPolicy, now Instant) int64 {
	if !b.recovering || p.RecoverOver <= 0 {
		return Million
	}
	return min(Million, firstShare+scale(int64(now.Sub(b.closed)), Million-firstShare, int64(p.RecoverOver)))
}

// admit decides on an attempt and returns its probe, 0 if it is none.
func (b *breaker) admit(p *BreakerPolicy, now Instant, random func() uint64) (probeID uint32, ok bool) {
	switch b.state {
	case BreakerClosed:
		share := b.share(p, now)
		return 0, share == Million || chance(random(), share)
	case BreakerHalfOpen:
		if len(b.probes) >= p.HalfOpen.Probes {
			return 0, false
		}
		if b.nextProbe++; b.nextProbe == 0 {
			b.nextProbe++
		}
		b.probes = append(b.probes, probe{b.nextProbe, now})
		return b.nextProbe, true
	default:
		return 0, false
	}
}

// report is how an attempt ended.
type report struct {
	generation uint32
	probe      uint32
	class      Class
	took       time.Duration
	hedge      bool // sent beside another one
}

// settle takes the result of an attempt that was admitted.
func (b *breaker) settle(p *BreakerPolicy, r report, now Instant, random func() uint64) {
	if r.generation != b.generation {
		return
	}
	slow := p.Slow.Enabled && r.took > p.Slow.LongerThan
	switch b.state {
	case BreakerClosed:
		b.count(p, r.class, slow, now, random)
	case BreakerHalfOpen:
		i := slices.IndexFunc(b.probes, func(pr probe) bool { return pr.id == r.probe })
		if i < 0 {
			return
		}
		b.probes = slices.Delete(b.probes, i, i+1)
		switch {
		case r.class == Failure || slow && r.class == Success:
			b.reopen(p, now, random)
		case r.class == Success:
			if b.succeeded++; b.succeeded >= p.HalfOpen.CloseAfter {
				b.close(p, now)
			}
		}
	default:
	}
}

// count takes the result of an attempt while closed. Only a failure may trip the rules
// about failures, and only a slow attempt the rule about slow ones.
func (b *breaker) count(p *BreakerPolicy, class Class, slow bool, now Instant, random func() uint64) {
	if class == Neutral {
		return
	}
	failed := class == Failure
	if failed {
		b.consecutive++
	} else {
		b.consecutive = 0
	}
	if b.ratio != nil {
		b.ratio.add(1, bit(failed))
	}
	if b.slow != nil {
		b.slow.add(1, bit(slow))
	}
	switch {
	case failed && p.Consecutive.Enabled && int64(b.consecutive) >= int64(p.Consecutive.Failures):
		b.open(p, RuleConsecutive, now, random)
	case failed && b.ratio != nil && b.ratio.reaches(p.Ratio.MinCalls, p.Ratio.Failures):
		b.open(p, RuleRatio, now, random)
	case slow && b.slow != nil && b.slow.reaches(p.Slow.MinCalls, p.Slow.Ratio):
		b.open(p, RuleSlow, now, random)
	}
}

// healthy counts n quick successes while closed.
func (b *breaker) healthy(n uint32) {
	if n == 0 || b.state != BreakerClosed {
		return
	}
	b.consecutive = 0
	for _, w := range [...]*window{b.ratio, b.slow} {
		if w != nil {
			w.add(n, 0)
		}
	}
}

// reaches reports whether there are at least least events and the marked ones make up share.
func (w *window) reaches(least int, share int64) bool {
	return w.sumAll >= uint64(least) && w.sumMarked*Million >= w.sumAll*uint64(share)
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (b *breaker) open(p *BreakerPolicy, rule Rule, at Instant, random func() uint64) {
	b.enter(BreakerOpen)
	b.rule, b.opened, b.stretch = rule, at, random()
	b.until = at.Add(b.openFor(p))
}

// reopen opens after a failed probe, for longer if the policy says so.
func (b *breaker) reopen(p *BreakerPolicy, at Instant, random func() uint64) {
	b.repeats++
	b.open(p, b.rule, at, random)
}

// openFor is the time from opening to the first probe: the rule's, grown with each failed
// probe, plus a random share.
func (b *breaker) openFor(p *BreakerPolicy) time.Duration {
	base := p.openFor(b.rule)
	d := int64(base)
	for i := 0; i < b.repeats && d < int64(p.Reopen.Max) && p.Reopen.Multiplier > Million; i++ {
		d = scale(d, p.Reopen.Multiplier, Million)
	}
	d = max(int64(base), min(d, int64(p.Reopen.Max)))
	return time.Duration(d + uniform(b.stretch, shareOf(d, p.Reopen.Jitter)))
}

func (p *BreakerPolicy) openFor(r Rule) time.Duration {
	switch r {
	case RuleRatio:
		return p.Ratio.OpenFor
	case RuleSlow:
		return p.Slow.OpenFor
	default:
		return p.Consecutive.OpenFor
	}
}

func (b *breaker) close(p *BreakerPolicy, now Instant) {
	b.enter(BreakerClosed)
	for _, w := range [...]*window{b.ratio, b.slow} {
		if w != nil {
			w.clear()
		}
	}
	b.repeats, b.closed, b.recovering = 0, now, p.RecoverOver > 0
}

// fit makes the breaker that of p. An edit never closes one that is open: it keeps its end,
// or takes the new one if that is sooner. A window of another length starts empty. What is
// switched off is forgotten.
func (b *breaker) fit(old, p *BreakerPolicy, now Instant) {
	if !p.Enabled {
		if old.Enabled {
			generation, nextProbe := b.generation+1, b.nextProbe
			*b = newBreaker(p, now)
			b.generation, b.nextProbe = generation, nextProbe
		}
		return
	}
	if !p.Ratio.Enabled || b.ratio == nil || p.Ratio.Window != old.Ratio.Window {
		b.ratio = windowIf(p.Ratio.Enabled, p.Ratio.Window, now)
	}
	if !p.Slow.Enabled || b.slow == nil || p.Slow.Window != old.Slow.Window {
		b.slow = windowIf(p.Slow.Enabled, p.Slow.Window, now)
	}
	if b.state == BreakerOpen {
		b.until = min(b.until, b.opened.Add(b.openFor(p)))
	}
}

// ends is the moment up to which nothing changes by time alone while it is closed.
func (b *breaker) ends() Instant {
	end := Never
	for _, w := range [...]*window{b.ratio, b.slow} {
		if w != nil {
			end = min(end, w.ends())
		}
	}
	return end
}
