// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// hang answers nobody before the client has gone.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestA1_three_retries_at_most_each_after_a_random_wait(t *testing.T) {
	const attempt, base, longest = 1500 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second
	var waits [3][]time.Duration
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var sent []time.Time // guarded by mu
			network := inMemory(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				sent = append(sent, time.Now())
				mu.Unlock()
				hang(w, r)
			})
			f := load(t, "a1-retry-out-of-step.yaml")
			f.Seed(seed)
			began := time.Now()
			_, err := call(t.Context(), transport(f, network), "GET", "http://schemas.web/form/1")
			require.ErrorIs(t, err, policyd.ErrAttempts)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, sent, 4)
			for n := range waits {
				waits[n] = append(waits[n], sent[n+1].Sub(sent[n])-attempt)
			}
			require.Equal(t, attempt, time.Since(sent[3]), "each attempt has its time and no more")
			require.LessOrEqual(t, time.Since(began), 10*time.Second)
		})
	}
	for n, all := range waits {
		most := min(longest, base<<n)
		require.GreaterOrEqual(t, slices.Min(all), time.Duration(0))
		require.LessOrEqual(t, slices.Max(all), most)
		require.Less(t, slices.Min(all), most/4, "retry %d: full jitter begins at 0", n+1)
		require.Greater(t, slices.Max(all), most*3/4, "retry %d: and ends at base × 2^n", n+1)
	}
}

func TestA1_a_caller_that_goes_away_ends_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		network := inMemory(t, func(w http.ResponseWriter, _ *http.Request) {
			sent.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		f := load(t, "a1-retry-out-of-step.yaml")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // the user closes the page during the first wait
		defer cancel()
		_, err := call(ctx, transport(f, network), "GET", "http://schemas.web/form/1")
		if err == nil {
			require.Equal(t, int64(1), sent.Load(), "the wait would end too late: the answer is given at once")
		}
		time.Sleep(time.Hour)
		require.Equal(t, int64(1), sent.Load())
	})
}

func TestA1_clients_no_longer_multiply_the_load_of_an_outage(t *testing.T) {
	s := storm{clients: 10, callsPerSecond: 10, limit: 130, outage: 500 * time.Millisecond, lasts: 20 * time.Second, seed: 1}
	before := s.run(t, fixed(3, 300*time.Millisecond))
	after := s.run(t, under("a1-retry-out-of-step.yaml", "web/schemas/form.get"))
	t.Logf("\n%s\n%s", before, after)

	require.Equal(t, before.calls, after.calls)
	require.GreaterOrEqual(t, before.worstSecond, 3.5, "load × 4")
	require.False(t, before.recovers, "half a second of outage never ends")
	require.LessOrEqual(t, after.worstSecond, 1.5)
	require.True(t, after.recovers)
	require.LessOrEqual(t, after.recoveredAfter, 2*time.Second)
	require.LessOrEqual(t, float64(after.sends), 1.1*float64(after.calls))
}

func TestA2_an_open_breaker_sends_nothing_until_one_probe(t *testing.T) {
	var sent, broken atomic.Int64
	broken.Store(1)
	network := loopback(t, func(w http.ResponseWriter, _ *http.Request) {
		sent.Add(1)
		if broken.Load() == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := load(t, "a2-breaker.yaml")
		client := transport(f, network)
		get := func() (int, error) { return call(t.Context(), client, "GET", "http://layouts.web/home") }
		for range 100 {
			_, _ = get()
		}
		require.Equal(t, int64(5), sent.Load(), "five failures in a row; without a breaker: 100 at least")

		_, err := get()
		var stopped *policyd.Error
		require.ErrorAs(t, err, &stopped)
		require.ErrorIs(t, err, policyd.ErrBreakerOpen)
		wait := time.Until(stopped.RetryAt)
		require.Greater(t, wait, 28*time.Second)
		require.LessOrEqual(t, wait, 33*time.Second)

		time.Sleep(wait)
		for range 10 {
			_, _ = get()
		}
		require.Equal(t, int64(6), sent.Load(), "one probe, which failed: open again")

		broken.Store(0)
		time.Sleep(33 * time.Second)
		code, err := get()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, int64(7), sent.Load())
		time.Sleep(10 * time.Second) // breaker.recover: the admitted share is back at all
		for range 20 {
			_, err := get()
			require.NoError(t, err)
		}
	})
}

// schema is what a page is drawn from.
type schema struct{ fields string }

// statusError is an answer that is no schema.
type statusError int

func (e statusError) Error() string   { return http.StatusText(int(e)) }
func (e statusError) StatusCode() int { return int(e) }

// page shows a schema: the fresh one, else the last good one, else a skeleton.
type page struct {
	kept     *policyd.LastGood[schema]
	http     *http.Client
	client   *policyd.Client
	endpoint string
	url      string
}

func (p *page) show(ctx context.Context, name string) string {
	s, age, err := p.kept.Do(ctx, p.endpoint, name, func(ctx context.Context) (schema, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+name, nil)
		if err != nil {
			return schema{}, err
		}
		resp, err := p.http.Do(req)
		if err != nil {
			return schema{}, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return schema{}, statusError(resp.StatusCode)
		}
		body, err := io.ReadAll(resp.Body)
		return schema{string(body)}, err
	}, policyd.Using(p.client))
	switch {
	case err != nil:
		return "[ … ] We cannot load this page right now. Please try again in a moment."
	case age > 0:
		return s.fields + " (as of a moment ago)"
	default:
		return s.fields
	}
}

func TestA3_the_page_never_goes_blank(t *testing.T) {
	var broken, sent atomic.Int64
	network := loopback(t, func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		if broken.Load() == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = fmt.Fprintf(w, "fields of %s", r.URL.Path)
	})
	synctest.Test(t, func(t *testing.T) {
		f := load(t, "a3-last-good.yaml")
		p := &page{policyd.NewLastGood[schema](48 * time.Hour), &http.Client{Transport: network}, f.Client(), "web/menus/menu.get", "http://menus.web/"}
		require.Equal(t, "fields of /main", p.show(t.Context(), "main"))

		broken.Store(1)
		seen := map[string]int{}
		for range 200 {
			seen[p.show(t.Context(), "main")]++
			seen[p.show(t.Context(), "other")]++
		}
		const notice = "[ … ] We cannot load this page right now. Please try again in a moment."
		require.Equal(t, map[string]int{"fields of /main (as of a moment ago)": 200, notice: 200}, seen)
		require.Equal(t, int64(1+5), sent.Load(), "five failures opened the breaker: 400 pages cost 5 requests")

		time.Sleep(25 * time.Hour)
		require.Equal(t, notice, p.show(t.Context(), "main"), "older than a day: not shown as if it were right")
		broken.Store(0)
		time.Sleep(time.Hour)
		require.Equal(t, "fields of /main", p.show(t.Context(), "main"))
	})
}

// TestA5 fetches 1,000 times over a link with 2,000 ms of latency per round trip, as with a
// latency toxic of toxiproxy in one direction, and a loss of 50 %, which is given per round
// trip in one case, per direction (so 75 % per round trip) in the other.
func TestA5_a_lossy_link_costs_no_more_requests_and_shows_something(t *testing.T) {
	for _, c := range []struct {
		name         string
		perDirection bool
	}{{"loss per round trip", false}, {"loss per direction", true}} {
		t.Run(c.name, func(t *testing.T) {
			const fetches = 1000
			synctest.Test(t, func(t *testing.T) {
				server := inMemory(t, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprintf(w, "fields of %s", r.URL.Path) })
				bad := &lossy{base: server, delay: 2 * time.Second, loss: 0.5, perDirection: c.perDirection, random: numbers(5)}

				before := 0
				for range fetches {
					sends, err := fixedRetries(t.Context(), 3, 300*time.Millisecond, func(ctx context.Context) error {
						_, err := call(ctx, &http.Client{Transport: bad}, "GET", "http://forms.web/form")
						return err
					})
					require.Error(t, err)
					before += sends
				}
				require.Equal(t, 4*fetches, before)

				f := load(t, "a5-lossy-link.yaml")
				p := &page{policyd.NewLastGood[schema](48 * time.Hour), &http.Client{Transport: server}, f.Client(), "web/forms/form.get", "http://forms.web/"}
				require.Equal(t, "fields of /known", p.show(t.Context(), "known"))
				sent := &counted{base: bad}
				p.http = &http.Client{Transport: sent}
				seen := map[string]int{}
				for n := range fetches {
					began := time.Now()
					seen[p.show(t.Context(), []string{"known", "unknown"}[n%2])]++
					require.LessOrEqual(t, time.Since(began), 10*time.Second, "none hangs")
					time.Sleep(100 * time.Millisecond)
				}
				t.Logf("%d fetches: %d sends before, %d after; %v", fetches, before, sent.n.Load(), seen)
				require.LessOrEqual(t, sent.n.Load(), int64(fetches*11/10), "amplification at most 1.1")
				require.Less(t, sent.n.Load(), int64(fetches/10), "in fact nearly nothing is sent")
				require.Len(t, seen, 2, "each ends in the last good form or in the skeleton")
				require.Equal(t, fetches/2, seen["fields of /known (as of a moment ago)"])
			})
		})
	}
}

func TestA5_with_time_enough_the_budget_still_bounds_what_is_sent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fetches = 1000
		server := inMemory(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fields") })
		sent := &counted{base: &lossy{base: server, delay: 2 * time.Second, loss: 0.5, random: numbers(6)}}
		f := load(t, "a5-lossy-link.yaml")
		edit(t, f, "a5-lossy-link.yaml", "attempt: 1500ms", "attempt: 2500ms")
		p := &page{policyd.NewLastGood[schema](time.Minute), &http.Client{Transport: sent}, f.Client(), "web/forms/form.get", "http://forms.web/"}
		fresh := 0
		for range fetches {
			if p.show(t.Context(), "form") == "fields" {
				fresh++
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%d fetches: %d sends, %d fresh", fetches, sent.n.Load(), fresh)
		require.LessOrEqual(t, sent.n.Load(), int64(fetches*11/10))
		require.Greater(t, fresh, 0)
	})
}

func TestA6_every_way_of_calling_retries_and_says_the_same(t *testing.T) {
	type seen struct {
		attempts int
		fallback policyd.Fallback
		wait     time.Duration
		code     policyd.Code
	}
	ways := map[string]func(t *testing.T, c *policyd.Client, sent *atomic.Int64) func() error{
		"HTTP": func(t *testing.T, c *policyd.Client, sent *atomic.Int64) func() error {
			network := inMemory(t, func(w http.ResponseWriter, _ *http.Request) {
				sent.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			return func() error {
				code, err := call(t.Context(), &http.Client{Transport: c.Transport(network)}, "GET", "http://catalog.web/items")
				if err == nil {
					err = statusError(code)
				}
				return err
			}
		},
		"gRPC": func(t *testing.T, c *policyd.Client, sent *atomic.Int64) func() error {
			l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			server := grpc.NewServer(grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				sent.Add(1)
				return nil, status.Error(codes.Unavailable, "busy")
			}))
			healthpb.RegisterHealthServer(server, healthpb.UnimplementedHealthServer{})
			go func() { _ = server.Serve(l) }()
			conn, err := grpc.NewClient("passthrough:///catalog.web", append(policygrpc.ClientDialOptions(c),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx, "", "") }),
				grpc.WithTransportCredentials(insecure.NewCredentials()))...)
			require.NoError(t, err)
			t.Cleanup(func() {
				_ = conn.Close()
				server.Stop()
			})
			return func() error {
				ctx := policyd.WithCall(t.Context(), policyd.Idempotent(true)) // HTTP knows by the method
				_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
				return err
			}
		},
		"a function": func(t *testing.T, c *policyd.Client, sent *atomic.Int64) func() error {
			return func() error {
				_, err := policyd.Do(t.Context(), "web/catalog/items.get", func(context.Context) (int, error) {
					sent.Add(1)
					return 0, policyd.Retryable(errors.New("busy"))
				}, policyd.Using(c))
				return err
			}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := load(t, "a6-same-everywhere.yaml")
				var sent atomic.Int64
				get := way(t, f.Client(), &sent)
				require.Error(t, get())
				require.Equal(t, int64(3), sent.Load(), "two retries")
				time.Sleep(time.Minute) // the budget has them again
				require.Error(t, get())
				require.Equal(t, int64(6), sent.Load())

				var stopped *policyd.Error
				require.ErrorAs(t, get(), &stopped)
				require.Equal(t, int64(6), sent.Load(), "nothing is sent while the breaker is open")
				got := seen{stopped.Attempts, stopped.Fallback(), time.Until(stopped.RetryAt), stopped.Code}
				require.Equal(t, seen{
					0, policyd.Fallback{
						Mode: policyd.FallbackStatic, Status: 503, ContentType: "application/json",
						Body: `{"notice":"The catalogue is busy. Please try again in a moment."}`,
					}, 30 * time.Second, policyd.CodeBreaker,
				}, got)
			})
		})
	}
}
