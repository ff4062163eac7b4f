// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// hedged sends again after 300 ms.
var hedged = with(p0, set{engine.HedgingEnabled: engine.Bool(true), engine.HedgingAfter: engine.Text("300ms")})

func TestHedging_the_faster_answer_reaches_the_caller_and_the_other_is_cancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		var first context.Context
		rt := roundTrip(func(req *http.Request) (*http.Response, error) {
			a, ok := policyd.AttemptFrom(req.Context())
			if !ok || a.Hedge != (a.Number == 2) {
				t.Errorf("attempt %+v", a)
			}
			body, _ := io.ReadAll(req.Body)
			if string(body) != "the whole body" {
				t.Errorf("attempt %d sent %q", a.Number, body)
			}
			if a.Number == 1 {
				first = req.Context()
				<-req.Context().Done()
				return nil, context.Cause(req.Context())
			}
			time.Sleep(50 * time.Millisecond)
			return &http.Response{StatusCode: 200, Request: req, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("hedge"))}, nil
		})
		req, _ := http.NewRequestWithContext(t.Context(), "PUT", "http://upstream.shop/", strings.NewReader("the whole body"))
		began := time.Now()
		resp, err := c.Transport(rt, everything).RoundTrip(req)
		if err != nil || time.Since(began) != 350*time.Millisecond {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != "hedge" || err != nil {
			t.Fatalf("%q %v", body, err)
		}
		if o := outcome(t, resp); o.Attempts != 2 || o.Code != "" {
			t.Fatalf("%+v", o)
		}
		if s := c.Stats(ep); first.Err() == nil || s.OK != 1 || s.Hedges != 1 || s.Failed != 0 || s.Cancelled != 0 {
			t.Fatalf("%v %+v", first.Err(), s)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestHedging_bodies_of_losers_are_closed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		// Both answers come at the same moment, whatever happens to their contexts.
		s := newScript(answer{status: 503, body: "slow", wait: 400 * time.Millisecond}, answer{status: 200, body: "quick", wait: 100 * time.Millisecond})
		for range 20 {
			s.mu.Lock()
			s.sends = nil
			s.mu.Unlock()
			resp := get(t, c.Transport(s, everything))
			_ = resp.Body.Close()
			synctest.Wait()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, b := range s.bodies {
			b.mu.Lock()
			if b.closed == 0 {
				t.Errorf("body %d of %d is open", i, len(s.bodies))
			}
			b.mu.Unlock()
		}
	})
}

func TestHedging_a_quick_answer_needs_no_hedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		s := newScript(answer{status: 200, wait: 299 * time.Millisecond})
		_ = get(t, c.Transport(s, everything)).Body.Close()
		if s.count() != 1 || c.Stats(ep).Hedges != 0 {
			t.Fatalf("%d sends", s.count())
		}
	})
}

func TestHedging_when_all_attempts_fail_the_call_goes_on_as_ever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		s := newScript(
			answer{status: 503, wait: 350 * time.Millisecond}, answer{status: 503, wait: 100 * time.Millisecond},
			answer{status: 200, body: "third"},
		)
		began := time.Now()
		resp := get(t, c.Transport(s, everything))
		if resp.StatusCode != 200 || time.Since(began) != 600*time.Millisecond || s.count() != 3 {
			t.Fatalf("%d after %v, %d sends", resp.StatusCode, time.Since(began), s.count())
		}
		_ = resp.Body.Close()
		if st := c.Stats(ep); st.Hedges != 1 || st.Retries != 1 || st.Rescued != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestHedging_never_sends_unsafe_calls_twice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		s := newScript(answer{status: 200, wait: time.Second})
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://upstream.shop/", strings.NewReader("x"))
		resp, err := c.Transport(s, everything).RoundTrip(req)
		if err != nil || s.count() != 1 {
			t.Fatalf("%v, %d sends", err, s.count())
		}
		_ = resp.Body.Close()
	})
}

func TestHedging_stops_while_a_switch_acts(t *testing.T) {
	for _, action := range []engine.Action{engine.DisableHedging, engine.DisableRetries} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, hedged)
			put(c, hedged, killSwitch(action, time.Hour))
			s := newScript(answer{status: 200, wait: time.Second})
			_ = get(t, c.Transport(s, everything)).Body.Close()
			if s.count() != 1 {
				t.Fatalf("%s: %d sends", action, s.count())
			}
		})
	}
}

func TestHedging_of_a_function_asks_for_its_word(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		var now, most, sends atomic.Int64
		fn := func(ctx context.Context) (string, error) {
			sends.Add(1)
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer now.Add(-1)
			a, _ := policyd.AttemptFrom(ctx)
			select {
			case <-time.After(time.Second / time.Duration(a.Number)):
				return []string{"first", "hedge"}[a.Number-1], nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		v, err := policyd.Do(t.Context(), ep, fn, policyd.Using(c))
		if v != "first" || err != nil || sends.Load() != 1 {
			t.Fatalf("%q %v, %d sends", v, err, sends.Load())
		}
		v, err = policyd.Do(t.Context(), ep, fn, policyd.Using(c), policyd.Concurrent())
		if v != "hedge" || err != nil || sends.Load() != 3 || most.Load() != 2 {
			t.Fatalf("%q %v, %d sends, %d at once", v, err, sends.Load(), most.Load())
		}
		synctest.Wait()
		if now.Load() != 0 {
			t.Fatal("the loser still runs")
		}
	})
}

func TestHedging_a_panic_or_Goexit_of_an_attempt_is_that_of_the_call(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		before := runtime.NumGoroutine()
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = policyd.Do(t.Context(), ep, func(ctx context.Context) (int, error) {
				if a, _ := policyd.AttemptFrom(ctx); a.Hedge {
					panic("boom")
				}
				<-ctx.Done()
				return 0, ctx.Err()
			}, policyd.Using(c), policyd.Concurrent())
		}()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
				runtime.Goexit()
				return 0, nil
			}, policyd.Using(c), policyd.Concurrent())
			t.Error("returned")
		})
		wg.Wait()
		synctest.Wait()
		if s := c.Stats(ep); s.Failed != 2 || s.Calls != 2 || runtime.NumGoroutine() > before {
			t.Fatalf("%+v, %d goroutines, %d before", s, runtime.NumGoroutine(), before)
		}
	})
}

func TestHedging_a_caller_that_leaves_takes_all_attempts_along(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hedged)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		s := newScript(answer{status: 200, wait: time.Minute})
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://upstream.shop/", http.NoBody)
		began := time.Now()
		resp, err := c.Transport(s, everything).RoundTrip(req)
		if resp != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 500*time.Millisecond || s.count() != 2 {
			t.Fatalf("%v %v after %v, %d sends", resp, err, time.Since(began), s.count())
		}
		synctest.Wait()
		if st := c.Stats(ep); st.Cancelled != 1 || st.Failed != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestHedging_each_attempt_has_its_own_time_limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(hedged, set{engine.TimeoutsAttempt: ms(500), engine.MaxAttempts: engine.Int(2)}))
		s := newScript(answer{status: 200, wait: time.Minute}, answer{status: 200, wait: 400 * time.Millisecond})
		began := time.Now()
		resp := get(t, c.Transport(s, everything))
		if resp.StatusCode != 200 || time.Since(began) != 700*time.Millisecond {
			t.Fatalf("%d after %v", resp.StatusCode, time.Since(began))
		}
		_ = resp.Body.Close()
		if st := c.Stats(ep); st.Rescued != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestHedging_p95_follows_what_calls_take(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(hedged, set{engine.HedgingAfter: engine.Text("p95")}))
		quick := newScript(answer{status: 200, wait: 20 * time.Millisecond})
		rt := c.Transport(quick, everything)
		for range 40 {
			_ = get(t, rt).Body.Close()
		}
		slow := newScript(answer{status: 200, wait: time.Minute}, answer{status: 200})
		began := time.Now()
		_ = get(t, c.Transport(slow, everything)).Body.Close()
		if took := time.Since(began); took < 20*time.Millisecond || took > 22*time.Millisecond {
			t.Fatalf("hedged after %v", took)
		}
	})
}

func TestHedging_observed_is_counted_and_not_sent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(hedged, set{engine.Observe: engine.Bool(true)}))
		s := newScript(answer{status: 200, wait: time.Second})
		_ = get(t, c.Transport(s, everything)).Body.Close()
		if st := c.Stats(ep); s.count() != 1 || st.Observed != 1 || st.Hedges != 0 {
			t.Fatalf("%d sends, %+v", s.count(), st)
		}
	})
}

func TestO_RT_10_a_failed_attempt_of_a_race_frees_its_connection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sends atomic.Int64
		network := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if sends.Add(1)%2 == 1 {
				time.Sleep(400 * time.Millisecond)
				w.WriteHeader(503)
				_, _ = io.WriteString(w, strings.Repeat("x", 8<<10)) // more than is there with the headers
				return
			}
			time.Sleep(500 * time.Millisecond)
			_, _ = io.WriteString(w, "hedge")
		})}
		go func() { _ = server.Serve(network) }()
		client := &http.Client{Transport: newClient(t, hedged).Transport(&http.Transport{DialContext: network.dial}, everything)}
		for range 5 {
			resp, err := client.Get("http://upstream.test/")
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hedge" {
				t.Fatalf("%q, %v", body, err)
			}
			_ = resp.Body.Close()
		}
		if sends.Load() != 10 || network.dials.Load() != 2 {
			t.Errorf("%d sends on %d connections", sends.Load(), network.dials.Load())
		}
		client.CloseIdleConnections()
		_ = server.Close()
	})
}
