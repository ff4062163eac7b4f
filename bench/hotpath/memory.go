// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/afex/hystrix-go/hystrix"
	sentinel "github.com/alibaba/sentinel-golang/api"
	sentinelbreaker "github.com/alibaba/sentinel-golang/core/circuitbreaker"
	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// perEndpoint is what one more endpoint takes, stacks of its goroutines included.
type perEndpoint struct {
	name  string
	bytes float64
}

const ownPolicy = "policyd: state, and a policy of its own"

// endpointBytes makes many endpoints of each kind and sees how the process grows.
func endpointBytes() ([]perEndpoint, error) {
	var failure error
	var rows []perEndpoint
	grow := func(name string, n int, one func(i int) any) {
		kept := make([]any, n)
		before := inUse()
		for i := range kept {
			kept[i] = one(i)
		}
		rows = append(rows, perEndpoint{name, float64(inUse()-before) / float64(n)})
		runtime.KeepAlive(kept)
	}
	grow(ownPolicy, 10_000, func(int) any { return endpoint(policy(), engine.Overlay{}) })
	shared := policy()
	grow("policyd: state, policy shared", 10_000, func(int) any { return endpoint(shared, engine.Overlay{}) })
	c, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		return nil, err
	}
	using := policyd.WithCall(context.Background(), policyd.Using(c))
	grow("policyd: in a client, under its name", 10_000, func(i int) any {
		_, err := policyd.Do(using, fmt.Sprintf("shop/payments/e%d", i), func(context.Context) (int, error) { return work() })
		if err != nil {
			failure = err
		}
		return nil
	})
	runtime.KeepAlive(c)
	grow("gobreaker: breaker", 10_000, func(int) any { return newGobreaker() })
	grow("failsafe-go: retry + breaker", 10_000, func(int) any { return newFailsafe() })
	grow("goresilience: retry + breaker", 1_000, func(int) any { return newGoresilience() })
	grow("hystrix-go: breaker", 100, func(i int) any {
		name := fmt.Sprintf("e%d", i)
		hystrixCommand(name, hystrix.DefaultMaxConcurrent)
		if err := hystrix.Do(name, func() error { return nil }, nil); err != nil {
			failure = err
		}
		return nil
	})
	const resources = 1_000
	grow("sentinel-golang: breaker", resources, func(i int) any {
		if i == 0 {
			rules := make([]*sentinelbreaker.Rule, resources)
			for k := range rules {
				rules[k] = sentinelRule(fmt.Sprintf("e%d", k))
			}
			if _, err := sentinelbreaker.LoadRules(rules); err != nil {
				failure = err
			}
		}
		e, blocked := sentinel.Entry(fmt.Sprintf("e%d", i))
		if blocked != nil {
			failure = blocked
			return nil
		}
		e.Exit()
		return nil
	})
	return rows, failure
}

// inUse is the heap and the stacks, after what is not needed has gone.
func inUse() int64 {
	var m runtime.MemStats
	for range 2 { // what pools hold goes with the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // far below
}
