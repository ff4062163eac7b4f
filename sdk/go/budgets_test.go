// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestServiceBudget_one_bucket_for_all_endpoints_of_a_service(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, nil)
		shared := set{
			engine.MaxAttempts: engine.Int(2), engine.BackoffJitter: engine.Enum("none"), engine.BudgetScope: engine.Enum("service"),
			engine.BudgetRatio: decimal(0), engine.BudgetMinRetriesPerSecond: decimal(0.2), // two in 10 s
		}
		put := func(policy set, switches ...engine.Switch) {
			c.Put([]engine.Document{
				{Scope: engine.Global, Revision: 1, Settings: open},
				{Scope: "shop/upstream", Revision: 2, Settings: policy},
				{Scope: "shop/other", Revision: 2, Settings: policy},
			}, switches...)
		}
		put(shared)
		code := func(endpoint string) policyd.Code {
			_, err := policyd.Do(t.Context(), endpoint, func(context.Context) (int, error) { return 0, down }, policyd.Using(c))
			var e *policyd.Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			return e.Code
		}
		want := func(endpoint string, want policyd.Code) {
			t.Helper()
			if got := code(endpoint); got != want {
				t.Fatalf("%s: %s, want %s", endpoint, got, want)
			}
		}
		want("shop/upstream/a", policyd.CodeAttempts)
		want("shop/upstream/b", policyd.CodeAttempts)
		want("shop/upstream/c", policyd.CodeBudget)
		want("shop/upstream/a", policyd.CodeBudget)
		want("shop/other/a", policyd.CodeAttempts) // another service

		put(with(shared, set{engine.Description: engine.Text("an edit refills nothing")}))
		want("shop/upstream/a", policyd.CodeBudget)
		time.Sleep(11 * time.Second)
		put(shared, killSwitch(engine.DisableHedging, time.Hour))
		want("shop/upstream/b", policyd.CodeAttempts)

		put(with(shared, set{engine.BudgetScope: engine.Enum("endpoint")}))
		want("shop/upstream/d", policyd.CodeAttempts)
		want("shop/upstream/d", policyd.CodeAttempts)
		want("shop/upstream/d", policyd.CodeBudget)
		want("shop/upstream/e", policyd.CodeAttempts)
	})
}
