// SPDX-License-Identifier: Apache-2.0

package policytest_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// shop is an application that is tested.
type shop struct{ http *http.Client }

func (s shop) price(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://catalog.shop/v1/items/42", nil)
	if err != nil {
		return "", err
	}
	resp, err := s.http.Do(req)
	if errors.Is(err, policyd.ErrBreakerOpen) {
		return "price on request", nil
	}
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return resp.Status, nil
}

// The body of a test: what a shop shows while the breaker to its catalogue is open, and
// after it.
func ExampleNew() {
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := policytest.New(t, `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/catalog}
spec:
  match: {http: {host: catalog.shop}}
  breaker: {consecutive: {failures: 5, openFor: 30s}}
`)
			s := shop{&http.Client{Transport: f.Client().Transport(
				policytest.Script(200),
				policyd.Route("GET", "/v1/items/{id}", "shop/catalog/items.get"),
			)}}
			f.OpenBreaker("shop/catalog/items.get", 30*time.Second)
			if got, err := s.price(t.Context()); got != "price on request" {
				t.Fatal(got, err)
			}
			time.Sleep(30 * time.Second) // no time at all
			if got, err := s.price(t.Context()); got != "200 OK" {
				t.Fatal(got, err)
			}
		})
	}
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "ExampleNew", F: test}})
	// Output:
}
