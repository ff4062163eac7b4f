// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// policy is the built-in one with both recommended breaker rules.
func policy() *engine.Policy {
	p := engine.Compile(engine.Merge("shop/payments/charge", []engine.Document{{
		Scope: engine.Global,
		Settings: engine.Settings{
			engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.BreakerRatioEnabled: engine.Bool(true),
		},
	}}))
	return &p
}

func endpoint(p *engine.Policy, o engine.Overlay) *engine.Endpoint {
	return engine.NewEndpoint(engine.Config{Origin: origin, Random: rand.Uint64}, p, o, now())
}

// addEngine adds the decisions alone, with the clock as the SDK reads it.
func (l *lab) addEngine() error {
	var p atomic.Pointer[engine.Policy]
	var n [3]atomic.Uint64
	p.Store(policy())
	l.add(floor, func() error {
		if p.Load() != nil {
			n[0].Add(1)
			n[1].Add(1)
			n[2].Add(1)
		}
		return nil
	})
	l.add(clock, func() error {
		if now() == 0 {
			return errDown
		}
		return nil
	})
	e := endpoint(policy(), engine.Overlay{})
	l.bothWorkers(success, func() func() {
		var c engine.Call
		return func() {
			if err := call(e, &c); err != nil {
				l.fail(success, err)
			}
		}
	})
	l.addNamed()
	l.addRefused()
	l.addFailing()
	return nil
}

// begin starts a call as the SDK does.
func begin(e *engine.Endpoint, c *engine.Call) bool {
	d, _, latched := e.BeginLatched(c)
	if latched {
		return d.Proceed
	}
	const latchFor = 50 * time.Millisecond
	at := now()
	d = e.Begin(c, at, engine.CallOptions{Idempotent: true})
	if !d.Proceed {
		if release, ok := e.Latch(at, latchFor); ok {
			time.AfterFunc(latchFor, release)
		}
	}
	return d.Proceed
}

// call is one call through a handle, as the SDK makes it.
func call(e *engine.Endpoint, c *engine.Call) error {
	if !begin(e, c) {
		return errDown
	}
	if _, err := work(); err != nil {
		return err
	}
	if !c.Succeed() {
		c.Settle(now(), engine.Outcome{})
	}
	return nil
}

// work is the guarded function.
var work = func() (int, error) { return 1, nil }

func (l *lab) addNamed() {
	table := map[string]*engine.Endpoint{}
	var names []string
	p := policy()
	for i := range 1000 {
		name := fmt.Sprintf("shop/payments/charges.%d", i)
		names = append(names, name)
		table[name] = endpoint(p, engine.Overlay{})
	}
	var current atomic.Pointer[map[string]*engine.Endpoint]
	current.Store(&table)
	l.addWorker(byName, func() func() {
		var c engine.Call
		i := 0
		return func() {
			if err := call((*current.Load())[names[i]], &c); err != nil {
				l.fail(byName, err)
			}
			if i++; i == 4 { // a few hot ones
				i = 0
			}
		}
	})
}

// addRefused adds refusals by a breaker that stays open, and by a kill switch that lasts.
func (l *lab) addRefused() {
	p := policy()
	p.Breaker.Consecutive.OpenFor = time.Hour
	opened := endpoint(p, engine.Overlay{})
	var c engine.Call
	for opened.Begin(&c, now(), engine.CallOptions{}).Proceed {
		c.Settle(now(), engine.Outcome{Kind: engine.OutcomeError})
	}
	forced := endpoint(policy(), engine.Compose([]engine.Switch{{
		ID: "ks-1", Action: engine.ForceOpen, Scope: engine.Global, Percent: 100, Ends: time.Now().Add(time.Hour),
	}}, "shop/payments/charge", engine.Standard, "instance-1"))
	refusal := func(name string, e *engine.Endpoint) func() func() {
		return func() func() {
			var c engine.Call
			return func() {
				if begin(e, &c) {
					l.fail(name, errors.New("let through"))
				}
			}
		}
	}
	l.bothWorkers(rejected, refusal(rejected, opened))
	l.addWorker(rejectedForced, refusal(rejectedForced, forced))
}

func (l *lab) addFailing() {
	const name = "policyd: failed attempt and its retry"
	p := policy()
	p.Breaker.Enabled = false
	p.Budget.Ratio = engine.Million
	p.Budget.SuccessGate.Enabled = false
	e := endpoint(p, engine.Overlay{})
	l.addWorker(name, func() func() {
		var c engine.Call
		return func() {
			e.Begin(&c, now(), engine.CallOptions{Idempotent: true})
			if d := c.Settle(now(), engine.Outcome{Kind: engine.OutcomeHTTP, Code: 503}); !d.Retry {
				l.fail(name, errors.New(string(d.Code)))
			}
			c.Resume(now())
			c.Settle(now(), engine.Outcome{})
		}
	})
}

// addSDK adds whole calls of a function, errors and contexts included.
func (l *lab) addSDK() error {
	c, err := l.newClient("{}")
	if err != nil {
		return err
	}
	broken, err := l.newClient("{}")
	if err != nil {
		return err
	}
	fn := func(context.Context) (int, error) { return work() }
	using := policyd.WithCall(context.Background(), policyd.Using(c))
	l.both("policyd.Do", func() error {
		_, err := policyd.Do(using, "shop/payments/charge", fn)
		return err
	})
	usingBroken := policyd.WithCall(context.Background(), policyd.Using(broken))
	for range 5 {
		_, _ = policyd.Do(usingBroken, "shop/payments/charge", func(context.Context) (int, error) { return 0, errDown })
	}
	l.both("policyd.Do, refused", func() error {
		_, err := policyd.Do(usingBroken, "shop/payments/charge", fn)
		return refused(err)
	})
	return nil
}
