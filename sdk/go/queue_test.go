// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

func limit(n, queue int64) set {
	return set{
		engine.MaxAttempts: engine.Int(1), engine.ConcurrencyLimit: engine.Int(n),
		engine.ConcurrencyQueue: engine.Int(queue), engine.ConcurrencyWhenFull: engine.Enum("wait"),
	}
}

func hold(t *testing.T, c *policyd.Client, d time.Duration) func() {
	return func() {
		if _, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
			time.Sleep(d)
			return 0, nil
		}, policyd.Using(c)); err != nil {
			t.Error(err)
		}
	}
}

func TestConcurrency_a_call_above_the_limit_is_told_so(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, set{engine.ConcurrencyLimit: engine.Int(2)})
		var wg sync.WaitGroup
		wg.Go(hold(t, c, time.Second))
		wg.Go(hold(t, c, time.Second))
		synctest.Wait()
		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
			t.Error("sent")
			return 0, nil
		}, policyd.Using(c))
		var e *policyd.Error
		if !errors.Is(err, policyd.ErrConcurrency) || !errors.As(err, &e) || e.Attempts != 0 || e.Scope != ep ||
			err.Error() != "policyd: shop/upstream/call: concurrency_limited: 2 calls at once" {
			t.Fatalf("%v %+v", err, e)
		}
		s := newScript(answer{status: 200})
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://upstream.shop/", http.NoBody)
		if resp, err := c.Transport(s, everything).RoundTrip(req); !errors.Is(err, policyd.ErrConcurrency) || resp != nil || s.count() != 0 {
			t.Fatalf("%v %v after %d sends", resp, err, s.count())
		}
		wg.Wait()
		hold(t, c, 0)()
	})
}

func TestConcurrency_callers_wait_in_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, limit(1, 10))
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					time.Sleep(time.Second)
					return 0, nil
				}, policyd.Using(c))
				if err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		began := time.Now()
		wg.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6, 7}) || time.Since(began) != 8*time.Second {
			t.Fatalf("%v in %v", order, time.Since(began))
		}
	})
}

func TestConcurrency_a_waiting_caller_leaves_at_once(t *testing.T) {
	for name, leave := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		"its own deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 3*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, limit(1, 10))
				var wg sync.WaitGroup
				wg.Go(hold(t, c, time.Minute))
				synctest.Wait()
				ctx, cancel := leave(t.Context())
				defer cancel()
				stop := time.AfterFunc(3*time.Second, cancel)
				defer stop.Stop()
				began := time.Now()
				_, err := policyd.Do(ctx, ep, func(context.Context) (int, error) { return 0, nil }, policyd.Using(c))
				if !errors.Is(err, ctx.Err()) || err == nil || time.Since(began) != 3*time.Second {
					t.Fatalf("%v after %v", err, time.Since(began))
				}
				if s := c.Stats(ep).Concurrency; s.Running != 1 || s.Waiting != 0 {
					t.Fatalf("%+v", s)
				}
				wg.Wait()
				hold(t, c, 0)()
			})
		})
	}
}

func TestConcurrency_a_wait_ends_with_the_time_of_the_whole_call(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(limit(1, 10), set{engine.TimeoutsOverall: ms(2000)}))
		release := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { <-release; return 0, nil }, policyd.Using(c))
		})
		synctest.Wait()
		began := time.Now()
		_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, nil }, policyd.Using(c))
		if !errors.Is(err, policyd.ErrConcurrency) || time.Since(began) != 2*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		close(release)
		wg.Wait()
	})
}

func TestConcurrency_a_panic_gives_the_slot_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, limit(1, 0))
		for range 3 {
			func() {
				defer func() { _ = recover() }()
				_, _ = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { panic("boom") }, policyd.Using(c))
			}()
		}
		hold(t, c, time.Second)()
		if s := c.Stats(ep).Concurrency; s.Running != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestConcurrency_a_higher_limit_lets_the_queue_in(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, limit(1, 10))
		var wg sync.WaitGroup
		wg.Go(hold(t, c, time.Minute))
		synctest.Wait()
		began := time.Now()
		wg.Go(func() {
			hold(t, c, 0)()
			if time.Since(began) != 5*time.Second {
				t.Errorf("let in after %v", time.Since(began))
			}
		})
		time.Sleep(5 * time.Second)
		put(c, limit(2, 10))
		wg.Wait()
	})
}
