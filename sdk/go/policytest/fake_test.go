// SPDX-License-Identifier: Apache-2.0

package policytest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

const payments = `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/payments}
spec:
  maxAttempts: 3
  budget: {minRetriesPerSecond: 5}
  breaker: {consecutive: {failures: 50, openFor: 10s}}
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/payments/charges.get}
spec:
  match: {http: {method: GET, host: payments.shop, path: "/v1/charges/{id}"}}
`

const ep = "shop/payments/charges.get"

func fetch(t *testing.T, client *http.Client) (int, error) {
	t.Helper()
	resp, err := client.Get("http://payments.shop/v1/charges/1")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, nil
}

func TestFake_applies_what_operators_save(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, payments)
		client := &http.Client{Transport: f.Client().Transport(policytest.Script(503))}
		if code, err := fetch(t, client); code != 503 || err != nil {
			t.Fatal(code, err)
		}
		got := f.Attempts(ep)
		if len(got) != 3 || got[0] != (policyd.Attempt{Number: 1, Max: 3}) || got[2].Number != 3 {
			t.Fatalf("attempts %+v", got)
		}
		f.Apply("{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop/payments/charges.get}, spec: {maxAttempts: 2, match: {http: {path: '/v1/charges/{id}'}}}}")
		if _, err := fetch(t, client); err != nil || len(f.Attempts(ep)) != 5 {
			t.Fatal(err, f.Attempts(ep))
		}
		st := f.Client().Status()
		if st.State != policyd.StateLive || st.Revision != 2 || st.Source != "policytest" {
			t.Fatalf("status %+v", st)
		}
		if from := f.Client().Effective(ep).Values["maxAttempts"].From; from != ep {
			t.Fatalf("maxAttempts comes from %s", from)
		}
	})
}

func TestFake_disconnected_receives_nothing_until_it_is_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, payments)
		client := &http.Client{Transport: f.Client().Transport(policytest.Script(503))}
		f.Disconnect()
		sw := f.Switch("disable-retries", "shop", time.Hour)
		f.Apply("{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {description: new}}")
		if st := f.Client().Status(); st.State != policyd.StateStale || st.Revision != 1 || len(st.Switches) != 0 || st.LastErr == nil {
			t.Fatalf("status %+v", st)
		}
		if _, err := fetch(t, client); err != nil || len(f.Attempts(ep)) != 3 {
			t.Fatal(err, f.Attempts(ep))
		}
		f.Reconnect()
		st := f.Client().Status()
		if st.State != policyd.StateLive || st.Revision != 3 || len(st.Switches) != 1 || st.Switches[0] != sw || st.LastErr != nil {
			t.Fatalf("status %+v, want switch %+v", st, sw)
		}
		if _, err := fetch(t, client); err != nil || len(f.Attempts(ep)) != 4 {
			t.Fatal(err, f.Attempts(ep))
		}
	})
}

func TestFake_opens_a_breaker_until_the_first_probe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, payments)
		client := &http.Client{Transport: f.Client().Transport(policytest.Script(200))}
		f.OpenBreaker(ep, time.Minute)
		_, err := fetch(t, client)
		var stopped *policyd.Error
		if !errors.As(err, &stopped) || stopped.Code != policyd.CodeBreaker || stopped.Switch != nil {
			t.Fatalf("got %v", err)
		}
		if left := time.Until(stopped.RetryAt); left != time.Minute {
			t.Fatalf("next probe in %s", left)
		}
		if len(f.Attempts(ep)) != 0 {
			t.Fatal("a refused call was sent")
		}
		time.Sleep(time.Minute)
		if code, err := fetch(t, client); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	})
}

func TestFake_carries_every_kind_of_switch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, payments)
		client := &http.Client{Transport: f.Client().Transport(policytest.Script(503))}
		f.Switch("force-open", "shop/payments", time.Minute)
		if _, err := fetch(t, client); !errors.Is(err, policyd.ErrBreakerOpen) {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		f.Apply(`
apiVersion: policyd/v1
kind: KillSwitch
metadata: {name: ks-less}
spec: {action: tighten-budget, factor: 0, scope: shop, expiresIn: 10m, reason: test}
`)
		if _, err := fetch(t, client); err != nil || len(f.Attempts(ep)) != 1 {
			t.Fatal(err, f.Attempts(ep))
		}
	})
}

func TestFake_works_for_functions_and_the_same_way_each_time(t *testing.T) {
	waits := func() (total time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			f := policytest.New(t, payments)
			began := time.Now()
			_, err := policyd.Do(t.Context(), "shop/payments/refund", func(context.Context) (int, error) {
				return 0, policyd.Retryable(errors.New("down"))
			}, policyd.Using(f.Client()), policyd.IdempotencyKey("order-1"))
			if !errors.Is(err, policyd.ErrAttempts) {
				t.Fatal(err)
			}
			total = time.Since(began)
			if got := f.Attempts("shop/payments/refund"); len(got) != 3 || got[1].IdempotencyKey != "order-1" {
				t.Fatalf("attempts %+v", got)
			}
		})
		return total
	}
	if a, b := waits(), waits(); a != b || a == 0 {
		t.Fatalf("waited %s, then %s", a, b)
	}
}

func TestFake_ignores_the_environment_and_needs_no_bubble(t *testing.T) {
	t.Setenv("POLICYD_ADDR", "203.0.113.1:1")
	t.Setenv("POLICYD_MODE", "nonsense")
	t.Setenv("POLICYD_FILE", filepath.Join(t.TempDir(), "absent"))
	before := runtime.NumGoroutine()
	t.Run("inner", func(t *testing.T) {
		f := policytest.New(t, "")
		client := &http.Client{Transport: f.Client().Transport(policytest.Script(404))}
		if code, err := fetch(t, client); code != 404 || err != nil {
			t.Fatal(code, err)
		}
		if len(f.Attempts("payments.shop")) != 1 {
			t.Fatal("not counted by host")
		}
	})
	// The goroutine of the inner test ends a moment after it has said that it is done.
	for range 1_000_000 {
		if runtime.NumGoroutine() <= before {
			break
		}
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Fatalf("%d goroutines before, %d after", before, after)
	}
}

// failing is a test that notes why it failed.
type failing struct {
	testing.TB
	why string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.why = strings.TrimSpace(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func TestFake_fails_the_test_on_what_policyd_would_refuse(t *testing.T) {
	doc := func(scope, spec string) string {
		return "---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: " + scope + "}, spec: " + spec + "}\n"
	}
	cases := []struct {
		name, want string
		do         func(f *policytest.Fake)
	}{
		{"a misspelt field", "did you mean", func(f *policytest.Fake) { f.Apply(doc("shop", "{maxAttemps: 3}")) }},
		{"a value out of bounds", "maxAttempts", func(f *policytest.Fake) { f.Apply(doc("shop", "{maxAttempts: 30}")) }},
		{"a value above a ceiling", "at most 5", func(f *policytest.Fake) { f.Apply(doc("shop", "{maxAttempts: 9}")) }},
		{"a setting that no SDK has", "unknown field", func(f *policytest.Fake) { f.Apply(doc("shop", "{offlineQueue: {forever: true}}")) }},
		{"two endpoints that match the same", "match the same calls", func(f *policytest.Fake) {
			f.Apply(doc("a/b/c", "{match: {http: {host: h, path: /x}}}") + doc("a/b/d", "{match: {http: {host: h, path: /x}}}"))
		}},
		{"an unknown action", "action", func(f *policytest.Fake) { f.Switch("stop", "shop", time.Hour) }},
		{"a bad scope", "scope", func(f *policytest.Fake) { f.Switch("disable-retries", "Shop//", time.Hour) }},
		{"a switch of a week", "switch", func(f *policytest.Fake) { f.Switch("disable-retries", "shop", 7*24*time.Hour) }},
		{"a breaker that does not exist", "has no breaker", func(f *policytest.Fake) { f.OpenBreaker("shop/x/y", time.Minute) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inner := &failing{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.do(policytest.New(inner, ""))
			}()
			<-done
			if !strings.Contains(inner.why, c.want) || !strings.HasPrefix(inner.why, "policytest: ") {
				t.Fatalf("failed with %q, want %q", inner.why, c.want)
			}
		})
	}
}

func TestFake_reads_the_policies_of_the_demo(t *testing.T) {
	data, err := os.ReadFile("../../../internal/demo/policies.yaml")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("only this module is here")
	}
	if err != nil {
		t.Fatal(err)
	}
	f := policytest.New(t, string(data))
	if got := f.Client().Effective("shop/catalog/items.get").Values["maxAttempts"]; got.From != "shop/catalog/items.get" {
		t.Fatalf("maxAttempts %+v", got)
	}
}

func TestScript_keeps_the_contract_of_a_round_tripper(t *testing.T) {
	rt := policytest.Script(500, 204)
	for i, want := range []int{500, 204, 204} {
		body := &closeable{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://h/", body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil || resp.StatusCode != want || resp.Request != req || !body.closed {
			t.Fatalf("answer %d: %+v, %v", i+1, resp, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://h/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

type closeable struct {
	io.Reader
	closed bool
}

func (c *closeable) Close() error {
	c.closed = true
	return nil
}
