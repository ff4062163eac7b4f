// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Rates asks for a rate.
type Rates func(context.Context) (float64, error)

// GobreakerBefore retries with backoff through a breaker of gobreaker.
func GobreakerBefore(fetch Rates) Rates {
	breaker := gobreaker.NewCircuitBreaker[float64](gobreaker.Settings{
		Timeout:     30 * time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
	})
	rates := func(ctx context.Context) (float64, error) {
		return backoff.Retry(ctx, func() (float64, error) {
			return breaker.Execute(func() (float64, error) { return fetch(ctx) })
		}, backoff.WithMaxTries(3))
	}
	return rates
}

// GobreakerAfter does so under a policy.
func GobreakerAfter(fetch Rates) Rates {
	rates := func(ctx context.Context) (float64, error) {
		return policyd.Do(ctx, "fx/rates/get", fetch)
	}
	return rates
}

// GobreakerObserve lets policyd look on: what it would do is counted, nothing is changed.
func GobreakerObserve(fetch Rates) Rates {
	observed := func(ctx context.Context) (float64, error) {
		return policyd.Do(ctx, "fx/rates/get", fetch) // with POLICYD_MODE=observe
	}
	return GobreakerBefore(observed)
}
