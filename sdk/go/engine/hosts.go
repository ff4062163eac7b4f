// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"strings"
)

// maxHosts bounds the breakers that an endpoint keeps for its hosts. The host that was not
// called for longest goes first, and starts with a closed breaker if it comes back.
const maxHosts = 1_000

// hosts are the breakers of an endpoint under breaker.per: host. Calls that name no host
// share one. The endpoint's own breaker is then that of hosts not called yet: it counts
// nothing, but it may have been open when the policy came. Guarded by Endpoint.mu.
type hosts struct {
	at             map[string]*hostBreaker
	oldest, newest *hostBreaker
	// generation is that of new breakers. It is above those of all that are gone, so that no
	// result of an attempt counts for another breaker than its own.
	generation uint32
}

// hostBreaker is the breaker of one host.
type hostBreaker struct {
	breaker
	host         string
	reported     BreakerState
	seeded       bool // started as the endpoint's, which was not closed
	gone         bool
	older, newer *hostBreaker
}

// PerHost reports whether there is a breaker for each host.
func (p *Policy) PerHost() bool { return p.Extras != nil && p.Extras.BreakerPerHost }

// host returns the breaker of a host as of now, made at its first use.
func (e *Endpoint) host(name string, now Instant) *hostBreaker {
	l := e.more.hosts
	h := l.at[name]
	switch {
	case h == nil:
		h = &hostBreaker{host: strings.Clone(name), breaker: newBreaker(&e.policy.Load().Breaker, now), seeded: !e.breaker.whole()}
		h.takeOver(&e.breaker)
		h.generation = l.generation
		l.at[h.host] = h
		l.link(h)
		if len(l.at) > maxHosts {
			e.drop(l.oldest)
		}
	case h != l.newest:
		l.unlink(h)
		l.link(h)
	}
	e.move(h, now)
	return h
}

// whole reports whether a breaker lets everything through.
func (b *breaker) whole() bool { return b.state == BreakerClosed && !b.recovering }

// move brings a host's breaker up to now.
func (e *Endpoint) move(h *hostBreaker, now Instant) {
	p := e.policy.Load()
	h.advance(&p.Breaker, p.Timeouts.Attempt, now, e.random)
}

// takeOver gives a breaker the state of another one, not what that has counted.
func (b *breaker) takeOver(o *breaker) {
	b.state, b.rule, b.opened, b.until, b.repeats, b.stretch = o.state, o.rule, o.opened, o.until, o.repeats, o.stretch
	b.closed, b.recovering = o.closed, o.recovering
}

func (l *hosts) link(h *hostBreaker) {
	h.older, h.newer = l.newest, nil
	if l.newest == nil {
		l.oldest = h
	} else {
		l.newest.newer = h
	}
	l.newest = h
}

func (l *hosts) unlink(h *hostBreaker) {
	if h.older == nil {
		l.oldest = h.newer
	} else {
		h.older.newer = h.newer
	}
	if h.newer == nil {
		l.newest = h.older
	} else {
		h.newer.older = h.older
	}
}

// drop forgets a host.
func (e *Endpoint) drop(h *hostBreaker) {
	l := e.more.hosts
	l.unlink(h)
	delete(l.at, h.host)
	h.gone = true
	l.generation = max(l.generation, h.generation+1)
	if h.reported != BreakerClosed {
		e.turned(&BreakerChange{From: h.reported, To: BreakerClosed, Host: h.host})
	}
}

// turned keeps a change until it can be told.
func (e *Endpoint) turned(ch *BreakerChange) {
	last := &e.extra().changes
	for *last != nil {
		last = &(*last).Next
	}
	*last = ch
}

// fitHosts makes the breakers of hosts those of p, once the endpoint's own is. No edit closes
// what is open: a host that was not called yet starts as the endpoint's breaker was, and when
// there is one breaker again, it is as the worst of them, with the earliest end.
func (e *Endpoint) fitHosts(old, p *Policy, now Instant) {
	wants := p.PerHost() && p.Breaker.Enabled
	switch l := e.hosts(); {
	case wants && l == nil:
		e.extra().hosts = &hosts{at: map[string]*hostBreaker{}, generation: e.breaker.generation + 1}
	case wants:
		for h := l.oldest; h != nil; h = h.newer {
			h.fit(&old.Breaker, &p.Breaker, now)
		}
	case l != nil:
		if p.Breaker.Enabled {
			e.breaker.advance(&p.Breaker, p.Timeouts.Attempt, now, e.random)
			e.resetBreaker(p, e.worstOf(l, now), now)
		}
		for l.oldest != nil {
			e.drop(l.oldest)
		}
		e.breaker.generation = max(e.breaker.generation, l.generation)
		e.more.hosts = nil
	}
}

// worstOf returns the breaker that lets least through, that of hosts not called yet included.
func (e *Endpoint) worstOf(l *hosts, now Instant) *breaker {
	worst := &e.breaker
	for h := l.oldest; h != nil; h = h.newer {
		if e.move(h, now); compareBreakers(&h.breaker, worst) < 0 {
			worst = &h.breaker
		}
	}
	return worst
}

// resetBreaker gives the endpoint a breaker that has counted nothing, in the state of
// another one; nil: closed.
func (e *Endpoint) resetBreaker(p *Policy, as *breaker, now Instant) {
	b := newBreaker(&p.Breaker, now)
	b.generation = e.breaker.generation + 1
	if as != nil {
		b.takeOver(as)
	}
	e.breaker = b
}

func (e *Endpoint) hosts() *hosts {
	if e.more == nil {
		return nil
	}
	return e.more.hosts
}

// compareBreakers puts the one that lets less through first; of two that are open, the one
// that ends sooner.
func compareBreakers(a, b *breaker) int {
	rank := func(s BreakerState) int { return [...]int{BreakerClosed: 2, BreakerOpen: 0, BreakerHalfOpen: 1}[s] }
	if c := cmp.Compare(rank(a.state), rank(b.state)); c != 0 || a.state == BreakerHalfOpen {
		return c
	}
	if a.state == BreakerOpen {
		return cmp.Compare(a.until, b.until)
	}
	return cmp.Or(cmp.Compare(bit(b.recovering), bit(a.recovering)), cmp.Compare(b.closed, a.closed))
}

// tick is Endpoint.tick, and brings the breaker of the call's host up to now as well.
func (c *Call) tick(now Instant) Instant {
	now = c.e.tick(now)
	switch {
	case c.e.hosts() == nil:
	case c.host == nil:
		c.host = c.e.host("", now)
	case c.host.gone:
		c.host = c.e.host(c.host.host, now)
	default:
		c.e.move(c.host, now)
	}
	return now
}

// at is tick for a call to host that begins.
func (c *Call) at(host string, now Instant) Instant {
	now = c.e.tick(now)
	if c.e.hosts() != nil {
		c.host = c.e.host(host, now)
	}
	return now
}

// breaker is the one that the call obeys.
func (c *Call) breaker() *breaker {
	if c.e.hosts() == nil {
		return &c.e.breaker
	}
	return &c.host.breaker
}

// Host is the host whose breaker the call obeys, "" for that of the endpoint.
func (c *Call) Host() string {
	if c.host == nil {
		return ""
	}
	return c.host.host
}

// leave is Endpoint.leave, and notes what happened to the breaker of the call's host.
func (c *Call) leave(now Instant, eff *Effects) *BreakerChange {
	if c.e.hosts() != nil {
		c.e.report(c.host, eff)
	}
	return c.e.leave(now, eff)
}

// report notes a change of the state of a host's breaker, unless a switch hides it.
func (e *Endpoint) report(h *hostBreaker, eff *Effects) {
	if h.seeded && h.whole() { // the service is back
		h.seeded = false
		e.resetBreaker(e.policy.Load(), nil, e.latest)
	}
	if h.state == h.reported || eff.ForcedOpen || eff.ForcedClosed {
		return
	}
	change := &BreakerChange{From: h.reported, To: h.state, Host: h.host}
	h.explain(change)
	h.reported = h.state
	e.turned(change)
}

// worst returns the breaker that lets least through, and what those of hosts do that do not
// let everything through, in the same order.
func (e *Endpoint) worst(p *Policy, now Instant, eff *Effects) (*breaker, []HostStatus) {
	l := e.hosts()
	if l == nil {
		return &e.breaker, nil
	}
	var shut []*hostBreaker
	for h := l.oldest; h != nil; h = h.newer {
		e.move(h, now)
		if e.report(h, eff); !h.whole() {
			shut = append(shut, h)
		}
	}
	slices.SortFunc(shut, func(a, b *hostBreaker) int {
		return cmp.Or(compareBreakers(&a.breaker, &b.breaker), strings.Compare(a.host, b.host))
	})
	listed := make([]HostStatus, len(shut))
	for i, h := range shut {
		listed[i] = HostStatus{h.host, h.status(&p.Breaker, now)}
	}
	return e.worstOf(l, now), listed
}

// open opens the breaker, of every host if each has one.
func (e *Endpoint) open(p *BreakerPolicy, rule Rule, now, until Instant) {
	all := []*breaker{&e.breaker}
	if l := e.hosts(); l != nil {
		for h := l.oldest; h != nil; h = h.newer {
			h.seeded = true
			all = append(all, &h.breaker)
		}
	}
	for _, b := range all {
		b.open(p, rule, now, e.random)
		b.until = until
	}
}
