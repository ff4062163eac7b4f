// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

// client is one without policyd: built-in defaults, nothing kept on disk.
func exampleClient() *policyd.Client {
	c, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// flaky answers 503 until the nth request.
func flaky(n int) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n--; n > 0 {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintf(w, "hello, key %q", r.Header.Get("Idempotency-Key"))
	}))
}

// One line changes: calls are repeated where that is safe and the budget allows it.
func ExampleTransport() {
	server := flaky(2)
	defer server.Close()

	api := &http.Client{Transport: policyd.Transport(nil)}
	resp, err := api.Get(server.URL)
	if err != nil {
		fmt.Println("no answer:", err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body))
	// Output: 200 hello, key ""
}

// A handler that turns an open breaker into an honest answer.
func ExampleError() {
	api := &http.Client{Transport: policyd.Transport(nil)}
	_ = func(w http.ResponseWriter, r *http.Request) {
		req, _ := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://catalog.shop/v1/items/42", nil)
		resp, err := api.Do(req)

		var pe *policyd.Error
		switch {
		case errors.As(err, &pe) && pe.Code == policyd.CodeBreaker:
			if d := time.Until(pe.RetryAt); d > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(d.Seconds())+1))
			}
			http.Error(w, "catalog is unavailable, try again shortly", http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, "cannot reach catalog", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(w, resp.Body)
	}
}

// What the policy did for a response.
func ExampleOutcomeOf() {
	server := flaky(3)
	defer server.Close()

	api := &http.Client{Transport: exampleClient().Transport(nil, policyd.Route("GET", "/", "shop/greeting/hello"))}
	resp, err := api.Get(server.URL)
	if err != nil {
		fmt.Println("no answer:", err)
		return
	}
	defer resp.Body.Close()
	if o, ok := policyd.OutcomeOf(resp); ok {
		fmt.Println(o.Endpoint, "answered", resp.StatusCode, "after", o.Attempts, "attempts")
	}
	// Output: shop/greeting/hello answered 200 after 3 attempts
}

// A call that is not idempotent is repeated because it carries a key.
func ExampleWithCall() {
	server := flaky(2)
	defer server.Close()

	api := &http.Client{Transport: exampleClient().Transport(nil)}
	ctx := policyd.WithCall(context.Background(), policyd.IdempotencyKey("order-4711"))
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"sku":1}`))
	resp, err := api.Do(req)
	if err != nil {
		fmt.Println("no answer:", err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(string(body))
	// Output: hello, key "order-4711"
}

// Any function: SQL, a queue, a vendor's SDK.
func ExampleDo() {
	busy := errors.New("connection pool is exhausted")
	rate, err := policyd.Do(context.Background(), "fx/rates/get", func(ctx context.Context) (float64, error) {
		if a, _ := policyd.AttemptFrom(ctx); a.Number == 1 {
			return 0, policyd.Retryable(busy)
		}
		return 1.08, nil
	}, policyd.Using(exampleClient()))
	fmt.Println(rate, err)
	// Output: 1.08 <nil>
}

// The fallback runs only when the policy gave up.
func ExampleDoOr() {
	rate, err := policyd.DoOr(context.Background(), "fx/rates/get",
		func(context.Context) (float64, error) {
			return 0, policyd.RetryAfter(errors.New("rate limited"), time.Hour)
		},
		func(_ context.Context, e *policyd.Error) (float64, error) {
			fmt.Println("yesterday's rate, because of", e.Code)
			return 1.07, nil
		}, policyd.Using(exampleClient()))
	fmt.Println(rate, err)
	// Output:
	// yesterday's rate, because of retry_after_too_long
	// 1.07 <nil>
}

// Errors of an application's own protocol.
func ExampleRetryable() {
	attempt := 0
	_, err := policyd.Do(context.Background(), "mail/relay/send", func(context.Context) (string, error) {
		switch attempt++; attempt {
		case 1:
			return "", policyd.NotSent(errors.New("no free connection")) // safe for any call
		case 2:
			return "", policyd.Retryable(errors.New("421 try later"))
		default:
			return "", policyd.Permanent(errors.New("550 no such mailbox"))
		}
	}, policyd.Using(exampleClient()))
	fmt.Println(attempt, err)
	// Output: 3 550 no such mailbox
}
