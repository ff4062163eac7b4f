// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	policyd "github.com/policyd/policyd/sdk/go"
)

var errBusy = policyd.Retryable(errors.New("busy"))

// failing answers 503 to a share of the requests, evenly spread: to every nth.
func failing(sent *atomic.Int64, every int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if sent.Add(1)%every == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

func TestB1_retries_are_a_tenth_of_all_requests_whatever_fails(t *testing.T) {
	const calls = 1000
	run := func(t *testing.T, gate bool, every int64) (retries int64) {
		var sent atomic.Int64
		network := loopback(t, failing(&sent, every))
		synctest.Test(t, func(t *testing.T) {
			f := load(t, "b1-budget-of-the-client.yaml")
			if !gate {
				edit(t, f, "b1-budget-of-the-client.yaml", "minRetriesPerSecond: 0}", "minRetriesPerSecond: 0, successGate: off}")
			}
			client := &http.Client{Transport: f.Client().Transport(network,
				policyd.Route("GET", "/v1/orders", "gateway/orders/list"),
				policyd.Route("GET", "/v1/orders/{id}", "gateway/orders/get"),
				policyd.Route("GET", "/v1/carriers", "gateway/orders/carriers"))}
			for n := range calls {
				_, err := call(t.Context(), client, "GET", "http://orders.gateway/v1/"+[]string{"orders", "orders/1", "carriers"}[n%3])
				require.NoError(t, err)
			}
			for _, name := range []string{"list", "get", "carriers"} {
				require.NotEmpty(t, f.Attempts("gateway/orders/"+name))
			}
		})
		return sent.Load() - calls
	}
	t.Run("everything fails: three endpoints share one budget", func(t *testing.T) {
		retries := run(t, false, 1)
		require.LessOrEqual(t, retries, int64(calls/10), "with two fixed retries: 2,000")
		require.Greater(t, retries, int64(calls/20))
	})
	t.Run("and the success gate stops them sooner", func(t *testing.T) {
		require.LessOrEqual(t, run(t, true, 1), int64(10))
	})
	t.Run("one in twenty fails: each is repeated", func(t *testing.T) {
		require.GreaterOrEqual(t, run(t, true, 20), int64(calls/20-5))
	})
}

func TestB2_the_bucket_pays_for_a_hundred_and_then_for_what_comes_back(t *testing.T) {
	const endpoint = "gateway/quotes/get"
	synctest.Test(t, func(t *testing.T) {
		f := load(t, "b2-token-bucket.yaml")
		// The bucket alone: so many calls at once that a tenth of them is far more than it
		// holds, and no gate.
		edit(t, f, "b2-token-bucket.yaml", "successGate: {minSuccessRate: 0.90}", "successGate: off")
		burst := func(calls int, err error) (retries int) {
			before := len(f.Attempts(endpoint))
			var all sync.WaitGroup
			for range calls {
				all.Go(func() {
					_, _ = policyd.Do(t.Context(), endpoint, func(context.Context) (int, error) { return 1, err }, policyd.Using(f.Client()))
				})
			}
			all.Wait()
			return len(f.Attempts(endpoint)) - before - calls
		}
		require.Equal(t, 100, burst(2_000, errBusy), "100 tokens, 100 retries")

		time.Sleep(10 * time.Second) // and the waits of those retries, up to 200 ms
		refilled := burst(2_000, errBusy)
		require.GreaterOrEqual(t, refilled, 50, "5 per second")
		require.LessOrEqual(t, refilled, 51)

		require.Equal(t, 0, burst(100, nil))
		credited := burst(2_000, errBusy)
		require.GreaterOrEqual(t, credited, 10, "a tenth for each success")
		require.LessOrEqual(t, credited, 12)
	})
	t.Run("with the gate, most of the bucket is never spent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := load(t, "b2-token-bucket.yaml")
			for range 1_000 {
				_, _ = policyd.Do(t.Context(), endpoint, func(context.Context) (int, error) { return 0, errBusy }, policyd.Using(f.Client()))
			}
			require.LessOrEqual(t, len(f.Attempts(endpoint)), 1_000+20)
		})
	})
}

func TestB3_only_what_another_attempt_may_cure_is_sent_again(t *testing.T) {
	var sent atomic.Int64
	network := loopback(t, func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		switch what := strings.TrimPrefix(r.URL.Path, "/"); what {
		case "reset", "closed": // instead of an answer
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			if tcp, ok := conn.(*net.TCPConn); ok && what == "reset" {
				_ = tcp.SetLinger(0)
			}
			_ = conn.Close()
		default:
			code, _ := strconv.Atoi(what)
			w.WriteHeader(code)
		}
	})
	cases := []struct {
		answer string
		sends  int64
	}{
		{"200", 1},
		{"400", 1},
		{"401", 1},
		{"403", 1},
		{"404", 1},
		{"409", 1},
		{"422", 1},
		{"500", 1},
		{"501", 1},
		{"429", 3},
		{"502", 3},
		{"503", 3},
		{"504", 3},
		{"reset", 3},
		{"closed", 3},
	}
	for _, c := range cases {
		t.Run(c.answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := load(t, "b3-what-is-worth-a-retry.yaml")
				before := sent.Load()
				code, err := call(t.Context(), transport(f, network), "GET", "http://users.gateway/"+c.answer)
				if err == nil {
					require.Equal(t, c.answer, strconv.Itoa(code), "the answer is handed on")
				}
				require.Equal(t, c.sends, sent.Load()-before)
			})
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := load(t, "b3-what-is-worth-a-retry.yaml")
			closed := &counted{base: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			}}}
			_, err := call(t.Context(), transport(f, closed), "GET", "http://users.gateway/1")
			require.ErrorIs(t, err, policyd.ErrAttempts)
			require.Equal(t, int64(3), closed.n.Load())
		})
	})
}

func TestB4_the_breaker_opens_when_half_of_the_attempts_fail(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails func(n int) bool
		opens bool
	}{
		{"two in five fail", func(n int) bool { return n%5 < 2 }, false},
		{"three in five fail", func(n int) bool { return n%5 < 3 }, true},
		{"all fail, but there are few", func(n int) bool { return n < 19 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := load(t, "b4-breaker-by-ratio.yaml")
				sent, refused := 0, 0
				do := func() {
					_, err := policyd.Do(t.Context(), "gateway/stock/get", func(context.Context) (int, error) {
						if sent++; c.fails(sent - 1) {
							return 0, errBusy
						}
						return 1, nil
					}, policyd.Using(f.Client()), policyd.WithoutRetry())
					if errors.Is(err, policyd.ErrBreakerOpen) {
						refused++
					}
				}
				for range 100 {
					do()
					time.Sleep(20 * time.Millisecond)
				}
				if !c.opens {
					require.Equal(t, []int{100, 0}, []int{sent, refused})
					return
				}
				require.Equal(t, []int{21, 79}, []int{sent, refused}, "at the first failure after 20 attempts; without a breaker: 100")
				time.Sleep(11*time.Second - 79*20*time.Millisecond) // 10 s and up to 10 % more
				do()
				require.Equal(t, 22, sent, "a probe")
			})
		})
	}
}

func TestB5_the_number_of_retries_follows_from_the_case(t *testing.T) {
	cases := []struct {
		name    string
		handler http.HandlerFunc
		ctx     time.Duration // the caller's, 0 for none
		method  string
		sends   int64
		code    policyd.Code
	}{
		{name: "a quick failure: as many as the bound allows", handler: answers(503), method: "GET", sends: 5, code: policyd.CodeAttempts},
		{name: "a hanging server: as many as the time allows", handler: hang, ctx: 2 * time.Second, method: "GET", sends: 3},
		{name: "a caller in a hurry: none", handler: answers(503), ctx: time.Millisecond, method: "GET", sends: 1, code: policyd.CodeDeadline},
		{name: "the caller's mistake: none", handler: answers(400), method: "GET", sends: 1},
		{name: "a bug of the server: none", handler: answers(500), method: "GET", sends: 1},
		{name: "a server that asks for a short wait: after it", handler: asks("1"), method: "GET", sends: 5, code: policyd.CodeAttempts},
		{name: "a server that asks for a long wait: none", handler: asks("60"), method: "GET", sends: 1, code: policyd.CodeRetryAfter},
		{name: "a call that may not be repeated: none", handler: answers(503), method: "POST", sends: 1, code: policyd.CodeNotSafe},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				network := inMemory(t, func(w http.ResponseWriter, r *http.Request) {
					sent.Add(1)
					c.handler(w, r)
				})
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(c.ctx, time.Hour))
				defer cancel()
				f := load(t, "b5-as-many-as-make-sense.yaml")
				code := ended(ctx, t, transport(f, network), c.method, "http://reports.gateway/1")
				require.Equal(t, c.sends, sent.Load())
				require.Equal(t, c.code, code)
			})
		})
	}
	t.Run("a call that was certainly not sent may be repeated, POST too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := load(t, "b5-as-many-as-make-sense.yaml")
			closed := &counted{base: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			}}}
			_, err := call(t.Context(), transport(f, closed), "POST", "http://reports.gateway/1")
			require.Error(t, err)
			require.Equal(t, int64(5), closed.n.Load())
		})
	})
	t.Run("a server in trouble: no more than the budget", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := load(t, "b5-as-many-as-make-sense.yaml")
			var sent atomic.Int64
			client := transport(f, inMemory(t, func(w http.ResponseWriter, r *http.Request) {
				sent.Add(1)
				answers(503)(w, r)
			}))
			for range 1000 {
				_, _ = call(t.Context(), client, "GET", "http://reports.gateway/1")
			}
			require.LessOrEqual(t, sent.Load(), int64(1100), "5,000 with four fixed retries")
		})
	})
}

func answers(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func asks(seconds string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", seconds)
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// ended makes a call and returns why there was no further attempt; "" where the last answer
// was final, or the caller's time was up.
func ended(ctx context.Context, t *testing.T, client *http.Client, method, url string) policyd.Code {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		var stopped *policyd.Error
		if errors.As(err, &stopped) {
			return stopped.Code
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return ""
	}
	defer resp.Body.Close()
	o, ok := policyd.OutcomeOf(resp)
	require.True(t, ok)
	return o.Code
}

// TestB6 is the comparison in README.md: the table there is what this run prints.
func TestB6_no_budget_against_budget_backoff_and_breaker(t *testing.T) {
	s := storm{clients: 20, callsPerSecond: 10, limit: 260, slow: 60, failures: 0.01, outage: 10 * time.Second, lasts: 40 * time.Second, seed: 6}
	results := []result{
		s.run(t, fixed(0, time.Second)),
		s.run(t, fixed(3, time.Second)),
		s.run(t, under("b6-budget-backoff-breaker.yaml", "gateway/search/query")),
	}
	conditions := fmt.Sprintf("%d clients with %d calls/s each, for %s; a server that answers %.0f requests/s, and %.0f/s during an outage of %s, works them off in order, and refuses what would wait for more than 2 s; %.0f %% of its answers are 503 in any case; seed %d.",
		s.clients, s.callsPerSecond, s.lasts, s.limit, s.slow, s.outage, 100*s.failures, s.seed)
	table := conditions + "\n\n" +
		"| client | calls | sends | sends ÷ calls | in the outage | in the worst second | failed in the outage | failed outside of it | recovered after |\n" +
		"|---|---|---|---|---|---|---|---|---|\n"
	for _, r := range results {
		table += r.String() + "\n"
	}
	require.True(t, strings.Contains(read(t, "README.md"), table), "README.md holds what this run gives:\n%s", table)

	without, storming, policy := results[0], results[1], results[2]
	require.Equal(t, without.calls, policy.calls)
	require.Greater(t, storming.worstSecond, 3.0)
	require.False(t, storming.recovers)
	require.LessOrEqual(t, float64(policy.sends), 1.1*float64(policy.calls))
	require.LessOrEqual(t, policy.inOutage, 1.1)
	require.LessOrEqual(t, policy.worstSecond, 1.5)
	require.True(t, policy.recovers)
	require.Less(t, policy.failed-policy.during, without.failed-without.during, "and it is better than no retries at all")
}

func TestB6_a_run_can_be_repeated(t *testing.T) {
	s := storm{clients: 10, callsPerSecond: 10, limit: 130, slow: 30, failures: 0.01, outage: 3 * time.Second, lasts: 15 * time.Second, seed: 1}
	who := under("b6-budget-backoff-breaker.yaml", "gateway/search/query")
	first := s.run(t, who)
	require.Equal(t, first, s.run(t, who), "the same seed")
	s.seed = 2
	require.NotEqual(t, first, s.run(t, who), "another one")
}
