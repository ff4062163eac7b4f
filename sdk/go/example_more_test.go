// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Endpoints that code names: by patterns, and by a function for the rest.
func ExampleClient_Transport() {
	server := flaky(1)
	defer server.Close()
	opts := []policyd.TransportOption{
		policyd.Route("GET", "/v1/charges/{id}", "shop/payments/charges.get"),
		policyd.Route("POST", "/v1/charges", "shop/payments/charges.create"),
		policyd.NameFunc(func(r *http.Request) string {
			if strings.HasPrefix(r.URL.Path, "/internal/") {
				return "shop/payments/internal"
			}
			return "" // as the patterns of policies say
		}),
		policyd.MaxReplayBody(64 << 10),
	}
	api := &http.Client{Transport: exampleClient().Transport(nil, opts...)}
	for _, path := range []string{"/v1/charges/1", "/internal/health"} {
		resp, err := api.Get(server.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		if o, ok := policyd.OutcomeOf(resp); ok {
			fmt.Println(o.Endpoint)
		}
	}
	// Output:
	// shop/payments/charges.get
	// shop/payments/internal
}

// A call that the server may do twice, one that it may not, and one that the caller repeats
// by itself.
func ExampleIdempotent() {
	sends := func(opts ...policyd.CallOption) (n int) {
		opts = append(opts, policyd.Using(exampleClient()))
		_, _ = policyd.Do(context.Background(), "mail/relay/send", func(context.Context) (int, error) {
			n++
			return 0, policyd.Retryable(errors.New("421 try later"))
		}, opts...)
		return n
	}
	fmt.Println(sends(policyd.Idempotent(true)), sends(policyd.Idempotent(false)), sends(policyd.WithoutRetry()))
	// Output: 3 1 1
}

// A function that may run beside itself, so that a policy can hedge: the slow one is
// cancelled when the other has answered.
func ExampleConcurrent() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: geo/tiles}
spec: {hedging: {after: 1ms}}
`)
	tile, err := policyd.Do(context.Background(), "geo/tiles/get", func(ctx context.Context) (string, error) {
		if a, _ := policyd.AttemptFrom(ctx); !a.Hedge {
			<-ctx.Done() // slow
			return "", ctx.Err()
		}
		return "from the hedge", nil
	}, policyd.Using(client), policyd.Concurrent())
	fmt.Println(tile, err)
	// Output: from the hedge <nil>
}

// Errors are told apart by sentinel, and carry what is needed for an honest answer.
func ExampleError_Is() {
	_, err := policyd.Do(context.Background(), "mail/relay/send", func(context.Context) (string, error) {
		return "", policyd.Retryable(io.ErrUnexpectedEOF)
	}, policyd.Using(exampleClient()))

	for name, sentinel := range map[string]error{
		"refused by the breaker":   policyd.ErrBreakerOpen,
		"too many at once":         policyd.ErrConcurrency,
		"the budget is spent":      policyd.ErrBudget,
		"an operator said so":      policyd.ErrSwitch,
		"no time is left":          policyd.ErrDeadline,
		"the attempts are used up": policyd.ErrAttempts,
	} {
		if errors.Is(err, sentinel) {
			fmt.Println(name)
		}
	}
	var e *policyd.Error
	if errors.As(err, &e) {
		var _ net.Error = e
		fmt.Println(e.Attempts, "attempts; timeout", e.Timeout(), "temporary", e.Temporary())
		fmt.Println("the last one:", e.Unwrap(), e.Is(policyd.ErrAttempts), status.Convert(err).Code() == e.GRPCStatus().Code())
	}
	// Output:
	// the attempts are used up
	// 3 attempts; timeout false temporary true
	// the last one: unexpected EOF true true
}

// The last good value, where the policy advises it.
func ExampleLastGood() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: fx/rates}
spec: {maxAttempts: 1, fallback: {mode: cached, cached: {maxAge: 10m}}}
`)
	kept := policyd.NewLastGood[float64](time.Hour)
	var down error
	rate := func(pair string) string {
		v, age, err := kept.Do(context.Background(), "fx/rates/get", pair, func(context.Context) (float64, error) {
			return 1.08, down
		}, policyd.Using(client))
		switch {
		case err != nil:
			return "no rate: " + err.Error()
		case age > 0:
			return fmt.Sprint(v, " (not fresh)")
		}
		return fmt.Sprint(v)
	}
	fmt.Println(rate("EUR/USD"))
	down = policyd.Retryable(errors.New("connection pool is exhausted"))
	fmt.Println(rate("EUR/USD"))
	// Output:
	// 1.08
	// 1.08 (not fresh)
}

// What the policy advises to do instead. It never acts by itself.
func ExampleError_Fallback() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/reviews}
spec: {maxAttempts: 1, fallback: {mode: static, static: {status: 200, contentType: application/json, body: "[]"}}}
`)
	reviews, err := policyd.DoOr(context.Background(), "shop/reviews/list",
		func(context.Context) (string, error) { return "", policyd.Retryable(errors.New("down")) },
		func(_ context.Context, e *policyd.Error) (string, error) {
			advice := e.Fallback()
			switch advice.Mode {
			case policyd.FallbackStatic:
				return advice.Body, nil
			case policyd.FallbackCached:
				return "of a moment ago", nil // see LastGood
			case policyd.FallbackNone, policyd.FallbackFailFast:
			}
			return "", e
		}, policyd.Using(client))
	fmt.Println(reviews, err)
	// Output: [] <nil>
}

// A transport that answers for the upstream, as the policy says, when the policy gave up.
func ExampleStaticFallback() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/reviews/list}
spec: {maxAttempts: 1, fallback: {mode: static, static: {status: 200, contentType: application/json, body: "[]"}}}
`)
	server := flaky(9)
	defer server.Close()
	api := &http.Client{Transport: client.Transport(nil, policyd.StaticFallback(), policyd.Route("GET", "/", "shop/reviews/list"))}
	resp, err := api.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	o, _ := policyd.OutcomeOf(resp)
	fmt.Println(resp.StatusCode, string(body), "because of", o.Code)
	// Output: 200 [] because of attempts_exhausted
}

// A service in the middle sends once what its caller repeats.
func ExampleIncoming() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: global}
spec: {nested: {whenMarked: single-attempt}}
`)
	sends := func(ctx context.Context) (n int) {
		_, _ = policyd.Do(ctx, "shop/stock/items.get", func(context.Context) (int, error) {
			n++
			return 0, policyd.Retryable(errors.New("down"))
		}, policyd.Using(client))
		return n
	}
	handler := policyd.Incoming(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("sends for a marked request:", sends(r.Context()))
	}))
	request := httptest.NewRequest(http.MethodGet, "/orders/1", http.NoBody)
	request.Header.Set("Baggage", "policyd.attempt=1")
	handler.ServeHTTP(httptest.NewRecorder(), request)

	// Servers of other kinds, a consumer of messages for example.
	fmt.Println("for a marked message:", sends(policyd.WithIncoming(context.Background(), "policyd.attempt=2,tenant=7")))
	fmt.Println("for any other:", sends(policyd.WithIncoming(context.Background(), "tenant=7")))
	// Output:
	// sends for a marked request: 1
	// for a marked message: 1
	// for any other: 3
}
