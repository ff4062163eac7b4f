// SPDX-License-Identifier: Apache-2.0

package policyqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policyqueue"
	"github.com/policyd/policyd/sdk/go/policytest"
)

func TestDrain_takes_an_answer_for_the_end_and_repeats_the_rest(t *testing.T) {
	for name, c := range map[string]struct {
		answers []int // one after another; the last for ever
		sends   int
		final   int
	}{
		"success":                           {[]int{200}, 1, 200},
		"refused":                           {[]int{400}, 1, 400},
		"not authenticated":                 {[]int{401}, 1, 401},
		"not allowed":                       {[]int{403}, 1, 403},
		"a key that was used otherwise":     {[]int{422}, 1, 422},
		"unavailable for a while":           {[]int{503, 502, 504, 503, 503, 503, 503, 201}, 8, 201},
		"too many requests":                 {[]int{429, 429, 204}, 3, 204},
		"still at work on it":               {[]int{409, 409, 200}, 3, 200},
		"a conflict for good":               {[]int{409}, 5, 409},
		"an error that may or may not last": {[]int{500, 500, 200}, 3, 200},
		"an error that lasts":               {[]int{500}, 5, 500},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, edit("ttl: 12h", "ttl: 20h"))
				f.s.cut(true)
				f.keep("first", "second")
				f.s.answers(func(n int) (int, http.Header) {
					if n > c.sends {
						return 200, nil
					}
					return c.answers[min(n, len(c.answers))-1], nil
				})
				f.s.cut(false)
				f.drained()
				got := f.s.received()
				if len(got) != c.sends+1 || got[c.sends].body != "second" {
					t.Fatalf("received %v", f.bodies())
				}
				for _, r := range got[:c.sends] {
					if r.body != "first" || r.key != got[0].key {
						t.Errorf("%q under %q, first under %q", r.body, r.key, got[0].key)
					}
				}
				s := f.told.list()
				if len(s) != 2 || s[0].Response == nil || s[0].Response.StatusCode != c.final || s[0].Err != nil || s[0].Attempts != c.sends+2 {
					t.Errorf("told %+v", s)
				}
			})
		})
	}
}

func TestDrain_waits_as_long_as_the_service_asks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a")
		f.s.answers(func(n int) (int, http.Header) {
			if n == 1 {
				return 503, http.Header{"Retry-After": {"3600"}}
			}
			return 200, nil
		})
		f.s.cut(false)
		f.drained()
		got := f.s.received()
		if len(got) != 2 || got[1].at.Sub(got[0].at) < time.Hour || got[1].at.Sub(got[0].at) > 70*time.Minute {
			t.Errorf("received %v", got)
		}
	})
}

func TestDrain_obeys_switches_breakers_and_edits_at_once(t *testing.T) {
	for name, c := range map[string]struct{ hold, release func(f *fixture) }{
		"retries are switched off": {func(f *fixture) { f.fake.Switch("disable-retries", endpoint, time.Hour) }, func(*fixture) {}},
		"it is forced open":        {func(f *fixture) { f.fake.Switch("force-open", "shop", time.Hour) }, func(*fixture) {}},
		"the breaker is open":      {func(f *fixture) { f.fake.OpenBreaker(endpoint, time.Hour) }, func(*fixture) {}},
		"the queue is off": {
			func(f *fixture) { f.fake.Apply(edit("enabled: true, maxItems", "enabled: false, maxItems")) },
			func(f *fixture) { f.fake.Apply(notes) },
		},
		"the policy is observed only": {
			func(f *fixture) { f.fake.Apply(notes + "  observe: true\n") },
			func(f *fixture) { f.fake.Apply(notes) },
		},
		"there is no budget": {
			func(f *fixture) { f.fake.Apply(edit("minRetriesPerSecond: 5", "minRetriesPerSecond: 0, ratio: 0")) },
			func(f *fixture) { f.fake.Apply(notes) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, notes+"  breaker: {consecutive: {failures: 100}}\n")
				f.s.cut(true)
				for i := range 100 {
					f.keep(fmt.Sprint(i))
				}
				f.s.cut(false)
				for len(f.s.received()) < 10 {
					time.Sleep(10 * time.Millisecond)
				}
				c.hold(f)
				held := time.Now()
				n := len(f.s.received())
				time.Sleep(time.Hour)
				if more := len(f.s.received()) - n; more > 0 {
					t.Fatalf("%d sends while held back", more)
				}
				if f.Len()+n != 100 {
					t.Fatalf("%d sent, %d left", n, f.Len())
				}
				c.release(f)
				f.drained()
				if since := time.Since(held); len(f.s.received()) != 100 || since > 80*time.Minute {
					t.Errorf("%d received after %s", len(f.s.received()), since)
				}
			})
		})
	}
}

func TestDrain_drops_a_call_at_its_ttl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a")
		time.Sleep(time.Hour)
		f.keep("b")
		f.close()
		time.Sleep(10 * time.Hour)
		f.open() // the time between counts
		time.Sleep(time.Hour)
		synctest.Wait()
		s := f.told.list()
		var e *policyd.Error
		if len(s) != 1 || !errors.As(s[0].Err, &e) || e.Code != policyd.CodeQueueExpired || e.QueueID != s[0].ID || s[0].Response != nil {
			t.Fatalf("told %+v", s)
		}
		if len(f.s.received()) > 0 || f.Len() != 1 {
			t.Error("sent")
		}
		f.s.cut(false)
		f.drained()
		if got := f.bodies(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("received %v", got)
		}
		f.close()
		f.open()
		if f.Len() != 0 {
			t.Error("calls came back")
		}
	})
}

func TestDrain_goes_on_after_a_restart_under_the_same_keys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a", "b", "c")
		before := f.Items()
		f.close()
		f.open()
		after := f.Items()
		if len(after) != 3 || !slices.EqualFunc(before, after, func(a, b policyqueue.Item) bool {
			return a.ID == b.ID && a.Key == b.Key && a.QueuedAt.Equal(b.QueuedAt) && a.Attempts <= b.Attempts+10
		}) {
			t.Fatalf("before %+v\nafter %+v", before, after)
		}
		f.keep("d")
		f.s.cut(false)
		f.drained()
		if got := f.bodies(); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
			t.Fatalf("received %v", got)
		}
		for i, r := range f.s.received()[:3] {
			if r.key != before[i].Key {
				t.Errorf("%s under %s, want %s", r.body, r.key, before[i].Key)
			}
		}
	})
}

func TestDrain_of_damaged_calls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a", "b", "c", "d")
		files, err := filepath.Glob(filepath.Join(f.cfg.Dir, "*.call"))
		if err != nil || len(files) != 4 {
			t.Fatal(files, err)
		}
		if err := os.Truncate(files[0], 100); err != nil { // found when it is sent
			t.Fatal(err)
		}
		f.s.cut(false)
		for len(f.s.received()) == 0 {
			time.Sleep(time.Second)
		}
		if s := f.told.list(); s[0].Err == nil || s[0].Response != nil {
			t.Errorf("told %+v", s[0])
		}
		f.close()
		left, _ := filepath.Glob(filepath.Join(f.cfg.Dir, "*.call"))
		if len(left) > 0 {
			if err := os.Truncate(left[0], 100); err != nil { // found at the start
				t.Fatal(err)
			}
		}
		f.open()
		f.drained()
		aside, _ := filepath.Glob(filepath.Join(f.cfg.Dir, "*.damaged"))
		if len(aside) != 1+min(1, len(left)) || !strings.Contains(f.log.String(), "put aside") {
			t.Errorf("aside %v; log:\n%s", aside, f.log)
		}
	})
}

func TestDrain_of_a_call_that_was_kept_under_larger_bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		long := strings.Repeat("x", 500<<10)
		f.keep(long, "short")
		f.close()
		f.cfg.MaxBody = 1000
		f.s.cut(false)
		f.open()
		f.drained()
		if got := f.bodies(); !slices.Equal(got, []string{long, "short"}) {
			t.Errorf("%d sent; log:\n%s", len(got), f.log)
		}
	})
}

func TestDrain_of_payloads_survives_its_sender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := 0
		fn := func(context.Context, []byte) error { return policyd.NotSent(errors.New("down")) }
		f := newFixture(t, notes, func(cfg *policyqueue.Config) {
			cfg.Senders = map[string]policyqueue.Sender{endpoint: func(ctx context.Context, p []byte) error {
				mu.Lock()
				calls++
				send := fn
				mu.Unlock()
				return send(ctx, p)
			}}
			inner := cfg.OnSettled
			cfg.OnSettled = func(s policyqueue.Settled) { inner(s); panic("hook") }
		})
		keep := func() {
			t.Helper()
			if err := f.Do(t.Context(), endpoint, []byte("x")); !errors.Is(err, policyd.ErrQueued) {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			calls = 0
		}
		for name, c := range map[string]struct {
			fn    func(context.Context, []byte) error
			calls int
		}{
			"permanent": {func(context.Context, []byte) error { return policyd.Permanent(errors.New("never")) }, 1},
			"unknown":   {func(context.Context, []byte) error { return errors.New("what") }, 5},
			"a panic":   {func(context.Context, []byte) error { panic("sender") }, 5},
			"too slow":  {func(ctx context.Context, _ []byte) error { <-ctx.Done(); return ctx.Err() }, -1},
		} {
			keep()
			mu.Lock()
			old := fn
			fn = c.fn
			mu.Unlock()
			before := len(f.told.list())
			if c.calls > 0 {
				f.drained()
				if s := f.told.list(); len(s) != before+1 || s[before].Err == nil {
					t.Errorf("%s: told %+v", name, s[before:])
				}
			} else {
				time.Sleep(time.Hour)
			}
			mu.Lock()
			if c.calls > 0 && calls != c.calls || c.calls < 0 && (calls < 30 || calls > 60) {
				t.Errorf("%s: %d sends", name, calls)
			}
			fn = func(context.Context, []byte) error { return nil }
			mu.Unlock()
			f.drained()
			mu.Lock()
			fn = old
			mu.Unlock()
		}

		keep() // and no sender in the next process
		f.close()
		f.cfg.Senders = nil
		f.open()
		time.Sleep(time.Hour)
		if f.Len() != 1 || !strings.Contains(f.log.String(), "Config.Senders has none") {
			t.Errorf("%d left; log:\n%s", f.Len(), f.log)
		}
	})
}

func TestFlush_sends_without_pauses_but_within_the_budget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, edit("minRetriesPerSecond: 5", "minRetriesPerSecond: 1, ratio: 0"))
		if got, err := f.Flush(t.Context()); err != nil || got != (policyqueue.Flushed{}) {
			t.Errorf("empty: %+v, %v", got, err)
		}
		f.s.cut(true)
		for i := range 30 {
			f.keep(fmt.Sprint(i))
		}
		if got, err := f.Flush(t.Context()); err != nil || got.Sent != 0 || got.Failed != 1 || got.Left != 30 {
			t.Errorf("down: %+v, %v", got, err)
		}
		f.s.cut(false)
		time.Sleep(10 * time.Second) // one more failure may have been waited for
		for f.Len() == 30 {
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		left := f.Len()
		got, err := f.Flush(t.Context())
		if err != nil || got.Sent > 10 || got.Left != left-got.Sent {
			t.Errorf("%d were left: %+v, %v", left, got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Flush(ctx); !errors.Is(err, context.Canceled) && err != nil {
			t.Errorf("error %v", err)
		}
		f.drained()
		if len(f.s.received()) != 30 {
			t.Errorf("received %v", f.bodies())
		}
	})
}

func TestRemove_takes_a_call_out_for_good(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a", "b", "c")
		items := f.Items()
		if err := f.Remove(items[1].ID); err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(items[1].ID); err == nil {
			t.Error("removed twice")
		}
		f.close()
		f.open()
		f.s.cut(false)
		f.drained()
		if got := f.bodies(); !slices.Equal(got, []string{"a", "c"}) || len(f.told.list()) != 2 {
			t.Errorf("received %v", got)
		}
	})
}

func TestClose_waits_for_sends_and_then_cuts_them_off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("a", "b")
		hang := make(chan struct{})
		entered := make(chan struct{}, 10)
		f.s.hangs(func(ctx context.Context) {
			entered <- struct{}{}
			select {
			case <-hang:
			case <-ctx.Done():
			}
		})
		f.s.cut(false)
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		synctest.Wait() // the rest ends by itself
		if _, err := f.Flush(t.Context()); err == nil {
			t.Error("a closed queue flushes")
		}
		f.s.cut(true)
		if _, err := f.post("c"); err == nil || errors.Is(err, policyd.ErrQueued) {
			t.Errorf("a closed queue keeps calls: %v", err)
		}
		f.s.cut(false)
		f.open()
		if f.Len() != 2 {
			t.Fatalf("%d are left", f.Len())
		}
		<-entered
		done := make(chan error)
		go func() { done <- f.Close(t.Context()) }()
		synctest.Wait()
		close(hang)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(f.told.list()); n != 1 {
			t.Errorf("%d calls were told", n)
		}
		f.open()
	})
}

// A real server goes away in the middle and comes back on the same port.
func TestQueue_before_a_server_that_dies_and_comes_back(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{} // by key
	var order []string
	serve := func(l net.Listener) *http.Server {
		s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			key := r.Header.Get("Idempotency-Key")
			if seen[key]++; seen[key] == 1 {
				order = append(order, string(body))
			}
		})}
		go func() { _ = s.Serve(l) }()
		return s
	}
	listen := func(addr string) net.Listener {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := listen("127.0.0.1:0")
	addr := l.Addr().String()
	server := serve(l)
	policies := strings.NewReplacer("notes.test", "127.0.0.1", "base: 100ms", "base: 1ms", "maxAttempts: 2", "maxAttempts: 1").Replace(notes)
	settled := make(chan policyqueue.Settled, 100)
	q, err := policyqueue.Open(policyqueue.Config{
		Dir: t.TempDir(), Client: policytest.New(t, policies).Client(),
		OnSettled: func(s policyqueue.Settled) { s.Response = nil; settled <- s },
	})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: q.Transport()}
	post := func(body string) error {
		req, err := http.NewRequestWithContext(policyqueue.Keep(t.Context()), http.MethodPost, "http://"+addr+"/notes", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := post("0"); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"0"}
	for i := range 20 {
		want = append(want, fmt.Sprint(i+1))
		if err := post(fmt.Sprint(i + 1)); !errors.Is(err, policyd.ErrQueued) {
			t.Fatal(err)
		}
	}
	server = serve(listen(addr))
	defer server.Close()
	for range 20 {
		if s := <-settled; s.Err != nil {
			t.Errorf("%+v", s)
		}
	}
	if err := q.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, want) {
		t.Errorf("arrived %v, want %v", order, want)
	}
}
