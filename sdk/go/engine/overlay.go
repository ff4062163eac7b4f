// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"slices"
	"time"
)

// Effects are what kill switches do to one endpoint on one instance at one moment. Shares
// and factors are in millionths; Million restricts nothing.
type Effects struct {
	// Retry is the share of retries that may go out. While ForcedOpen none may.
	Retry int64
	// First is the share of first attempts that may go out.
	First int64
	// Factor scales the budget: ratio, floor, capacity and refill.
	Factor int64
	// ForcedOpen: the breaker is to be treated as open, but for the share First. After the
	// end of the switch First rises to Million while the breaker itself decides again.
	ForcedOpen bool
	// ForcedClosed: the breaker lets everything through. Never together with ForcedOpen.
	ForcedClosed bool
	HedgingOff   bool

	// The switches behind the effects; nil where there is none.
	RetryBy, FirstBy, FactorBy, ClosedBy, HedgingBy *Switch
}

// NoEffects returns the effects of no kill switch at all.
func NoEffects() Effects { return Effects{Retry: Million, First: Million, Factor: Million} }

// Overlay is what the kill switches do to one endpoint on one instance over time. The zero
// Overlay does nothing. Immutable.
type Overlay struct {
	parts []part
}

// part is one switch with its curve on this instance.
type part struct {
	sw *Switch
	// from and to bound the ramp after the end: nothing is back before from, all at to.
	from, to time.Time
}

// Compose returns the overlay of switches for an endpoint of criticality crit on an
// instance. Their order does not matter. A switch that does not select the endpoint or the
// instance has no part in it, nor has a drill: an instance that takes part in drills clears
// Drill on its copies. The switches must not be changed afterwards.
func Compose(switches []Switch, endpoint Scope, crit Criticality, instance string) Overlay {
	var o Overlay
	for i := range switches {
		if sw := &switches[i]; sw.Selects(endpoint, crit, instance) {
			from, to := sw.ramp(instance)
			o.add(part{sw: sw, from: from, to: to})
		}
	}
	return o
}

// add keeps the parts that can matter: one whose every effect another outdoes for as long
// as it lasts is left out, so that evaluation stays cheap under many switches.
func (o *Overlay) add(p part) {
	for i := range o.parts {
		if o.parts[i].outdoes(&p) {
			return
		}
	}
	o.parts = append(slices.DeleteFunc(o.parts, func(old part) bool { return p.outdoes(&old) }), p)
}

// outdoes reports whether p is at least as strict as other at every moment and is the one
// to be named where both are equally strict.
func (p *part) outdoes(other *part) bool {
	return p.sw.Action == other.sw.Action &&
		p.sw.floor() <= other.sw.floor() &&
		!p.from.Before(other.from) && !p.to.Before(other.to) &&
		p.sw.named(other.sw)
}

// named reports whether sw rather than other is named for an effect that both have: the
// one that ends later, then the one with the smaller id.
func (sw *Switch) named(other *Switch) bool {
	if c := sw.Ends.Compare(other.Ends); c != 0 {
		return c > 0
	}
	return sw.ID <= other.ID
}

// floor is the share or factor while the switch is active.
func (sw *Switch) floor() int64 {
	switch sw.Action {
	case TightenBudget:
		return sw.Factor
	case ForceOpen:
		return sw.Admit
	default:
		return 0
	}
}

// Selects reports whether the switch acts on an endpoint of criticality crit on an
// instance, leaving time aside.
func (sw *Switch) Selects(endpoint Scope, crit Criticality, instance string) bool {
	if sw.Drill || !sw.Scope.Contains(endpoint) {
		return false
	}
	for _, except := range sw.Except {
		if except.Contains(endpoint) {
			return false
		}
	}
	if crit == CriticalityUnspecified {
		crit = Standard
	}
	if sw.Criticality != CriticalityUnspecified && crit > sw.Criticality {
		return false
	}
	return sw.Percent >= 100 || instanceHash(sw.ID, instance)%100 < uint64(max(sw.Percent, 0))
}

// ramp returns when the effects begin to fade on an instance and when they are gone. Each
// instance starts at its own moment in the first half of Restore and takes half of it.
func (sw *Switch) ramp(instance string) (from, to time.Time) {
	if sw.Restore <= 0 || !sw.ramps() {
		return sw.Ends, sw.Ends
	}
	half := sw.Restore / 2
	delay, _ := bits.Mul64(instanceHash(sw.ID, instance), uint64(half))
	from = sw.Ends.Add(time.Duration(delay))
	return from, from.Add(sw.Restore - half)
}

// ramps reports whether the effects fade; a breaker or hedging that is released just
// decides again.
func (sw *Switch) ramps() bool {
	return sw.Action == DisableRetries || sw.Action == TightenBudget || sw.Action == ForceOpen
}

// Share returns the share, in millionths, of what the switch took away that is back on an
// instance at now: 0 while it is active, rising to Million over its Restore after the end.
func Share(sw *Switch, instance string, now time.Time) int64 {
	p := part{sw: sw}
	p.from, p.to = sw.ramp(instance)
	return p.share(now)
}

func (p *part) share(now time.Time) int64 {
	if !now.Before(p.to) {
		return Million
	}
	elapsed := now.Sub(p.from)
	if elapsed <= 0 {
		return 0
	}
	// elapsed < to − from, so the quotient is below Million and fits.
	hi, lo := bits.Mul64(uint64(elapsed), Million)
	q, _ := bits.Div64(hi, lo, uint64(p.to.Sub(p.from)))
	return int64(q)
}

// Empty reports whether the overlay never does anything.
func (o *Overlay) Empty() bool { return len(o.parts) == 0 }

// At returns the effects at now. It does not allocate; safe for concurrent use.
func (o *Overlay) At(now time.Time) Effects {
	e := NoEffects()
	for i := range o.parts {
		o.parts[i].apply(&e, now)
	}
	if e.ForcedOpen {
		e.ForcedClosed, e.ClosedBy = false, nil
	}
	return e
}

func (p *part) apply(e *Effects, now time.Time) {
	share := p.share(now)
	if share == Million {
		return
	}
	active := now.Before(p.sw.Ends)
	value := between(p.sw.floor(), share)
	switch p.sw.Action {
	case DisableRetries:
		lower(&e.Retry, &e.RetryBy, value, p.sw)
	case TightenBudget:
		lower(&e.Factor, &e.FactorBy, value, p.sw)
	case ForceOpen:
		lower(&e.First, &e.FirstBy, value, p.sw)
		e.ForcedOpen = e.ForcedOpen || active
	case ForceClosed:
		e.ForcedClosed = true
		name(&e.ClosedBy, p.sw)
	case DisableHedging:
		e.HedgingOff = true
		name(&e.HedgingBy, p.sw)
	}
}

// between returns floor + (Million − floor) × share.
func between(floor, share int64) int64 {
	return floor + (Million-floor)*share/Million
}

func lower(have *int64, by **Switch, value int64, sw *Switch) {
	switch {
	case value < *have:
		*have, *by = value, sw
	case value == *have:
		name(by, sw)
	}
}

func name(by **Switch, sw *Switch) {
	if *by == nil || sw.named(*by) {
		*by = sw
	}
}

// NextChange returns the next moment after now at which an effect ends, starts to fade or
// is gone. It reports false when nothing is left to change.
func (o *Overlay) NextChange(now time.Time) (time.Time, bool) {
	var next time.Time
	found := false
	for i := range o.parts {
		p := &o.parts[i]
		for _, at := range [...]time.Time{p.sw.Ends, p.from, p.to} {
			if at.After(now) && (!found || at.Before(next)) {
				next, found = at, true
			}
		}
	}
	return next, found
}
