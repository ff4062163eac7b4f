// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/sony/gobreaker/v2"
)

// A benchmark is one row of the table.
type benchmark struct {
	name string
	run  func(*testing.B)
}

// Names that goals refer to.
const (
	floor             = "floor: pointer load and 3 atomic adds"
	clock             = "clock: one read"
	success           = "policyd: retry + budget + gate + breaker"
	successTimed      = "policyd: the same, second clock read"
	successParallel   = "policyd: the same on all cores"
	rejected          = "policyd: refused, breaker open"
	rejectedForced    = "policyd: refused, forced open"
	rejectedDecision  = "policyd: refused, clock not counted"
	byName            = "policyd: by name among 1,000"
	failing           = "policyd: failed attempt and its retry"
	gobreakerSuccess  = "gobreaker: breaker"
	gobreakerParallel = "gobreaker: breaker on all cores"
	gobreakerRejected = "gobreaker: refused"
	failsafeBreaker   = "failsafe-go: retry + breaker"
	failsafeBudget    = "failsafe-go: retry + budget"
	failsafeRejected  = "failsafe-go: refused"
)

var errDown = errors.New("down")

// work is the guarded function.
var work = func() (int, error) { return 1, nil }

func benchmarks() []benchmark {
	return []benchmark{
		{floor, benchFloor},
		{clock, benchClock},
		{success, benchSuccess},
		{successTimed, benchTimed},
		{successParallel, benchParallel},
		{rejected, benchRejected},
		{rejectedForced, benchForced},
		{rejectedDecision, benchDecision},
		{byName, benchByName},
		{failing, benchFailing},
		{gobreakerSuccess, benchGobreaker},
		{gobreakerParallel, benchGobreakerParallel},
		{gobreakerRejected, benchGobreakerRejected},
		{failsafeBreaker, benchFailsafeBreaker},
		{failsafeBudget, benchFailsafeBudget},
		{failsafeRejected, benchFailsafeRejected},
	}
}

var origin = time.Now()

func now() engine.Instant { return engine.Instant(time.Since(origin)) }

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

func benchFloor(b *testing.B) {
	var p atomic.Pointer[engine.Policy]
	var n [3]atomic.Uint64
	p.Store(policy())
	for b.Loop() {
		if p.Load() != nil {
			n[0].Add(1)
			n[1].Add(1)
			n[2].Add(1)
		}
	}
}

func benchClock(b *testing.B) {
	var t engine.Instant
	for b.Loop() {
		t = now()
	}
	_ = t
}

// call is one call through a handle, as the SDK makes it.
func call(e *engine.Endpoint, c *engine.Call) error {
	d := e.Begin(c, now(), engine.CallOptions{Idempotent: true})
	if !d.Proceed {
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

func benchSuccess(b *testing.B) {
	e := endpoint(policy(), engine.Overlay{})
	b.ReportAllocs()
	for b.Loop() {
		var c engine.Call
		if err := call(e, &c); err != nil {
			b.Fatal(err)
		}
	}
}

func benchTimed(b *testing.B) {
	e := endpoint(policy(), engine.Overlay{})
	b.ReportAllocs()
	for b.Loop() {
		var c engine.Call
		e.Begin(&c, now(), engine.CallOptions{Idempotent: true})
		if _, err := work(); err != nil {
			b.Fatal(err)
		}
		c.Settle(now(), engine.Outcome{})
	}
}

func benchParallel(b *testing.B) {
	e := endpoint(policy(), engine.Overlay{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var c engine.Call
		for pb.Next() {
			if err := call(e, &c); err != nil {
				b.Error(err)
			}
		}
	})
}

// opened is an endpoint whose breaker stays open for longer than a benchmark.
func opened() *engine.Endpoint {
	p := policy()
	p.Breaker.Consecutive.OpenFor = time.Hour
	e := endpoint(p, engine.Overlay{})
	var c engine.Call
	for e.Begin(&c, now(), engine.CallOptions{}).Proceed {
		c.Settle(now(), engine.Outcome{Kind: engine.OutcomeError})
	}
	return e
}

func benchRejected(b *testing.B) { benchRefusal(b, opened(), now) }

func benchForced(b *testing.B) {
	benchRefusal(b, endpoint(policy(), engine.Compose([]engine.Switch{{
		ID: "ks-1", Action: engine.ForceOpen, Scope: engine.Global, Percent: 100, Ends: time.Now().Add(time.Hour),
	}}, "shop/payments/charge", engine.Standard, "instance-1")), now)
}

func benchDecision(b *testing.B) {
	at := now()
	benchRefusal(b, opened(), func() engine.Instant { return at })
}

func benchRefusal(b *testing.B, e *engine.Endpoint, now func() engine.Instant) {
	b.ReportAllocs()
	var c engine.Call
	for b.Loop() {
		if e.Begin(&c, now(), engine.CallOptions{}).Proceed {
			b.Fatal("let through")
		}
	}
}

func benchByName(b *testing.B) {
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
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		var c engine.Call
		if err := call((*current.Load())[names[i]], &c); err != nil {
			b.Fatal(err)
		}
		if i++; i == 4 { // a few hot ones
			i = 0
		}
	}
}

func benchFailing(b *testing.B) {
	p := policy()
	p.Breaker.Enabled = false
	p.Budget.Ratio = engine.Million
	p.Budget.SuccessGate.Enabled = false
	e := endpoint(p, engine.Overlay{})
	b.ReportAllocs()
	for b.Loop() {
		var c engine.Call
		e.Begin(&c, now(), engine.CallOptions{Idempotent: true})
		if d := c.Settle(now(), engine.Outcome{Kind: engine.OutcomeHTTP, Code: 503}); !d.Retry {
			b.Fatal(d.Code)
		}
		c.Resume(now())
		c.Settle(now(), engine.Outcome{})
	}
}

func breaker() *gobreaker.CircuitBreaker[int] {
	return gobreaker.NewCircuitBreaker[int](gobreaker.Settings{
		Interval: 10 * time.Second, BucketPeriod: time.Second, Timeout: time.Hour,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
	})
}

func benchGobreaker(b *testing.B) {
	cb := breaker()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cb.Execute(work); err != nil {
			b.Fatal(err)
		}
	}
}

func benchGobreakerParallel(b *testing.B) {
	cb := breaker()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := cb.Execute(work); err != nil {
				b.Error(err)
			}
		}
	})
}

func benchGobreakerRejected(b *testing.B) {
	cb := breaker()
	for cb.State() != gobreaker.StateOpen {
		_, _ = cb.Execute(func() (int, error) { return 0, errDown })
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cb.Execute(work); err == nil {
			b.Fatal("let through")
		}
	}
}

func benchFailsafe(b *testing.B, e failsafe.Executor[int], refused bool) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Get(work); (err != nil) != refused {
			b.Fatal(err)
		}
	}
}

func benchFailsafeBreaker(b *testing.B) {
	benchFailsafe(b, failsafe.With(
		retrypolicy.NewBuilder[int]().WithMaxRetries(2).WithBackoff(200*time.Millisecond, 2*time.Second).Build(),
		circuitbreaker.NewBuilder[int]().WithFailureRateThreshold(0.5, 20, 10*time.Second).WithDelay(10*time.Second).Build(),
	), false)
}

func benchFailsafeBudget(b *testing.B) {
	benchFailsafe(b, failsafe.With(
		retrypolicy.NewBuilder[int]().WithMaxRetries(2).WithBackoff(200*time.Millisecond, 2*time.Second).WithBudget(budget.New()).Build(),
	), false)
}

func benchFailsafeRejected(b *testing.B) {
	cb := circuitbreaker.NewBuilder[int]().WithDelay(time.Hour).Build()
	cb.Open()
	benchFailsafe(b, failsafe.With(cb), true)
}
