// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"

	policyd "github.com/policyd/policyd/sdk/go"
)

// FailsafeBefore is a client with a retry policy and a breaker of failsafe-go.
func FailsafeBefore() *http.Client {
	retries := failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(2).
		WithBackoff(200*time.Millisecond, 2*time.Second).WithJitterFactor(0.5).Build()
	breaker := circuitbreaker.NewBuilder[*http.Response]().
		HandleIf(func(r *http.Response, err error) bool { return err != nil || r.StatusCode >= 500 }).
		WithFailureThreshold(5).WithDelay(30 * time.Second).Build()
	api := &http.Client{Transport: failsafehttp.NewRoundTripper(nil, retries, breaker)}
	return api
}

// FailsafeAfter is a client under policies.
func FailsafeAfter() *http.Client {
	api := &http.Client{Transport: policyd.Transport(nil)}
	return api
}

// FailsafeObserve lets policyd look on, below the policies that act.
func FailsafeObserve(policies ...failsafe.Policy[*http.Response]) *http.Client {
	observed := policyd.Transport(nil) // with POLICYD_MODE=observe
	api := &http.Client{Transport: failsafehttp.NewRoundTripper(observed, policies...)}
	return api
}
