// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

// fromFile is a client of policies in a file, as one without policyd is.
func fromFile(policies string, opts ...policyd.Option) *policyd.Client {
	dir, err := os.MkdirTemp("", "policyd-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(path, []byte(policies), 0o600); err != nil {
		log.Fatal(err)
	}
	opts = append([]policyd.Option{policyd.WithPolicyFile(path), policyd.WithCacheDir(""), policyd.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	c, err := policyd.New(opts...)
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// All options; most services set the environment instead, and use the process's client.
// Nothing is dialled before the first call, and what is wrong is reported at once.
func ExampleNew() {
	client, err := policyd.New(
		policyd.WithAddr("policyd-0.prod:7400,policyd-1.prod:7400"),
		policyd.WithService("shop", "checkout"),
		policyd.WithInstance("checkout-7d9f"),
		policyd.WithTargets("shop", "bank/ledger"),
		policyd.WithTLS("/etc/policyd/ca.pem", "", ""),
		policyd.WithTokenFile("/var/run/secrets/policyd/token"),
		policyd.WithMode(policyd.Enforce),
		policyd.WithLogger(slog.New(slog.DiscardHandler)),
		policyd.WithCacheDir(""),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(context.Background())
	fmt.Println(client.Status().State)

	_, err = policyd.New(policyd.WithMode("enforced"), policyd.WithAddr("https://policyd"))
	fmt.Println(err)
	// Output:
	// connecting
	// policyd: WithMode: unknown mode "enforced" (enforce, observe, off)
	// policyd: WithAddr: address starts with a scheme ("https"): write host:port
}

// The process's client, which Transport and Do use unless Using names another.
func ExampleDefault() {
	http.Handle("/debug/policyz", policyd.Default().Handler())
	fmt.Println(policyd.Default().Status().State, policyd.Version)
	// Output: static 0.1.0
}

// Decide and count, but change nothing: the safe way to begin. Off does not even decide.
func ExampleWithMode() {
	for _, mode := range []policyd.Mode{policyd.Enforce, policyd.Observe, policyd.Off} {
		server := flaky(2)
		client, err := policyd.New(policyd.WithMode(mode), policyd.WithCacheDir(""))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := (&http.Client{Transport: client.Transport(nil)}).Get(server.URL)
		if err == nil {
			resp.Body.Close()
			fmt.Println(mode, resp.StatusCode)
		}
		server.Close()
	}
	// Output:
	// enforce 200
	// observe 503
	// off 503
}

// Policies from a file, and where each value comes from.
func ExampleWithPolicyFile() {
	client := fromFile(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop}
spec: {maxAttempts: 2}
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/payments}
spec: {maxAttempts: 4, backoff: {base: 100ms}}
`)
	defer client.Close(context.Background())
	show := func(e policyd.Effective, path string) {
		v := e.Values[path]
		fmt.Println(path, v.Value, "from", v.From)
		for _, hidden := range v.Shadow {
			fmt.Println("  over", hidden.Value, "from", hidden.From)
		}
	}
	e := client.Effective("shop/payments/charges.get")
	show(e, "maxAttempts")
	show(e, "backoff.base")
	show(e, "budget.ratio")
	// Output:
	// maxAttempts 4 from shop/payments
	//   over 2 from shop
	//   over 3 from built-in
	// backoff.base 100ms from shop/payments
	//   over 200ms from built-in
	// budget.ratio 0.1 from built-in
}

// What a health endpoint tells. In every state calls proceed: none of them is a reason to
// take an instance out of service.
func ExampleClient_Status() {
	says := map[policyd.State]string{
		policyd.StateStatic:     "no policyd is configured",
		policyd.StateConnecting: "policyd was not reached yet",
		policyd.StateLive:       "what operators saved is in force",
		policyd.StateStale:      "policyd is away; the last policies stay",
		policyd.StateRejected:   "the newest policy needs a newer SDK; the one before stays",
	}
	health := func(s policyd.Status) {
		fmt.Printf("%s: %s (revision %d, from %s)\n", s.State, says[s.State], s.Revision, s.Source)
		for _, sw := range s.Switches {
			fmt.Println("kill switch", sw.ID, sw.Action, sw.Scope, "until", sw.ExpiresAt)
		}
	}
	health(exampleClient().Status())
	// Output: static: no policyd is configured (revision 0, from built-in)
}

// A readiness probe that waits for policies, but not for ever.
func ExampleClient_WaitReady() {
	client := exampleClient()
	ready := func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := client.WaitReady(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
	w := httptest.NewRecorder()
	ready(w, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
	fmt.Println(w.Code)
	// Output: 200
}

// Flush and stop at the end of the process. Calls made later still work.
func ExampleClient_Close() {
	client := exampleClient()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println(client.Close(ctx))
	// Output: <nil>
}

// The page with status, breakers, budgets and decisions, for operators.
func ExampleClient_Handler() {
	client := exampleClient()
	mux := http.NewServeMux()
	mux.Handle("/debug/policyz", client.Handler())
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/policyz?format=json", http.NoBody))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 application/json
}

// Counts by endpoint: amplification, rescue rate, and what was suppressed, by reason.
func ExampleClient_Endpoints() {
	server := flaky(2)
	defer server.Close()
	client := exampleClient()
	api := &http.Client{Transport: client.Transport(nil, policyd.Route("GET", "/", "shop/greeting/hello"))}
	if resp, err := api.Get(server.URL); err == nil {
		resp.Body.Close()
	}
	for _, s := range client.Endpoints() {
		fmt.Println(s.Endpoint, "amplification", float64(s.Attempts())/float64(s.Calls),
			"rescued", s.Rescued, "breaker", s.Breaker.State, "no budget", s.Suppressed(policyd.CodeBudget))
	}
	// Output: shop/greeting/hello amplification 2 rescued 1 breaker closed no budget 0
}

// Hooks tell of decisions on the caller's goroutine, and of changes of state on one of the
// client.
func ExampleWithHooks() {
	server := flaky(2)
	defer server.Close()
	client, err := policyd.New(policyd.WithCacheDir(""), policyd.WithHooks(policyd.Hooks{
		OnRetry: func(_ context.Context, e policyd.RetryEvent) {
			fmt.Println("attempt", e.Next.Number, "of", e.Next.Max, "after", e.Status)
		},
		OnGiveUp:  func(_ context.Context, e *policyd.Error) { log.Print(e) },
		OnBreaker: func(e policyd.BreakerEvent) { log.Print(e.Endpoint, e.From, e.To, e.Rule) },
		OnPolicy:  func(e policyd.PolicyEvent) { log.Print(e.Revision, e.Changed, e.Err) },
		OnSwitch:  func(s policyd.Switch, active bool) { log.Print(s.ID, active) },
		OnClient:  func(c *policyd.Client) { fmt.Println("client is", c.Status().State) },
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := (&http.Client{Transport: client.Transport(nil)}).Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	// Output:
	// client is static
	// attempt 2 of 3 after 503
}

// Errors that policies made, told apart.
func ExampleCode() {
	describe := func(err error) string {
		var e *policyd.Error
		if !errors.As(err, &e) {
			return "the error of the call itself"
		}
		switch e.Code {
		case policyd.CodeBreaker, policyd.CodeConcurrency:
			return "refused, nothing was sent"
		case policyd.CodeAttempts, policyd.CodeBudget, policyd.CodeGate:
			return "tried as often as is good for the service"
		case policyd.CodeSwitch:
			return "an operator has turned retries off: " + e.Switch.Incident
		case policyd.CodeDeadline, policyd.CodeRetryAfter:
			return "there is no time for another attempt"
		case policyd.CodeNotSafe, policyd.CodeBody:
			return "may not, or cannot, be sent again"
		case policyd.CodeKeyConflict:
			return "the idempotency key was used for something else: a bug here"
		case policyd.CodeQueued:
			return "kept, to be sent later"
		case policyd.CodeQueueFull, policyd.CodeQueueExpired:
			return "not kept, or kept for too long"
		}
		return string(e.Code)
	}
	_, err := policyd.Do(context.Background(), "mail/relay/send", func(context.Context) (string, error) {
		return "", policyd.Retryable(errors.New("421 try later"))
	}, policyd.Using(exampleClient()), policyd.Idempotent(false))
	fmt.Println(describe(err))
	// Output: may not, or cannot, be sent again
}
