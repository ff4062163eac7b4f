// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// slowBreaker is the obvious model of a breaker: it keeps every result since the last
// closing and counts them anew at each failure. No jitter, no recovery.
type slowBreaker struct {
	p       *engine.BreakerPolicy
	attempt time.Duration

	state    engine.BreakerState
	results  []slowResult
	epoch    int // number of changes of state
	openFor  time.Duration
	rule     engine.Rule
	until    time.Duration
	repeats  int
	probes   map[int]time.Duration // id → start
	good     int
	nextCall int
}

type slowResult struct {
	at           time.Duration
	failed, slow bool
}

// slowCall is what the model knows of a call in flight.
type slowCall struct {
	epoch, id int
	probe     bool
	started   time.Duration
}

func (m *slowBreaker) turn(s engine.BreakerState) {
	m.state, m.probes, m.good = s, map[int]time.Duration{}, 0
	m.epoch++
}

func (m *slowBreaker) open(rule engine.Rule, at time.Duration) {
	m.turn(engine.BreakerOpen)
	m.rule = rule
	switch rule {
	case engine.RuleConsecutive:
		m.openFor = m.p.Consecutive.OpenFor
	case engine.RuleRatio:
		m.openFor = m.p.Ratio.OpenFor
	case engine.RuleSlow:
		m.openFor = m.p.Slow.OpenFor
	case engine.RuleNone:
	}
	grown := m.openFor
	for range m.repeats {
		grown = min(grown*time.Duration(m.p.Reopen.Multiplier)/engine.Million, max(m.p.Reopen.Max, m.openFor))
	}
	m.until = at + grown
}

func (m *slowBreaker) pass(now time.Duration) {
	for {
		if m.state == engine.BreakerOpen && now >= m.until {
			m.turn(engine.BreakerHalfOpen)
		}
		if m.state != engine.BreakerHalfOpen {
			return
		}
		var first time.Duration
		timedOut := false
		for id, started := range m.probes {
			switch {
			case m.attempt > 0 && m.attempt <= m.p.HalfOpen.ProbeTimeout:
				if now-started >= m.attempt && (!timedOut || started < first) {
					first, timedOut = started, true
				}
			case now-started >= m.p.HalfOpen.ProbeTimeout:
				delete(m.probes, id)
			}
		}
		if !timedOut {
			return
		}
		m.repeats++
		m.open(m.rule, first+m.attempt)
	}
}

func (m *slowBreaker) admit(now time.Duration) (slowCall, bool) {
	m.pass(now)
	m.nextCall++
	c := slowCall{epoch: m.epoch, id: m.nextCall, started: now}
	switch m.state {
	case engine.BreakerClosed:
		return c, true
	case engine.BreakerHalfOpen:
		if len(m.probes) < m.p.HalfOpen.Probes {
			m.probes[c.id], c.probe = now, true
			return c, true
		}
	default:
	}
	return c, false
}

func (m *slowBreaker) settle(c slowCall, now time.Duration, class engine.Class) {
	m.pass(now)
	if c.epoch != m.epoch {
		return
	}
	r := slowResult{now, class == engine.Failure, m.p.Slow.Enabled && now-c.started > m.p.Slow.LongerThan}
	if m.state == engine.BreakerHalfOpen {
		if _, ok := m.probes[c.id]; !ok {
			return
		}
		delete(m.probes, c.id)
		switch {
		case r.failed || r.slow && class == engine.Success:
			m.repeats++
			m.open(m.rule, now)
		case class == engine.Success:
			if m.good++; m.good == m.p.HalfOpen.CloseAfter {
				m.turn(engine.BreakerClosed)
				m.results, m.repeats = nil, 0
			}
		}
		return
	}
	if class == engine.Neutral {
		return
	}
	m.results = append(m.results, r)
	switch {
	case r.failed && m.p.Consecutive.Enabled && m.run() >= m.p.Consecutive.Failures:
		m.open(engine.RuleConsecutive, now)
	case r.failed && m.p.Ratio.Enabled && m.reaches(now, m.p.Ratio.Window, m.p.Ratio.MinCalls, m.p.Ratio.Failures, func(r slowResult) bool { return r.failed }):
		m.open(engine.RuleRatio, now)
	case r.slow && m.reaches(now, m.p.Slow.Window, m.p.Slow.MinCalls, m.p.Slow.Ratio, func(r slowResult) bool { return r.slow }):
		m.open(engine.RuleSlow, now)
	}
}

func (m *slowBreaker) run() (n int) {
	for i := len(m.results) - 1; i >= 0 && m.results[i].failed; i-- {
		n++
	}
	return n
}

func (m *slowBreaker) reaches(now, window time.Duration, least int, share int64, bad func(slowResult) bool) bool {
	var all, marked int64
	for _, r := range m.results {
		if r.at/(window/10) > now/(window/10)-10 {
			all++
			if bad(r) {
				marked++
			}
		}
	}
	return all >= int64(least) && marked*engine.Million >= all*share
}

func TestBreaker_agrees_with_the_obvious_model(t *testing.T) {
	for seed := range uint64(120) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { checkBreaker(t, rand.New(rand.NewPCG(seed, 13)), "") })
		t.Run(fmt.Sprint("per host, seed ", seed), func(t *testing.T) {
			checkBreaker(t, rand.New(rand.NewPCG(seed, 14)), "", "a", "b")
		})
	}
}

// checkBreaker compares the engine with a model for each of hosts.
func checkBreaker(t *testing.T, rnd *rand.Rand, hosts ...string) {
	t.Helper()
	p := b0(t)
	span := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(rnd.Int64N(int64(hi-lo))) }
	b := &p.Breaker
	b.Consecutive = engine.ConsecutiveRule{Enabled: rnd.IntN(2) == 0, Failures: 1 + rnd.IntN(12), OpenFor: span(time.Second, 5*time.Second)}
	b.Ratio = engine.RatioRule{Enabled: rnd.IntN(2) == 0, Failures: 1 + rnd.Int64N(engine.Million), Window: span(time.Second, 20*time.Second), MinCalls: 1 + rnd.IntN(40), OpenFor: span(time.Second, 5*time.Second)}
	b.Slow = engine.SlowRule{Enabled: rnd.IntN(2) == 0, LongerThan: span(10*time.Millisecond, 300*time.Millisecond), Ratio: 1 + rnd.Int64N(engine.Million), Window: span(time.Second, 20*time.Second), MinCalls: 1 + rnd.IntN(40), OpenFor: span(time.Second, 5*time.Second)}
	if !b.Consecutive.Enabled && !b.Ratio.Enabled {
		b.Slow.Enabled = true
	}
	b.HalfOpen = engine.HalfOpenPolicy{Probes: 1 + rnd.IntN(4), ProbeTimeout: span(100*time.Millisecond, 3*time.Second)}
	b.HalfOpen.CloseAfter = 1 + rnd.IntN(b.HalfOpen.Probes)
	b.Reopen = engine.ReopenPolicy{Multiplier: engine.Million + rnd.Int64N(2)*engine.Million, Max: span(2*time.Second, 10*time.Second)}
	if rnd.IntN(2) == 0 {
		p.Timeouts.Attempt = span(100*time.Millisecond, 4*time.Second)
	}
	if len(hosts) > 1 {
		p.Extras = &engine.Extras{BreakerPerHost: true}
	}
	r := rigOf(t, p)
	models := map[string]*slowBreaker{}
	for _, host := range hosts {
		models[host] = &slowBreaker{p: b, attempt: p.Timeouts.Attempt, probes: map[int]time.Duration{}}
	}

	type inFlight struct {
		call  *engine.Call
		of    *slowBreaker
		model slowCall
	}
	var calls []inFlight
	now := time.Duration(0)
	sick := 0
	for step := range 4000 {
		now += time.Duration(rnd.Int64N(int64(30 * time.Millisecond)))
		switch rnd.IntN(200) {
		case 0:
			now += time.Duration(rnd.Int64N(int64(8 * time.Second)))
		case 1:
			sick = rnd.IntN(100)
		}
		if len(calls) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(calls))
			c := calls[i]
			calls = append(calls[:i], calls[i+1:]...)
			o, class := succeeds, engine.Success
			switch n := rnd.IntN(100); {
			case n < sick:
				o, class = fails, engine.Failure
			case n > 97:
				o, class = cancelled, engine.Neutral
			case n > 94:
				o, class = answers(404), engine.Refused
			}
			c.call.Settle(engine.Instant(now), o)
			c.of.settle(c.model, now, class)
		} else {
			c := new(engine.Call)
			host := hosts[rnd.IntN(len(hosts))]
			m := models[host]
			got := r.Begin(c, engine.Instant(now), engine.CallOptions{Host: host}).Proceed
			model, want := m.admit(now)
			if got != want {
				t.Fatalf("step %d at %s: admitted %v, want %v (%s)", step, now, got, want, m.state)
			}
			if got {
				calls = append(calls, inFlight{c, m, model})
			}
		}
		if rnd.IntN(20) == 0 {
			s := r.Stats(engine.Instant(now))
			for host, m := range models {
				m.pass(now)
				have := s.Breaker
				if len(hosts) > 1 {
					have = hostStatus(s.Hosts, host)
				}
				if have.State != m.state || m.state == engine.BreakerOpen && have.Until != engine.Instant(m.until) ||
					have.Succeeded != m.good && m.state == engine.BreakerHalfOpen {
					t.Fatalf("step %d at %s: %+v, want %s until %s", step, now, have, m.state, m.until)
				}
			}
		}
	}
}

// hostStatus returns the breaker of one host, which is closed if it is not listed.
func hostStatus(all []engine.HostStatus, host string) engine.BreakerStatus {
	for _, h := range all {
		if h.Host == host {
			return h.BreakerStatus
		}
	}
	return engine.BreakerStatus{}
}
