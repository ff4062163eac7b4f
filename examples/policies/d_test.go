// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	policyd "github.com/policyd/policyd/sdk/go"
)

func TestD1_a_reset_connection_costs_ten_retries_and_then_one_in_ten_seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		network := &counted{base: roundTrip(func(r *http.Request) (*http.Response, error) {
			if down.Load() {
				return nil, syscall.ECONNRESET
			}
			return ok200(r), nil
		})}
		const lasts = 30 * time.Second
		// A note changes each second.
		before := 0
		for began := time.Now(); time.Since(began) < lasts; time.Sleep(time.Second) {
			sends, err := fixedRetries(t.Context(), 33, time.Second, func(ctx context.Context) error {
				_, err := call(ctx, &http.Client{Transport: network}, "PUT", "http://sync.notes/1")
				return err
			})
			require.Error(t, err)
			before += sends - 1
		}
		require.Equal(t, 990, before, "a thousand retries in half a minute")

		f := load(t, "d1-sync-on-bad-wifi.yaml")
		client := transport(f, network)
		sends := network.n.Load()
		var all sync.WaitGroup
		calls := 0
		for began := time.Now(); time.Since(began) < lasts; time.Sleep(time.Second) {
			calls++
			all.Go(func() { _, _ = call(t.Context(), client, "PUT", "http://sync.notes/1") })
		}
		retries := int(network.n.Load()-sends) - calls
		t.Logf("%d calls: %d retries before, %d after", calls, before, retries)
		require.Greater(t, retries, 0)
		require.LessOrEqual(t, retries, (100+30)/10)
		all.Wait()

		down.Store(false) // the link is back: no flood
		sends = network.n.Load()
		code, err := call(t.Context(), client, "PUT", "http://sync.notes/1")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		time.Sleep(time.Hour)
		require.Equal(t, sends+1, network.n.Load())
	})
}

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return f(r)
}

func ok200(r *http.Request) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, Request: r}
}

// notes is a service that saves each key once.
type notes struct {
	header string

	mu     sync.Mutex
	sends  []string       // guarded by mu; the key of each request
	writes map[string]int // guarded by mu; by key
	saved  int            // guarded by mu; those without a key among them
}

// save handles one request, and returns which it was, from 1.
func (n *notes) save(r *http.Request) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := r.Header.Get(n.header)
	n.sends = append(n.sends, key)
	if key != "" && n.writes[key] > 0 {
		return len(n.sends) // known: the same answer again, nothing written
	}
	if n.writes == nil {
		n.writes = map[string]int{}
	}
	n.writes[key]++
	n.saved++
	return len(n.sends)
}

func (n *notes) keys() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.sends)
}

func TestD2_one_key_per_call_on_every_attempt_lets_the_service_save_once(t *testing.T) {
	// The answer to the first two attempts is lost: the note is saved, the client cannot know.
	serve := func(t *testing.T) (*notes, http.RoundTripper) {
		n := &notes{header: "X-Idempotency-Key"}
		return n, loopback(t, func(w http.ResponseWriter, r *http.Request) {
			if n.save(r)%3 != 0 {
				if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
					_ = conn.Close()
				}
				return
			}
			w.WriteHeader(http.StatusCreated)
		})
	}
	t.Run("fixed retries without a key save the same note three times", func(t *testing.T) {
		n, network := serve(t)
		sends, err := fixedRetries(t.Context(), 3, time.Second, func(ctx context.Context) error {
			_, err := call(ctx, &http.Client{Transport: network}, "POST", "http://save.notes/")
			return err
		})
		require.NoError(t, err)
		require.Equal(t, []int{3, 3}, []int{sends, n.saved})
	})
	t.Run("under the policy it is saved once", func(t *testing.T) {
		n, network := serve(t)
		synctest.Test(t, func(t *testing.T) {
			client := transport(load(t, "d2-idempotency-key.yaml"), network)
			code, err := call(t.Context(), client, "POST", "http://save.notes/")
			require.NoError(t, err)
			require.Equal(t, http.StatusCreated, code)
			keys := n.keys()
			require.Len(t, keys, 3)
			require.NotEmpty(t, keys[0])
			require.Equal(t, []string{keys[0], keys[0], keys[0]}, keys, "the same key each time")
			require.Equal(t, 1, n.saved)

			time.Sleep(time.Minute)
			_, err = call(t.Context(), client, "POST", "http://save.notes/")
			require.NoError(t, err)
			require.NotEqual(t, keys[0], n.keys()[3], "another call has another key")
			require.Equal(t, 2, n.saved)
		})
	})
	t.Run("a key of the application is used", func(t *testing.T) {
		n, network := serve(t)
		synctest.Test(t, func(t *testing.T) {
			ctx := policyd.WithCall(t.Context(), policyd.IdempotencyKey("note-7-v3"))
			_, err := call(ctx, transport(load(t, "d2-idempotency-key.yaml"), network), "POST", "http://save.notes/")
			require.NoError(t, err)
			require.Equal(t, []string{"note-7-v3", "note-7-v3", "note-7-v3"}, n.keys())
		})
	})
}

func TestD4_what_was_refused_is_never_sent_again(t *testing.T) {
	for code, sends := range map[int]int64{400: 1, 401: 1, 403: 1, 404: 1, 429: 3, 500: 3, 502: 3, 503: 3, 504: 3, 599: 3} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var sent atomic.Int64
			network := loopback(t, func(w http.ResponseWriter, _ *http.Request) {
				sent.Add(1)
				w.WriteHeader(code)
			})
			synctest.Test(t, func(t *testing.T) {
				got, err := call(t.Context(), transport(load(t, "d4-never-4xx.yaml"), network), "GET", "http://list.notes/")
				require.NoError(t, err)
				require.Equal(t, code, got)
				require.Equal(t, sends, sent.Load())
			})
		})
	}
}

// TestD5 writes once per second over a link that loses 20 % of the messages of each direction
// (so 36 % of the round trips), and takes 300 ± 50 ms for a round trip.
func TestD5_keyed_writes_over_a_lossy_link_arrive_once_and_the_load_stays_flat(t *testing.T) {
	const writes = 1000
	synctest.Test(t, func(t *testing.T) {
		n := &notes{header: "Idempotency-Key"}
		server := inMemory(t, func(w http.ResponseWriter, r *http.Request) {
			n.save(r)
			w.WriteHeader(http.StatusCreated)
		})
		link := &counted{base: &lossy{base: server, delay: 300 * time.Millisecond, jitter: 50 * time.Millisecond, loss: 0.2, perDirection: true, random: numbers(5)}}
		client := transport(load(t, "d5-keyed-over-loss.yaml"), link)
		var ok atomic.Int64
		var all sync.WaitGroup
		var last, worst int64
		for range writes {
			all.Go(func() {
				began := time.Now()
				code, err := call(t.Context(), client, "POST", "http://push.notes/")
				if err == nil && code == http.StatusCreated && time.Since(began) <= 15*time.Second {
					ok.Add(1)
				}
			})
			time.Sleep(time.Second)
			now := link.n.Load()
			worst = max(worst, now-last)
			last = now
		}
		all.Wait()
		sent := link.n.Load()
		t.Logf("%d writes: %d succeeded, %d sent (%.2f each), at most %d in a second; %d arrived, %d saved",
			writes, ok.Load(), sent, float64(sent)/writes, worst, len(n.keys()), n.saved)
		require.GreaterOrEqual(t, ok.Load(), int64(writes*99/100))
		require.LessOrEqual(t, n.saved, writes, "none is saved twice")
		require.Greater(t, len(n.keys()), n.saved, "although repeats arrived")
		for key, times := range n.writes {
			require.Equal(t, 1, times, key)
		}
		require.LessOrEqual(t, float64(sent), 1.75*writes, "1 ÷ 0.64 sends bring one answer")
		require.LessOrEqual(t, worst, int64(6), "at any time")
	})
}
