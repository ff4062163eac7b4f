// SPDX-License-Identifier: Apache-2.0

package policytest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// run is go test, for an example.
func run(test func(*testing.T)) {
	testing.RunTests(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "Example", F: func(t *testing.T) { synctest.Test(t, test) }}})
}

// An operator edits the policy, turns retries off, and policyd is gone meanwhile.
func ExampleFake() {
	run(func(t *testing.T) {
		const endpoint = "shop/payments/charges.get"
		f := policytest.New(t, "")
		f.Seed(7) // other random numbers than the next fake
		sends := func() int {
			before := len(f.Attempts(endpoint))
			_, _ = policyd.Do(context.Background(), endpoint, func(context.Context) (int, error) {
				return 0, policyd.Retryable(errors.New("down"))
			}, policyd.Using(f.Client()))
			time.Sleep(time.Minute) // the budget has retries again; no time passes
			return len(f.Attempts(endpoint)) - before
		}
		fmt.Println("built in:", sends())

		f.Apply(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/payments}
spec: {maxAttempts: 2}
`)
		fmt.Println("edited:", sends())

		sw := f.Switch("disable-retries", "shop", time.Hour)
		fmt.Println("switched off:", sends(), "until", time.Until(sw.ExpiresAt).Round(time.Hour), "from now")

		f.Disconnect()
		f.Apply("{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop/payments}, spec: {maxAttempts: 1}}")
		time.Sleep(2 * time.Hour)
		fmt.Println(f.Client().Status().State, "and the switch is over:", sends())

		f.Reconnect()
		fmt.Println(f.Client().Status().State, "with what was saved meanwhile:", sends())
	})
	// Output:
	// built in: 3
	// edited: 2
	// switched off: 1 until 1h0m0s from now
	// stale and the switch is over: 2
	// live with what was saved meanwhile: 1
}
