// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

type httpError int

func (e httpError) Error() string   { return fmt.Sprint("status ", int(e)) }
func (e httpError) StatusCode() int { return int(e) }

// smithyError has the method of the AWS SDK.
type smithyError int

func (e smithyError) Error() string       { return fmt.Sprint("status ", int(e)) }
func (e smithyError) HTTPStatusCode() int { return int(e) }

func TestDo_which_errors_are_retried(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for name, c := range map[string]struct {
		err    error
		safe   bool // the call is idempotent
		tries  int
		change set
	}{
		"an unknown error":             {err: errBoom, safe: true, tries: 1},
		"retryable":                    {err: policyd.Retryable(errBoom), safe: true, tries: 5},
		"retryable, not safe":          {err: policyd.Retryable(errBoom), tries: 1},
		"retryable, then permanent":    {err: policyd.Permanent(policyd.Retryable(errBoom)), safe: true, tries: 1},
		"permanent inside":             {err: fmt.Errorf("save: %w", policyd.Permanent(syscall.ECONNRESET)), safe: true, tries: 1},
		"not sent, not safe":           {err: policyd.NotSent(errBoom), tries: 5},
		"not sent, but never":          {err: policyd.NotSent(errBoom), tries: 1, change: set{engine.IdempotencyOtherwise: engine.Enum("never")}},
		"refused connection, not safe": {err: fmt.Errorf("call: %w", dial), tries: 5},
		"reset":                        {err: fmt.Errorf("call: %w", syscall.ECONNRESET), safe: true, tries: 5},
		"reset, not safe":              {err: syscall.ECONNRESET, tries: 1},
		"reset, not in the policy":     {err: syscall.ECONNRESET, safe: true, tries: 1, change: set{engine.RetryOnNetwork: engine.Set("connect")}},
		"name not found":               {err: &net.DNSError{Err: "no such host", Name: "a", IsNotFound: true}, safe: true, tries: 5},
		"network time-out":             {err: &url.Error{Op: "Get", Err: context.DeadlineExceeded}, safe: true, tries: 1},
		"network time-out, listed":     {err: &url.Error{Op: "Get", Err: context.DeadlineExceeded}, safe: true, tries: 5, change: set{engine.RetryOnNetwork: engine.Set("timeout")}},
		"an end of file of its own":    {err: io.EOF, safe: true, tries: 1},
		"an end of file of net/http":   {err: &url.Error{Op: "Get", Err: io.EOF}, safe: true, tries: 5},
		"HTTP 503":                     {err: httpError(503), safe: true, tries: 5},
		"HTTP 503 of the AWS SDK":      {err: smithyError(503), safe: true, tries: 5},
		"HTTP 404":                     {err: httpError(404), safe: true, tries: 1},
		"gRPC unavailable":             {err: status.Error(codes.Unavailable, "down"), safe: true, tries: 5},
		"gRPC not found":               {err: status.Error(codes.NotFound, "no"), safe: true, tries: 1},
		"an error of another policy":   {err: fmt.Errorf("inner: %w", &policyd.Error{Code: policyd.CodeAttempts, Err: httpError(503)}), safe: true, tries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, with(p0, c.change))
				var opts []policyd.CallOption
				if !c.safe {
					opts = append(opts, policyd.Idempotent(false))
				}
				tries := 0
				_, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) {
					tries++
					if a, ok := policyd.AttemptFrom(ctx); !ok || a.Number != tries || a.Max != 5 {
						t.Errorf("attempt %+v, %t", a, ok)
					}
					return 7, c.err
				}, append(opts, policyd.Using(cl))...)
				if tries != c.tries || !errors.Is(err, c.err) {
					t.Fatalf("%d tries, want %d: %v", tries, c.tries, err)
				}
				if _, ours := err.(*policyd.Error); ours == (err == c.err) { //nolint:errorlint // unchanged or ours
					t.Fatalf("%T %v", err, err)
				}
			})
		})
	}
}

func TestDo_passes_on_what_the_policy_did_not_change(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		if v, err := policyd.Do(t.Context(), ep, func(context.Context) (string, error) { return "v", nil }, policyd.Using(c)); v != "v" || err != nil {
			t.Fatal(v, err)
		}
		plain := httpError(404)
		v, err := policyd.Do(t.Context(), ep, func(context.Context) (string, error) { return "partial", plain }, policyd.Using(c))
		if v != "partial" || err != error(plain) { //nolint:errorlint // unchanged
			t.Fatal(v, err)
		}
		failed := policyd.Retryable(errBoom)
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, failed }, policyd.Using(c), policyd.WithoutRetry())
		if err != failed { //nolint:errorlint // unchanged
			t.Fatal(err)
		}
	})
}

func TestDo_honours_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		began, tries := time.Now(), 0
		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
			if tries++; tries == 1 {
				return 0, policyd.RetryAfter(errBoom, 7*time.Second)
			}
			return 0, nil
		}, policyd.Using(c))
		if err != nil || time.Since(began) != 7*time.Second {
			t.Fatal(err, time.Since(began))
		}
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
			return 0, policyd.Retryable(policyd.RetryAfter(errBoom, time.Minute))
		}, policyd.Using(c))
		const want = "policyd: shop/upstream/call: retry_after_too_long: server asks 1m0s, limit 20s: boom"
		if err == nil || err.Error() != want {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
	})
}

func TestDo_takes_the_method_of_the_endpoint_into_account(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := newClient(t, with(p0, set{engine.MatchHTTPMethod: engine.Text("POST"), engine.MatchHTTPPath: engine.Text("/call")}),
			policyd.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		fail := func(context.Context) (int, error) { return 0, httpError(503) }
		for range 2 {
			_, err := policyd.Do(t.Context(), ep, fail, policyd.Using(c))
			const want = "policyd: shop/upstream/call: not_idempotent: set an Idempotency-Key or policyd.Idempotent(true): status 503"
			if err == nil || err.Error() != want {
				t.Fatalf("got  %v\nwant %s", err, want)
			}
		}
		if n := strings.Count(log.String(), "not idempotent"); n != 1 {
			t.Fatalf("logged %d times:\n%s", n, &log)
		}
		for name, opt := range map[string]policyd.CallOption{"safe": policyd.Idempotent(true), "keyed": policyd.IdempotencyKey("k")} {
			if _, err := policyd.Do(t.Context(), ep, fail, policyd.Using(c), opt); !errors.Is(err, policyd.ErrAttempts) {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

func TestDo_reuses_the_key_on_every_attempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.IdempotencyKeyAuto: engine.Bool(true), engine.IdempotencyKeyEnabled: engine.Bool(true)}))
		s := statuses(503, 503, 201)
		client := &http.Client{Transport: c.Transport(s, everything)}
		for name, opts := range map[string][]policyd.CallOption{
			"given": {policyd.IdempotencyKey("order-7")}, "of its own": {policyd.Idempotent(false)},
		} {
			keys := map[string]bool{}
			_, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) {
				a, _ := policyd.AttemptFrom(ctx)
				keys[a.IdempotencyKey] = true
				resp, err := client.Do(request(t, ctx, http.MethodPost, nil))
				if err != nil {
					return 0, err
				}
				defer resp.Body.Close()
				if resp.StatusCode > 299 {
					return 0, httpError(resp.StatusCode)
				}
				return 0, nil
			}, append(opts, policyd.Using(c))...)
			if err != nil || len(keys) != 1 || keys[""] {
				t.Fatalf("%s: %v, %v", name, keys, err)
			}
			for _, r := range s.seen {
				if !keys[r.Header.Get("Idempotency-Key")] {
					t.Fatalf("%s: sent %q, want %v", name, r.Header.Get("Idempotency-Key"), keys)
				}
			}
			s.seen, s.sends = nil, nil
		}
	})
}

func TestDo_with_a_response(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.TimeoutsAttempt: ms(1000)}))
		s := newScript(answer{status: 503, body: "busy"}, answer{status: 200, body: "ok"}, answer{status: 503, body: "busy"})
		client := &http.Client{Transport: s}
		call := func() (*http.Response, error) {
			return policyd.Do(t.Context(), ep, func(ctx context.Context) (*http.Response, error) {
				return client.Do(request(t, ctx, http.MethodGet, nil))
			}, policyd.Using(c))
		}
		resp, err := call()
		if err != nil || resp.StatusCode != 200 || s.count() != 2 {
			t.Fatal(resp, err)
		}
		time.Sleep(time.Minute) // longer than the attempt may take
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" || resp.Body.Close() != nil {
			t.Fatalf("%q, %v", body, err)
		}
		if o := outcome(t, resp); o.Attempts != 2 || o.Code != "" {
			t.Fatalf("%+v", o)
		}
		resp, err = call() // always 503: the last one comes back
		if err != nil || resp.StatusCode != 503 || outcome(t, resp).Code != policyd.CodeAttempts {
			t.Fatal(resp, err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "busy" || resp.Body.Close() != nil {
			t.Fatalf("%q, %v", body, err)
		}
		for i, b := range s.bodies {
			if _, closed := b.state(); closed != 1 {
				t.Fatalf("body %d closed %d times", i+1, closed)
			}
		}
	})
}

func TestDo_with_a_response_that_never_comes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.TimeoutsAttempt: ms(1000), engine.MaxAttempts: engine.Int(2)}))
		client := &http.Client{Transport: newScript(answer{status: 200, wait: time.Hour})}
		resp, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (*http.Response, error) {
			return client.Do(request(t, ctx, http.MethodGet, nil))
		}, policyd.Using(c))
		if resp != nil || !errors.Is(err, policyd.ErrAttempts) || errors.Is(err, context.Canceled) {
			t.Fatal(resp, err)
		}
	})
}

func TestDo_ends_the_context_of_an_attempt(t *testing.T) {
	for name, change := range map[string]set{"without a time limit": nil, "with one": {engine.TimeoutsAttempt: ms(1000)}} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, with(p0, change))
			var kept context.Context
			_, _ = policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) {
				if _, limited := ctx.Deadline(); limited != (change != nil) {
					t.Errorf("has a deadline: %t", limited)
				}
				kept = ctx
				return 0, nil
			}, policyd.Using(c))
			if kept.Err() == nil {
				t.Fatal("the context goes on")
			}
		})
	}
}

func TestDo_of_a_caller_that_is_gone_does_not_run(t *testing.T) {
	c := newClient(t, p0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := policyd.Do(ctx, ep, func(context.Context) (int, error) { t.Error("ran"); return 0, nil }, policyd.Using(c))
	if err != context.Canceled { //nolint:errorlint // unchanged
		t.Fatal(err)
	}
}

func TestDo_of_a_caller_that_leaves_with_a_cause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		gone := errors.New("tab closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
		_, err := policyd.Do(ctx, ep, func(context.Context) (int, error) { return 0, policyd.Retryable(errBoom) }, policyd.Using(c))
		const want = "policyd: shop/upstream/call: context canceled (tab closed) after 1 attempt: boom"
		if err == nil || err.Error() != want || !errors.Is(err, context.Canceled) || !errors.Is(err, gone) || !errors.Is(err, errBoom) {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
	})
}

func TestDoOr_falls_back_only_when_the_policy_gave_up(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		run := func(err error) (string, error) {
			return policyd.DoOr(t.Context(), ep,
				func(context.Context) (string, error) { return "fresh", err },
				func(_ context.Context, e *policyd.Error) (string, error) { return "kept: " + string(e.Code), nil },
				policyd.Using(c))
		}
		if v, err := run(nil); v != "fresh" || err != nil {
			t.Fatal(v, err)
		}
		if v, err := run(policyd.Retryable(errBoom)); v != "kept: attempts_exhausted" || err != nil {
			t.Fatal(v, err)
		}
		if _, err := run(errBoom); err != errBoom { //nolint:errorlint // unchanged
			t.Fatal(err)
		}
	})
}

func TestHooks_run_on_the_callers_goroutine_and_may_panic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var events []policyd.RetryEvent
		var gaveUp []*policyd.Error
		c := newClient(t, with(p0, set{engine.MaxAttempts: engine.Int(3)}), policyd.WithHooks(policyd.Hooks{
			OnRetry: func(ctx context.Context, e policyd.RetryEvent) {
				if ctx.Value(key{}) != "caller" {
					t.Error("not the caller's context")
				}
				events = append(events, e)
				panic("hook")
			},
			OnGiveUp: func(_ context.Context, e *policyd.Error) { gaveUp = append(gaveUp, e); panic("hook") },
		}))
		ctx := context.WithValue(t.Context(), key{}, "caller")
		resp, err := c.Transport(statuses(503), everything).RoundTrip(request(t, ctx, http.MethodGet, nil))
		if err != nil || resp.StatusCode != 503 || len(events) != 2 || len(gaveUp) != 1 {
			t.Fatal(resp, err, events, gaveUp)
		}
		e := events[1]
		if e.Endpoint != ep || e.Next.Number != 3 || e.Next.Max != 3 || e.Wait != 400*time.Millisecond || e.Status != 503 || e.Cause.Error() != "503 Service Unavailable" {
			t.Fatalf("%+v", e)
		}
		if gaveUp[0].Code != policyd.CodeAttempts || gaveUp[0].Attempts != 3 {
			t.Fatalf("%+v", gaveUp[0])
		}
	})
}

func TestWithCall_options_add_up(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		ctx := policyd.WithCall(t.Context(), policyd.Using(c), policyd.Idempotent(false))
		ctx = policyd.WithCall(ctx, policyd.IdempotencyKey("outer"), nil)
		var keys []string
		fail := func(ctx context.Context) (int, error) {
			a, _ := policyd.AttemptFrom(policyd.WithCall(ctx))
			keys = append(keys, a.IdempotencyKey)
			return 0, policyd.Retryable(errBoom)
		}
		_, err := policyd.Do(ctx, ep, fail)
		_, err2 := policyd.Do(ctx, ep, fail, policyd.IdempotencyKey("own"))
		if !errors.Is(err, policyd.ErrAttempts) || !errors.Is(err2, policyd.ErrAttempts) || len(keys) != 10 || keys[0] != "outer" || keys[9] != "own" {
			t.Fatal(err, err2, keys)
		}
		if _, ok := policyd.AttemptFrom(ctx); ok {
			t.Fatal("no attempt outside of a call")
		}
	})
}

func TestDo_by_a_thousand_goroutines(t *testing.T) {
	c := newClient(t, with(quick, set{engine.BreakerConsecutiveEnabled: engine.Bool(true)}))
	noLeak(t, 0, func() {
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				defer func() {
					if p := recover(); p != nil && p != "boom" {
						t.Errorf("panic %v", p)
					}
				}()
				for j := range 20 {
					_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
						switch (i + j) % 5 {
						case 0:
							return 0, policyd.Retryable(errBoom)
						case 1:
							panic("boom")
						}
						return 1, nil
					}, policyd.Using(c))
					var pe *policyd.Error
					if err != nil && !errors.As(err, &pe) {
						t.Errorf("%v", err)
					}
				}
			})
		}
		wg.Wait()
	})
	if st := c.Stats(ep); st.Budget.Used > int64(st.Retries) {
		t.Fatalf("permits are lost: %+v", st)
	}
}
