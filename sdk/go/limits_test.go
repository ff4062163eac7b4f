// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// fails makes n calls that fail.
func fails(t *testing.T, c *policyd.Client, n int) {
	t.Helper()
	for range n {
		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, policyd.Retryable(errBoom) }, policyd.Using(c))
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
	}
}

func breakerState(c *policyd.Client) engine.BreakerState { return c.Stats(ep).Breaker.State }

func TestO_BR_01_one_probe_at_a_time(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, b0)
		fails(t, c, 10)
		time.Sleep(5 * time.Second)
		var sends, refused atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				began := time.Now()
				_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
					sends.Add(1)
					time.Sleep(time.Second)
					return 0, nil
				}, policyd.Using(c))
				if errors.Is(err, policyd.ErrBreakerOpen) {
					refused.Add(1)
					if time.Since(began) > 10*time.Millisecond {
						t.Error("refused late")
					}
				}
			})
		}
		wg.Wait()
		if sends.Load() != 1 || refused.Load() != 49 || breakerState(c) != engine.BreakerClosed {
			t.Fatalf("%d sends, %d refused, %v", sends.Load(), refused.Load(), breakerState(c))
		}
	})
}

func TestO_BR_04_a_neutral_probe_gives_its_slot_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, b0)
		fails(t, c, 10)
		time.Sleep(5 * time.Second)
		rt := c.Transport(statuses(404), everything)
		for range 3 {
			if resp := get(t, rt); resp.StatusCode != 404 {
				t.Fatal(resp.StatusCode)
			}
		}
		if s := breakerState(c); s != engine.BreakerHalfOpen {
			t.Fatal(s)
		}
	})
}

func TestO_BR_05_a_panic_is_a_failure_and_goes_through(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, c *policyd.Client, value any){
		"Do": func(t *testing.T, c *policyd.Client, value any) {
			t.Helper()
			_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { panic(value) }, policyd.Using(c))
		},
		"Transport": func(t *testing.T, c *policyd.Client, value any) {
			t.Helper()
			rt := c.Transport(roundTripFunc(func(*http.Request) (*http.Response, error) { panic(value) }), everything)
			_, _ = rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, with(b0, set{engine.TimeoutsAttempt: ms(1000)}))
				fails(t, c, 10)
				value := &struct{ n int }{7}
				for range 2 {
					time.Sleep(5 * time.Second)
					if s := breakerState(c); s != engine.BreakerHalfOpen {
						t.Fatal(s)
					}
					func() {
						defer func() {
							if got := recover(); got != any(value) {
								t.Errorf("recovered %v", got)
							}
						}()
						call(t, c, value)
					}()
					if s := breakerState(c); s != engine.BreakerOpen {
						t.Fatal(s)
					}
				}
			})
		})
	}
}

func TestO_BR_06_callers_that_walk_away_are_neutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(b0, set{engine.TimeoutsAttempt: ms(1000), engine.BreakerRatioMinCalls: engine.Int(10)}))
		cause := errors.New("tab closed")
		walk := func(i int) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			stop := context.CancelFunc(func() {})
			switch {
			case i < 10:
				time.AfterFunc(5*time.Millisecond, func() { cancel(cause) })
			case i < 20:
				ctx, stop = context.WithTimeout(ctx, 5*time.Millisecond)
			default:
				time.AfterFunc(5*time.Millisecond, func() { cancel(nil) })
			}
			defer stop()
			if i%2 == 0 {
				_, _ = policyd.Do(ctx, ep, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) }, policyd.Using(c))
				return
			}
			_, err := c.Transport(newScript(answer{wait: time.Hour}), everything).RoundTrip(request(t, ctx, http.MethodGet, nil))
			if err == nil {
				t.Error("no error")
			}
		}
		for i := range 50 {
			walk(i)
		}
		if st := c.Stats(ep); st.Breaker.State != engine.BreakerClosed || st.Failed != 0 || st.Cancelled != 50 {
			t.Fatalf("%+v", st)
		}
		for range 10 { // our own limit does count
			_, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }, policyd.Using(c))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if s := breakerState(c); s != engine.BreakerOpen {
			t.Fatal(s)
		}
	})
}

func TestO_BR_13_a_probe_that_never_ends_gives_its_slot_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(b0, set{engine.TimeoutsAttempt: ms(2000)}))
		fails(t, c, 10)
		began := time.Now()
		var mu sync.Mutex
		var sends []time.Duration
		var wg sync.WaitGroup
		for range 120 { // a caller every 100 ms
			time.Sleep(100 * time.Millisecond)
			wg.Go(func() {
				_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
					mu.Lock()
					sends = append(sends, time.Since(began))
					mu.Unlock()
					time.Sleep(10 * time.Minute) // whatever the context says
					return 0, nil
				}, policyd.Using(c))
			})
		}
		synctest.Wait()
		mu.Lock()
		got := slices.Clone(sends)
		mu.Unlock()
		wg.Wait()
		equalTimes(t, got, 5*time.Second, 12*time.Second)
		if s := breakerState(c); s == engine.BreakerClosed {
			t.Fatal("a late result of a probe that was given up closed the breaker")
		}
	})
}

func TestO_BR_16_no_lock_is_held_while_the_function_runs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(b0, set{engine.TimeoutsAttempt: ms(60_000)}))
		began := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { time.Sleep(time.Second); return 0, nil }, policyd.Using(c))
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Fatal(took)
		}
	})
}

func TestBreaker_error_says_when_and_why(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(b0, set{
			engine.BreakerRatioEnabled: engine.Bool(false), engine.BreakerConsecutiveEnabled: engine.Bool(true),
			engine.BreakerConsecutiveFailures: engine.Int(5), engine.BreakerConsecutiveOpenFor: ms(12_000),
		}))
		fails(t, c, 5)
		s := statuses(200)
		client := &http.Client{Transport: c.Transport(s, everything)}
		_, err := client.Get("http://upstream.test/items")
		const want = `Get "http://upstream.test/items": policyd: shop/upstream/call: breaker_open, next probe in 12s (rule consecutive: 5 failures)`
		if err == nil || err.Error() != want {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
		var pe *policyd.Error
		if !errors.As(err, &pe) || pe.Attempts != 0 || time.Until(pe.RetryAt) != 12*time.Second || pe.Scope != ep || s.count() != 0 {
			t.Fatalf("%+v after %d sends", pe, s.count())
		}
		put(c, b0, killSwitch(engine.ForceOpen, time.Hour))
		_, err = client.Get("http://upstream.test/items")
		if !errors.As(err, &pe) || pe.Code != policyd.CodeBreaker || pe.Switch == nil || pe.Switch.ID != "ks-7f3a" || pe.Scope != "shop" {
			t.Fatalf("%v", err)
		}
		forced := "policyd: shop/upstream/call: breaker_open by ks-7f3a (INC-2481, until " + pe.Switch.ExpiresAt.UTC().Format("15:04") + "Z)"
		if pe.Error() != forced {
			t.Fatalf("got  %v\nwant %s", pe, forced)
		}
	})
}

// tight is P0 with a budget and nothing that adds to it.
func tight(ratio float64, changes ...set) set {
	return with(with(p0, set{
		engine.BudgetRatio: decimal(ratio), engine.BudgetMinRetriesPerSecond: decimal(0), engine.BudgetWindow: ms(10_000),
		engine.BackoffBase: ms(3000), engine.MaxAttempts: engine.Int(2),
	}), changes...)
}

// together starts n calls, lets all of them be in flight, and fails the ones that at tells
// a time for at that time; it returns the number of second sends.
func together(t *testing.T, c *policyd.Client, n int, at func(i int) time.Duration, ctxs func(i int) context.Context) (second int64) {
	t.Helper()
	var retried atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := policyd.Do(ctxs(i), ep, func(ctx context.Context) (int, error) {
				if a, _ := policyd.AttemptFrom(ctx); a.Number > 1 {
					retried.Add(1)
				} else {
					time.Sleep(at(i))
				}
				return 0, policyd.Retryable(errBoom)
			}, policyd.Using(c))
			if err == nil {
				t.Error("no error")
			}
		})
	}
	wg.Wait()
	return retried.Load()
}

func TestO_BG_01_layers_deposit_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, tight(0.1, set{engine.BudgetMinRetriesPerSecond: decimal(10)}))
		client := &http.Client{Transport: c.Transport(statuses(200), everything)}
		for i, want := range map[int]int64{5: 100, 10: 101} {
			c = newClient(t, tight(0.1, set{engine.BudgetMinRetriesPerSecond: decimal(10)}))
			client.Transport = c.Transport(statuses(200), everything)
			for range i {
				_, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) {
					resp, err := client.Do(request(t, ctx, http.MethodGet, nil))
					if err != nil {
						return 0, err
					}
					return resp.StatusCode, resp.Body.Close()
				}, policyd.Using(c))
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := c.Stats(ep).Budget.Allowed; got != want {
				t.Fatalf("%d retries allowed after %d calls, want %d", got, i, want)
			}
		}
	})
}

func TestO_BG_03_the_permit_of_a_cancelled_retry_goes_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, tight(0.1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		first := func(i int) bool { return i < 50 }
		retried := together(t, c, 100,
			func(i int) time.Duration {
				if first(i) {
					return 0
				}
				return 2 * time.Second
			},
			func(i int) context.Context {
				if first(i) {
					return ctx
				}
				return t.Context()
			})
		if retried != 10 {
			t.Fatalf("%d second sends, want 10", retried)
		}
	})
}

func TestO_BG_04_permits_are_reserved_at_the_decision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, tight(0.2))
		if got := together(t, c, 20, func(int) time.Duration { return time.Second }, func(int) context.Context { return t.Context() }); got != 4 {
			t.Fatalf("%d second sends, want 4", got)
		}
	})
}

func TestO_BG_06_concurrent_callers_never_spend_a_permit_twice(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, tight(0.1))
			if got := together(t, c, 1000, func(int) time.Duration { return time.Second }, func(int) context.Context { return t.Context() }); got != 100 {
				t.Fatalf("%d retries, want 100", got)
			}
		})
	}
}

func TestBudget_and_gate_say_why(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, tight(0.1))
		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, httpError(503) }, policyd.Using(c))
		const want = "policyd: shop/upstream/call: budget_exhausted (10 % of calls in 10s): status 503"
		if err == nil || err.Error() != want || !errors.Is(err, policyd.ErrBudget) {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
		put(c, tight(0.1), killSwitch(engine.TightenBudget, time.Hour))
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, httpError(503) }, policyd.Using(c))
		var pe *policyd.Error
		if !errors.As(err, &pe) || pe.Switch == nil {
			t.Fatal(err)
		}
		tightened := fmt.Sprintf("policyd: shop/upstream/call: budget_exhausted (10 %% of calls in 10s), tightened by ks-7f3a (INC-2481, until %sZ): status 503",
			pe.Switch.ExpiresAt.UTC().Format("15:04"))
		if err.Error() != tightened {
			t.Fatalf("got  %v\nwant %s", err, tightened)
		}

		for limit, text := range map[*set]string{
			{engine.BudgetTokensEnabled: engine.Bool(true)}: "10 % of calls in 10s, or tokens",
			{engine.BudgetScope: engine.Enum("service")}:    "of the service",
		} {
			c = newClient(t, p0)
			c.Put([]engine.Document{
				{Scope: engine.Global, Revision: 3, Settings: open},
				{Scope: "shop/upstream", Revision: 4, Settings: with(tight(0.1), *limit)},
			})
			_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, httpError(503) }, policyd.Using(c))
			if err == nil || !strings.Contains(err.Error(), "budget_exhausted ("+text+"): status 503") {
				t.Fatalf("got %v\nwant %s", err, text)
			}
		}

		c = newClient(t, with(p0, set{engine.BudgetSuccessGateEnabled: engine.Bool(true), engine.MaxAttempts: engine.Int(2)}))
		fails(t, c, 20)
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, httpError(503) }, policyd.Using(c))
		const gate = "policyd: shop/upstream/call: success_gate_closed (under 90 % of the last 100 calls succeeded): status 503"
		if err == nil || err.Error() != gate {
			t.Fatalf("got  %v\nwant %s", err, gate)
		}
	})
}

func TestBreaker_forced_by_a_switch_is_told_to_the_hook_and_logged_once_for_all(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var events []string
		log := newLog()
		c := newClient(t, b0, policyd.WithLogger(log.logger()), policyd.WithHooks(policyd.Hooks{OnBreaker: func(e policyd.BreakerEvent) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.From+" to "+e.To)
		}}))
		told := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(events, want) {
				t.Fatalf("told %q, want %q", events, want)
			}
		}
		c.Touch(ep)
		put(c, b0, killSwitch(engine.ForceOpen, time.Hour))
		told("closed to forced-open")
		put(c, b0)
		told("closed to forced-open", "forced-open to closed")
		fails(t, c, 10)
		put(c, with(b0, set{engine.BreakerEnabled: engine.Bool(false)}))
		told("closed to forced-open", "forced-open to closed", "closed to open", "open to closed")
		if n := log.count("DEBUG breaker"); n != 2 {
			t.Fatalf("%d lines about the forced breaker, want 2 for debugging:\n%s", n, log)
		}
		if log.count("WARN breaker open") != 1 || log.count("INFO breaker closed") != 1 {
			t.Fatalf("log:\n%s", log)
		}
	})
}

func TestCall_a_call_that_is_to_be_sent_once_is_not_repeated_by_a_layer_within(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		s := statuses(503)
		client := &http.Client{Transport: c.Transport(s, everything)}
		_, err := policyd.Do(t.Context(), "shop/other/outer", func(ctx context.Context) (int, error) {
			resp, err := client.Do(request(t, ctx, http.MethodGet, nil))
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}, policyd.Using(c), policyd.WithoutRetry())
		if err != nil || s.count() != 1 {
			t.Fatalf("%d sends, %v; want 1", s.count(), err)
		}
	})
}

func TestEndpoints_do_not_keep_the_URLs_that_named_them(t *testing.T) {
	c := newClient(t, nil)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	rt := c.Transport(statuses(200))
	before := heap()
	for i := range 100 {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://host%d.test/?q=%s", i, strings.Repeat("x", 1<<20)), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	rt = nil
	if after := heap(); after > before+20<<20 {
		t.Fatalf("100 hosts keep %d MB", (after-before)>>20)
	}
	runtime.KeepAlive(c)
}
