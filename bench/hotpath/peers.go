// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/base"
	sentinelbreaker "github.com/alibaba/sentinel-golang/core/circuitbreaker"
	"github.com/alibaba/sentinel-golang/core/config"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/slok/goresilience"
	resiliencebreaker "github.com/slok/goresilience/circuitbreaker"
	"github.com/slok/goresilience/retry"
	"github.com/sony/gobreaker/v2"
)

// addPeers adds what others need for the same call and the same refusal.
func (l *lab) addPeers() error {
	l.addGobreaker()
	l.addFailsafe()
	l.addGoresilience()
	l.addHystrix()
	return l.addSentinel()
}

func newGobreaker() *gobreaker.CircuitBreaker[int] {
	return gobreaker.NewCircuitBreaker[int](gobreaker.Settings{
		Interval: 10 * time.Second, BucketPeriod: time.Second, Timeout: time.Hour,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
	})
}

func (l *lab) addGobreaker() {
	cb, open := newGobreaker(), newGobreaker()
	l.both(gobreakerCall, func() error {
		_, err := cb.Execute(work)
		return err
	})
	for open.State() != gobreaker.StateOpen {
		_, _ = open.Execute(func() (int, error) { return 0, errDown })
	}
	l.both(gobreakerRefused, func() error {
		_, err := open.Execute(work)
		return refused(err)
	})
}

func newFailsafe() failsafe.Executor[int] {
	return failsafe.With(
		retrypolicy.NewBuilder[int]().WithMaxRetries(2).WithBackoff(200*time.Millisecond, 2*time.Second).Build(),
		circuitbreaker.NewBuilder[int]().WithFailureRateThreshold(0.5, 20, 10*time.Second).WithDelay(10*time.Second).Build(),
	)
}

func (l *lab) addFailsafe() {
	get := func(e failsafe.Executor[int]) func() error {
		return func() error {
			_, err := e.Get(work)
			return err
		}
	}
	l.both(failsafeCall, get(newFailsafe()))
	l.add("failsafe-go: retry + budget", get(failsafe.With(
		retrypolicy.NewBuilder[int]().WithMaxRetries(2).WithBackoff(200*time.Millisecond, 2*time.Second).WithBudget(budget.New()).Build(),
	)))
	cb := circuitbreaker.NewBuilder[int]().WithDelay(time.Hour).Build()
	cb.Open()
	open := get(failsafe.With(cb))
	l.both("failsafe-go: refused", func() error { return refused(open()) })
}

func newGoresilience() goresilience.Runner {
	return goresilience.RunnerChain(
		retry.NewMiddleware(retry.Config{Times: 2, WaitBase: 200 * time.Millisecond}),
		resiliencebreaker.NewMiddleware(resiliencebreaker.Config{}),
	)
}

func (l *lab) addGoresilience() {
	ctx := context.Background()
	fn := func(context.Context) error {
		_, err := work()
		return err
	}
	runner := newGoresilience()
	l.both("goresilience: retry + breaker", func() error { return runner.Run(ctx, fn) })
	open := resiliencebreaker.New(resiliencebreaker.Config{MinimumRequestToOpen: 5, WaitDurationInOpenState: time.Hour})
	for range 10 {
		_ = open.Run(ctx, func(context.Context) error { return errDown })
	}
	l.both("goresilience: refused", func() error { return refused(open.Run(ctx, fn)) })
}

// hystrixCommand configures a command that does not time out here. A call's room is given back
// on another goroutine, so that more are taken than calls are made at once.
func hystrixCommand(name string, room int) {
	hystrix.ConfigureCommand(name, hystrix.CommandConfig{
		Timeout: 60_000, MaxConcurrentRequests: room, RequestVolumeThreshold: 5, SleepWindow: 3_600_000, ErrorPercentThreshold: 50,
	})
}

func (l *lab) addHystrix() {
	const room = 10_000
	hystrixCommand("charge", room)
	hystrixCommand("charge-open", room)
	fn := func() error {
		_, err := work()
		return err
	}
	l.both("hystrix-go: breaker", func() error { return hystrix.Do("charge", fn, nil) })
	for cb, _, err := hystrix.GetCircuit("charge-open"); err == nil && !cb.IsOpen(); {
		_ = hystrix.Do("charge-open", func() error { return errDown }, nil)
	}
	l.both("hystrix-go: refused", func() error { return refused(hystrix.Do("charge-open", fn, nil)) })
}

func sentinelRule(resource string) *sentinelbreaker.Rule {
	return &sentinelbreaker.Rule{
		Resource: resource, Strategy: sentinelbreaker.ErrorRatio, RetryTimeoutMs: 3_600_000, MinRequestAmount: 20,
		StatIntervalMs: 10_000, StatSlidingWindowBucketCount: 10, Threshold: 0.5,
	}
}

func (l *lab) addSentinel() error {
	conf := config.NewDefaultConfig()
	conf.Sentinel.Log.Logger = silent{}
	conf.Sentinel.Log.Metric.FlushIntervalSec = 0
	if err := sentinel.InitWithConfig(conf); err != nil {
		return err
	}
	if _, err := sentinelbreaker.LoadRules([]*sentinelbreaker.Rule{sentinelRule("charge"), sentinelRule("charge-open")}); err != nil {
		return err
	}
	guarded := func(resource string, fn func() (int, error)) error {
		e, blocked := sentinel.Entry(resource, sentinel.WithTrafficType(base.Outbound))
		if blocked != nil {
			return blocked
		}
		defer e.Exit()
		_, err := fn()
		if err != nil {
			sentinel.TraceError(e, err)
		}
		return err
	}
	l.both("sentinel-golang: breaker", func() error { return guarded("charge", work) })
	for range 30 {
		_ = guarded("charge-open", func() (int, error) { return 0, errDown })
	}
	l.both("sentinel-golang: refused", func() error { return refused(guarded("charge-open", work)) })
	return nil
}

// silent is a logger of Sentinel that says nothing.
type silent struct{}

func (silent) Debug(string, ...any)        {}
func (silent) DebugEnabled() bool          { return false }
func (silent) Info(string, ...any)         {}
func (silent) InfoEnabled() bool           { return false }
func (silent) Warn(string, ...any)         {}
func (silent) WarnEnabled() bool           { return false }
func (silent) Error(error, string, ...any) {}
func (silent) ErrorEnabled() bool          { return false }
