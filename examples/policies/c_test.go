// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	policyd "github.com/policyd/policyd/sdk/go"
)

func TestC1_retries_are_off_at_once_when_most_calls_fail_and_back_by_themselves(t *testing.T) {
	const endpoint = "shop/cart/get"
	synctest.Test(t, func(t *testing.T) {
		f := load(t, "c1-only-while-it-works.yaml")
		calls := func(n int, fails func(n int) bool) (retries int) {
			before := len(f.Attempts(endpoint))
			for n := range n {
				_, _ = policyd.Do(t.Context(), endpoint, func(ctx context.Context) (int, error) {
					if a, _ := policyd.AttemptFrom(ctx); a.Number == 1 && fails(n) {
						return 0, errBusy
					}
					return 1, nil
				}, policyd.Using(f.Client()), policyd.IdempotencyKey("k"))
				time.Sleep(10 * time.Millisecond)
			}
			return len(f.Attempts(endpoint)) - before - n
		}
		always, never := func(int) bool { return true }, func(int) bool { return false }

		require.Equal(t, 0, calls(200, never))
		require.Equal(t, 10, calls(200, func(n int) bool { return n%20 == 0 }), "one in twenty: each is rescued")
		require.Equal(t, 0, calls(100, never))

		// What a retry has rescued counts as a success: it takes calls that fail for good.
		down := func(n int) (retries int) {
			before := len(f.Attempts(endpoint))
			for range n {
				_, _ = policyd.Do(t.Context(), endpoint, func(context.Context) (int, error) { return 0, errBusy }, policyd.Using(f.Client()))
				time.Sleep(10 * time.Millisecond)
			}
			return len(f.Attempts(endpoint)) - before - n
		}
		require.LessOrEqual(t, down(11), 22)
		require.Equal(t, 0, down(1000), "the 11th failure of the last 100: off at once, for as long as it lasts")

		require.Equal(t, 0, calls(90, never))
		require.Greater(t, calls(10, always), 0, "90 of the last 100 succeeded: on again")
	})
}

func TestC1_the_load_of_an_outage_stays_where_it_was(t *testing.T) {
	s := storm{clients: 20, callsPerSecond: 10, limit: 240, outage: 10 * time.Second, lasts: 30 * time.Second, seed: 3}
	before := s.run(t, fixed(3, 2*time.Second))
	after := s.run(t, under("c1-only-while-it-works.yaml", "shop/cart/get"))
	t.Logf("\n%s\n%s", before, after)
	require.Greater(t, before.inOutage, 2.9)
	require.LessOrEqual(t, after.inOutage, 1.1)
	require.True(t, after.recovers)
}

func TestC2_an_attempt_ends_after_three_seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 2)
		network := inMemory(t, func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			hang(w, r)
			took <- time.Since(began)
		})
		f := load(t, "c2-hard-timeout.yaml")
		began := time.Now()
		_, err := call(t.Context(), transport(f, network), "GET", "http://profile.shop/me")
		require.ErrorIs(t, err, policyd.ErrAttempts)
		require.LessOrEqual(t, time.Since(began), 8*time.Second)
		require.Equal(t, 3*time.Second, <-took)
		require.Equal(t, 3*time.Second, <-took)
	})
}

func TestC2_a_refusal_is_shown_at_once_and_nobody_polls(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 409, 422, 429} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var sent atomic.Int64
			network := loopback(t, func(w http.ResponseWriter, _ *http.Request) {
				sent.Add(1)
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(code)
			})
			synctest.Test(t, func(t *testing.T) {
				f := load(t, "c2-hard-timeout.yaml")
				began := time.Now()
				got, err := call(t.Context(), transport(f, network), "GET", "http://profile.shop/me")
				require.NoError(t, err, "an answer is an answer: the page says what it means")
				require.Equal(t, code, got)
				require.Equal(t, time.Duration(0), time.Since(began))
				time.Sleep(24 * time.Hour)
				require.Equal(t, int64(1), sent.Load())
			})
		})
	}
}
