// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestO_RT_01_a_huge_Retry_After_never_makes_an_early_retry(t *testing.T) {
	for _, value := range []string{"9223372037", "9223372036854775807", strings.Repeat("9", 40)} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, with(p0, set{engine.RetryAfterMax: ms(30_000)}))
			s := newScript(answer{status: 503, header: http.Header{"Retry-After": {value}}})
			resp := get(t, c.Transport(s, everything))
			if resp.StatusCode != 503 || s.count() != 1 {
				t.Fatalf("%s: status %d after %d sends", value, resp.StatusCode, s.count())
			}
			if o := outcome(t, resp); o.Code != policyd.CodeRetryAfter || o.Waited != 0 {
				t.Fatalf("outcome %+v", o)
			}
		})
	}
}

func TestO_RT_02_a_Retry_After_above_the_limit_ends_the_call(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told *policyd.Error
		c := newClient(t, with(p0, set{engine.RetryOnHTTP: engine.Set("429"), engine.RetryAfterMax: ms(30_000)}),
			policyd.WithHooks(policyd.Hooks{OnGiveUp: func(_ context.Context, e *policyd.Error) { told = e }}))
		s := newScript(answer{status: 429, header: http.Header{"Retry-After": {"3600"}}, body: "slow down"})
		resp := get(t, c.Transport(s, everything))
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 429 || string(body) != "slow down" || s.count() != 1 {
			t.Fatalf("%d %q %v after %d sends", resp.StatusCode, body, err, s.count())
		}
		const want = "policyd: shop/upstream/call: retry_after_too_long: server asks 1h0m0s, limit 30s: 429 Too Many Requests"
		if told == nil || told.Error() != want {
			t.Fatalf("hook got %v, want %s", told, want)
		}
		if wait := time.Until(told.RetryAt); wait != time.Hour {
			t.Fatalf("retry at %v from now", wait)
		}
	})
}

func TestO_RT_03_forms_of_Retry_After(t *testing.T) {
	for name, c := range map[string]struct {
		value func(now time.Time) string
		want  time.Duration
	}{
		"date in 2 s":    {func(now time.Time) string { return now.Add(2 * time.Second).UTC().Format(http.TimeFormat) }, 2 * time.Second},
		"date in past":   {func(now time.Time) string { return now.Add(-time.Minute).UTC().Format(http.TimeFormat) }, 200 * time.Millisecond},
		"negative":       {func(time.Time) string { return "-5" }, 200 * time.Millisecond},
		"a fraction":     {func(time.Time) string { return "1.5" }, 200 * time.Millisecond},
		"a word":         {func(time.Time) string { return "soon" }, 200 * time.Millisecond},
		"empty":          {func(time.Time) string { return "" }, 200 * time.Millisecond},
		"delay in digit": {func(time.Time) string { return "1" }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, p0)
				s := newScript(answer{status: 503, header: http.Header{"Retry-After": {c.value(time.Now())}}}, answer{status: 200})
				if resp := get(t, cl.Transport(s, everything)); resp.StatusCode != 200 {
					t.Fatal(resp.StatusCode)
				}
				equalTimes(t, s.at(), 0, c.want)
			})
		})
	}
}

func TestO_RT_04_Retry_After_0_is_not_a_refusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		s := newScript(answer{status: 503, header: http.Header{"Retry-After": {"0"}}}, answer{status: 200})
		if resp := get(t, c.Transport(s, everything)); resp.StatusCode != 200 {
			t.Fatal(resp.StatusCode)
		}
		equalTimes(t, s.at(), 0, 200*time.Millisecond)
	})
}

func TestO_RT_05_jitter_never_goes_below_what_the_server_asked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{
			engine.BackoffJitter: engine.Enum("full"), engine.RetryAfterMax: ms(30_000), engine.RetryAfterJitter: decimal(0.1),
		}))
		seen := map[time.Duration]bool{}
		for range 1000 {
			s := newScript(answer{status: 503, header: http.Header{"Retry-After": {"2"}}}, answer{status: 200})
			get(t, c.Transport(s, everything))
			wait := s.at()[1]
			seen[wait] = true
			if wait < 2*time.Second || wait > 2200*time.Millisecond {
				t.Fatalf("waited %v", wait)
			}
		}
		if len(seen) < 100 {
			t.Fatalf("only %d different waits", len(seen))
		}
	})
}

func TestO_RT_06_Retry_After_can_be_ignored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.RetryOnHTTP: engine.Set("429"), engine.RetryAfterHonor: engine.Bool(false)}))
		s := newScript(answer{status: 429, header: http.Header{"Retry-After": {"3600"}}}, answer{status: 200})
		get(t, c.Transport(s, everything))
		equalTimes(t, s.at(), 0, 200*time.Millisecond)
	})
}

func TestRateLimit_is_obeyed_when_there_is_no_Retry_After(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		want   time.Duration
	}{
		"nothing remains":        {http.Header{"Ratelimit": {`"default";r=0;t=3`}}, 3 * time.Second},
		"the longest quota":      {http.Header{"Ratelimit": {`"minute";r=0;t=3, "hour";r=0;t=7`, `"day";r=5;t=9`}}, 7 * time.Second},
		"the text of a name":     {http.Header{"Ratelimit": {`"a;r=0";r=5;t=30, "b,c;r=0;t=9", "d\";r=0";r=1;t=4`}}, 200 * time.Millisecond},
		"a name with commas":     {http.Header{"Ratelimit": {`"a, \"b";r=0;t=4`}}, 4 * time.Second},
		"a quote without end":    {http.Header{"Ratelimit": {`"a;r=0;t=30`}}, 200 * time.Millisecond},
		"something remains":      {http.Header{"Ratelimit": {`"default";r=1;t=3`}}, 200 * time.Millisecond},
		"Retry-After goes first": {http.Header{"Ratelimit": {`"default";r=0;t=9`}, "Retry-After": {"2"}}, 2 * time.Second},
		"nonsense":               {http.Header{"Ratelimit": {`r=0;t=x;;=,`}}, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, p0)
				s := newScript(answer{status: 503, header: c.header}, answer{status: 200})
				get(t, cl.Transport(s, everything))
				equalTimes(t, s.at(), 0, c.want)
			})
		})
	}
}

func TestO_RT_11_a_cancelled_caller_returns_at_once_and_leaves_nothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.BackoffBase: ms(3000)}))
		s := newScript(answer{status: 503, body: "overloaded"})
		rt := c.Transport(s, everything)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		began := time.Now()
		var wg sync.WaitGroup
		for range 10_000 {
			wg.Go(func() {
				resp, err := rt.RoundTrip(request(t, ctx, http.MethodGet, nil))
				if resp != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "503 Service Unavailable") {
					t.Errorf("%v, %v", resp, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Fatalf("took %v", took)
		}
		if s.count() != 10_000 {
			t.Fatalf("%d sends", s.count())
		}
		for _, b := range s.bodies {
			if _, closed := b.state(); closed != 1 {
				t.Fatalf("body closed %d times", closed)
			}
		}
		synctest.Wait() // the bubble would not end with a goroutine left
		if st := c.Stats(ep); st.Retries != 0 || st.Failed != 10_000 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestO_RT_12_no_retry_that_would_pass_the_limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := with(p0, set{
			engine.MaxAttempts: engine.Int(10), engine.BackoffBase: ms(1000), engine.BackoffMax: ms(60_000), engine.TimeoutsOverall: ms(5000),
		})
		c := newClient(t, policy)
		s := statuses(503)
		resp := get(t, c.Transport(s, everything))
		equalTimes(t, s.at(), 0, time.Second, 3*time.Second)
		if took := time.Since(s.began); took != 3*time.Second || resp.StatusCode != 503 {
			t.Fatalf("%d after %v", resp.StatusCode, took)
		}
		if o := outcome(t, resp); o.Code != policyd.CodeDeadline || o.Attempts != 3 || o.Waited != 3*time.Second {
			t.Fatalf("outcome %+v", o)
		}

		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, policyd.Retryable(errBoom) }, policyd.Using(c))
		const want = "policyd: shop/upstream/call: deadline_exceeded after 3 attempts in 3s (next try would pass the limit): boom"
		if err == nil || err.Error() != want || !errors.Is(err, policyd.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
	})
}

func TestO_RT_12_the_callers_deadline_counts_alike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(p0, set{engine.BackoffBase: ms(1000)}))
		s := statuses(503)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		resp, err := c.Transport(s, everything).RoundTrip(request(t, ctx, http.MethodGet, nil))
		if err != nil || resp.StatusCode != 503 {
			t.Fatal(resp, err)
		}
		equalTimes(t, s.at(), 0, time.Second)
		if o := outcome(t, resp); o.Code != policyd.CodeDeadline {
			t.Fatalf("outcome %+v", o)
		}
	})
}

func TestO_RT_13_our_own_time_limit_is_not_the_callers(t *testing.T) {
	policy := with(p0, set{engine.TimeoutsAttempt: ms(1000)})
	hang := answer{status: 200, wait: time.Hour}
	t.Run("an attempt that hangs is repeated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, policy)
			s := newScript(hang, answer{status: 200, body: "late"})
			resp := get(t, c.Transport(s, everything))
			equalTimes(t, s.at(), 0, 1200*time.Millisecond)
			time.Sleep(time.Hour) // reading may take longer than the attempt
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "late" {
				t.Fatalf("%q, %v", body, err)
			}
			if resp.Request.Context().Err() == nil {
				t.Fatal("the attempt's context outlives its body")
			}
			_ = resp.Body.Close()
		})
	})
	t.Run("the same through Do", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, policy)
			began, tries := time.Now(), 0
			v, err := policyd.Do(t.Context(), ep, func(ctx context.Context) (string, error) {
				if tries++; tries == 1 {
					<-ctx.Done()
					return "", ctx.Err()
				}
				return "late", nil
			}, policyd.Using(c))
			if v != "late" || err != nil || tries != 2 || time.Since(began) != 1200*time.Millisecond {
				t.Fatalf("%q, %v after %d tries and %v", v, err, tries, time.Since(began))
			}
		})
	})
	t.Run("the caller's deadline comes first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, policy)
			s := newScript(hang)
			ctx, cancel := context.WithTimeout(t.Context(), 800*time.Millisecond)
			defer cancel()
			_, err := c.Transport(s, everything).RoundTrip(request(t, ctx, http.MethodGet, nil))
			if !errors.Is(err, context.DeadlineExceeded) || s.count() != 1 || time.Since(s.began) != 800*time.Millisecond {
				t.Fatalf("%v after %d sends and %v", err, s.count(), time.Since(s.began))
			}
		})
	})
	t.Run("an answer at the very limit is whole or not there", func(t *testing.T) {
		c := newClient(t, with(policy, set{engine.MaxAttempts: engine.Int(1), engine.TimeoutsAttempt: ms(1)}))
		rt := c.Transport(newScript(answer{status: 200, wait: time.Millisecond}), everything)
		for range 500 { // in real time, so that either can be first
			resp, err := rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil))
			if err != nil {
				continue
			}
			if resp.Request.Context().Err() != nil {
				t.Fatal("the body is cut off")
			}
			_ = resp.Body.Close()
		}
	})
	t.Run("a call that always hangs tells why", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, with(policy, set{engine.MaxAttempts: engine.Int(2)}))
			_, err := c.Transport(newScript(hang), everything).RoundTrip(request(t, t.Context(), http.MethodGet, nil))
			const want = "policyd: shop/upstream/call: attempts_exhausted after 2 attempts in 2.2s: no answer within 1s (policy: timeouts.attempt)"
			if err == nil || err.Error() != want || !errors.Is(err, policyd.ErrAttempts) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Fatalf("got  %v\nwant %s", err, want)
			}
		})
	})
	t.Run("the overall limit has its own code", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, with(p0, set{engine.TimeoutsOverall: ms(2000)}))
			s := newScript(hang)
			_, err := c.Transport(s, everything).RoundTrip(request(t, t.Context(), http.MethodGet, nil))
			if !errors.Is(err, policyd.ErrDeadline) || time.Since(s.began) != 2*time.Second || s.count() != 1 {
				t.Fatalf("%v after %v", err, time.Since(s.began))
			}
		})
	})
}

func TestO_RT_16_the_last_answer_is_not_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cause = "the disk of shard 7 is full, 40 bytes !!!"
		c := newClient(t, p0)
		s := newScript(answer{status: 503, body: cause})
		client := &http.Client{Transport: c.Transport(s, everything)}
		resp, err := client.Get("http://upstream.test/")
		if err != nil || resp.StatusCode != 503 || s.count() != 5 {
			t.Fatalf("%v, %v after %d sends", resp, err, s.count())
		}
		if read, closed := s.bodies[4].state(); read != 0 || closed != 0 {
			t.Fatalf("the last body was read (%d) or closed (%d)", read, closed)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != cause {
			t.Fatalf("%q, %v", body, err)
		}
		if o := outcome(t, resp); o != (policyd.Outcome{
			Endpoint: ep, Attempts: 5, Waited: 3 * time.Second, Code: policyd.CodeAttempts, Revision: 1,
		}) {
			t.Fatalf("outcome %+v", o)
		}

		var tries int
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
			tries++
			return 0, policyd.Retryable(errBoom)
		}, policyd.Using(c))
		var pe *policyd.Error
		if !errors.As(err, &pe) || !errors.Is(err, errBoom) || pe.Attempts != 5 || tries != 5 || pe.Elapsed != 3*time.Second {
			t.Fatalf("%#v after %d tries", err, tries)
		}
		const want = "policyd: shop/upstream/call: attempts_exhausted after 5 attempts in 3s: boom"
		if err.Error() != want || pe.Scope != ep || pe.Revision != 1 {
			t.Fatalf("%v, scope %q, revision %d", err, pe.Scope, pe.Revision)
		}
	})
}

func TestO_RT_18_a_retry_inside_a_retry_sends_once_per_try(t *testing.T) {
	for name, endpoint := range map[string]string{"of the same endpoint": ep, "of another endpoint": "shop/edge/page"} {
		alone := 3
		if endpoint == ep {
			alone = 4
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, with(p0, set{engine.MaxAttempts: engine.Int(3)}))
				c.Put([]engine.Document{
					{Scope: engine.Global, Settings: open},
					{Scope: "shop/upstream", Settings: with(p0, set{engine.MaxAttempts: engine.Int(3)})},
					{Scope: engine.Scope(endpoint), Settings: with(p0, set{engine.MaxAttempts: engine.Int(4)})},
				})
				s := newScript(answer{status: 503})
				client := &http.Client{Transport: c.Transport(s, everything)}
				_, err := policyd.Do(t.Context(), endpoint, func(ctx context.Context) (int, error) {
					resp, err := client.Do(request(t, ctx, http.MethodGet, nil))
					if err != nil {
						return 0, err
					}
					defer resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						return 0, policyd.Retryable(errors.New(resp.Status))
					}
					return resp.StatusCode, nil
				}, policyd.Using(c))
				if !errors.Is(err, policyd.ErrAttempts) || s.count() != 4 {
					t.Fatalf("%v after %d sends", err, s.count())
				}
				if st := c.Stats(ep); st.Attempts() != 4 {
					t.Fatalf("%d attempts counted", st.Attempts())
				}
				// A context that outlives its call means nothing any more.
				resp, err := client.Do(request(t, s.last().Context(), http.MethodGet, nil))
				if err == nil || !errors.Is(err, context.Canceled) {
					t.Fatalf("the context of an attempt outlives it: %v, %v", resp, err)
				}
				resp, err = client.Do(request(t, context.WithoutCancel(s.last().Context()), http.MethodGet, nil))
				if err != nil || s.count() != 4+alone {
					t.Fatalf("%v, %v after %d sends", resp, err, s.count())
				}
			})
		})
	}
}

func TestTransport_over_a_transport_of_ours_counts_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		s := statuses(503, 200)
		resp := get(t, c.Transport(c.Transport(s, everything), everything))
		if o := outcome(t, resp); o.Attempts != 2 || s.count() != 2 {
			t.Fatalf("%+v after %d sends", o, s.count())
		}
		if st := c.Stats(ep); st.Calls != 1 || st.Attempts() != 2 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestSwitch_stops_a_retry_that_waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		s := newScript(answer{status: 503, header: http.Header{"Retry-After": {"10"}}, body: "busy"})
		time.AfterFunc(time.Second, func() { put(c, p0) }) // another change: goes on waiting
		time.AfterFunc(2*time.Second, func() { put(c, p0, killSwitch(engine.DisableRetries, time.Hour)) })
		resp := get(t, c.Transport(s, everything))
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "busy" || time.Since(s.began) != 2*time.Second || s.count() != 1 {
			t.Fatalf("%q, %v after %v and %d sends", body, err, time.Since(s.began), s.count())
		}
		if o := outcome(t, resp); o.Code != policyd.CodeSwitch || o.Attempts != 1 || o.Waited != 2*time.Second {
			t.Fatalf("outcome %+v", o)
		}
		// A call that starts now makes one attempt, and its error says who and until when.
		_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, policyd.Retryable(errBoom) }, policyd.Using(c))
		var pe *policyd.Error
		if !errors.As(err, &pe) || !errors.Is(err, policyd.ErrSwitch) || pe.Switch == nil || pe.Switch.Incident != "INC-2481" || pe.Scope != "shop" {
			t.Fatalf("%v", err)
		}
		want := "policyd: shop/upstream/call: retries_disabled by ks-7f3a (INC-2481, until " + pe.Switch.ExpiresAt.UTC().Format("15:04") + "Z): boom"
		if err.Error() != want {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
	})
}
