// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

const (
	service  = engine.Scope("shop/payments")
	endpoint = engine.Scope("shop/payments/charges.create")
)

type s = engine.Settings

func ratio(f float64) engine.Value {
	v, _ := engine.Decimal(f)
	return v
}

func TestCheck_finds(t *testing.T) {
	for name, tc := range map[string]struct {
		global, endpoint s
		facts            lint.Facts
		code             string
		message          string
	}{
		"a ratio above the ceiling": {
			endpoint: s{engine.BudgetRatio: ratio(0.2)},
			code:     "P101", message: "budget.ratio 0.2 is above the ceiling 0.1 of built-in, which holds",
		},
		"a floor that adds load": {
			global:   s{engine.CeilingsMinRetriesPerSecond: ratio(10)},
			endpoint: s{engine.BudgetMinRetriesPerSecond: ratio(10)},
			facts:    lint.Facts{Instances: 418, CallsPerSecond: 4200},
			code:     "P102", message: "10/s × 418 instances = +99.5 % of 4200 calls/s",
		},
		"POST repeated without a key": {
			endpoint: s{engine.MatchHTTPMethod: engine.Text("POST"), engine.IdempotencyMethods: engine.Set("GET", "POST")},
			code:     "P103", message: "POST is repeated without an idempotency key: it may happen twice",
		},
		"no jitter": {
			endpoint: s{engine.BackoffJitter: engine.Enum("none")},
			code:     "P104", message: "backoff.jitter none: all callers retry at the same moment",
		},
		"tokens that allow more than the ratio": {
			endpoint: s{engine.BudgetTokensSuccessCredit: ratio(0.5)},
			code:     "P105", message: "tokens pay for 0.5 retries per success, budget.ratio allows 0.1",
		},
		"tokens that cost nothing": {
			endpoint: s{engine.BudgetTokensRetryCost: ratio(0)},
			code:     "P105", message: "budget.tokens.retryCost 0: the bucket never stops a retry",
		},
		"the success gate switched off": {
			endpoint: s{engine.BudgetSuccessGateEnabled: engine.Bool(false)},
			code:     "P106", message: "the success gate is off: retries go on while most calls fail",
		},
		"500 retried": {
			endpoint: s{engine.RetryOnHTTP: engine.Set("500", "503")},
			code:     "P107", message: "500 is retried: it often means a bug that another attempt meets again",
		},
		"all of 5xx retried": {
			endpoint: s{engine.RetryOnHTTP: engine.Set("5xx")},
			code:     "P107", message: "500 is retried: it often means a bug that another attempt meets again",
		},
		"a deadline too short for the attempts": {
			endpoint: s{
				engine.MaxAttempts: engine.Int(4), engine.BackoffBase: engine.Duration(100 * time.Millisecond),
				engine.TimeoutsAttempt: engine.Duration(800 * time.Millisecond), engine.TimeoutsOverall: engine.Duration(3 * time.Second),
			},
			code: "P110", message: "timeouts.overall 3s ends before attempt 4 can finish (needs 3.9s)",
		},
		"a slow threshold that nothing reaches": {
			global:   s{engine.TimeoutsAttempt: engine.Duration(time.Second)},
			endpoint: s{engine.BreakerSlowLongerThan: engine.Duration(time.Second)},
			code:     "P111", message: "breaker.slow.longerThan 1s can never be reached: timeouts.attempt is 1s",
		},
		"a queue that outlives the keys": {
			endpoint: s{engine.OfflineQueueTTL: engine.Duration(24 * time.Hour)},
			code:     "P114", message: "offlineQueue.ttl 24h: the service forgets keys after 24h, so that a late call may happen twice",
		},
		"a policy that changes nothing": {
			global:   s{engine.MaxAttempts: engine.Int(2)},
			endpoint: s{engine.MaxAttempts: engine.Int(2), engine.BackoffJitter: engine.Enum("full")},
			code:     "P115", message: "the policy is what shop/payments/charges.create inherits anyway",
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := policy.Set{
				engine.Global: {Scope: engine.Global, Settings: tc.global},
				endpoint:      {Scope: endpoint, Settings: tc.endpoint},
			}
			found := lint.Check(set, endpoint, tc.facts)
			require.Len(t, found, 1, "%v", found)
			require.Equal(t, tc.code, found[0].Code)
			require.Equal(t, tc.message, found[0].Message)
			require.Equal(t, endpoint, found[0].Scope)
		})
	}
}

func TestCheck_leaves_alone(t *testing.T) {
	for name, doc := range map[string]s{
		"ordinary values": {engine.MaxAttempts: engine.Int(2)},
		"POST with a key": {engine.IdempotencyMethods: engine.Set("GET", "POST"), engine.IdempotencyKeyHeader: engine.Text("Idempotency-Key")},
		"POST sent once":  {engine.IdempotencyMethods: engine.Set("GET", "POST"), engine.MaxAttempts: engine.Int(1)},
		"a policy that only says how calls are recognised": {engine.MatchHTTPPath: engine.Text("/v1/charges")},
		"a deadline that the attempts fit": {
			engine.TimeoutsAttempt: engine.Duration(time.Second), engine.TimeoutsOverall: engine.Duration(4 * time.Second),
		},
		"a small floor": {engine.BudgetMinRetriesPerSecond: ratio(0.1)},
	} {
		t.Run(name, func(t *testing.T) {
			set := policy.Set{endpoint: {Scope: endpoint, Settings: doc}}
			require.Empty(t, lint.Check(set, endpoint, lint.Facts{Instances: 10, CallsPerSecond: 1000}))
		})
	}
}

func TestCheck_does_not_hold_what_is_inherited_against_a_document(t *testing.T) {
	set := policy.Set{
		service:  {Scope: service, Settings: s{engine.BackoffJitter: engine.Enum("none"), engine.RetryOnHTTP: engine.Set("500")}},
		endpoint: {Scope: endpoint, Settings: s{engine.MaxAttempts: engine.Int(2)}},
	}
	require.Len(t, lint.Check(set, service, lint.Facts{}), 2)
	require.Empty(t, lint.Check(set, endpoint, lint.Facts{}))
}

func TestCheck_without_a_document_finds_nothing(t *testing.T) {
	require.Empty(t, lint.Check(policy.Set{}, endpoint, lint.Facts{}))
}
