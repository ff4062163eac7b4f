// SPDX-License-Identifier: Apache-2.0

package policytest_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

func TestKillSwitchStopsAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // virtual time: 31 minutes pass in microseconds
		f := policytest.New(t, `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/payments}
spec: {maxAttempts: 3, backoff: {base: 100ms, jitter: full}}
`)
		const ep = "shop/payments/charges.get"
		down := policytest.Script(503) // answers 503 for ever, no network
		c := &http.Client{Transport: f.Client().Transport(down, policyd.Route("GET", "/v1/charges/{id}", ep))}
		get := func() int {
			before := len(f.Attempts(ep))
			resp, err := c.Get("http://payments.shop/v1/charges/1")
			if err != nil || resp.StatusCode != 503 { // the last response, not an error
				t.Fatal(resp, err)
			}
			return len(f.Attempts(ep)) - before
		}

		if n := get(); n != 3 {
			t.Fatalf("want 3 attempts, got %d", n)
		}
		f.Switch("disable-retries", "shop/payments", 30*time.Minute)
		if n := get(); n != 1 {
			t.Fatalf("switched off: want 1 attempt, got %d", n)
		}
		f.Disconnect()               // policyd is gone …
		time.Sleep(33 * time.Minute) // … the switch still ends on time, plus its ramp
		if n := get(); n != 3 {
			t.Fatalf("after expiry: want 3 attempts, got %d", n)
		}
	})
}
