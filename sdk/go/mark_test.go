// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Contexts and requests of attempts outlive their call in other goroutines: what those see
// is their own call to the end of time, whatever other calls do meanwhile. Run with -race.
func TestCalls_leave_their_state_to_nobody_else(t *testing.T) {
	const callers, each = 16, 60
	c := newClient(t, with(p0, set{
		engine.BackoffBase: ms(1), engine.BackoffMax: ms(1), engine.HedgingEnabled: engine.Bool(true),
		engine.HedgingAfter: engine.Text("1ms"), engine.TimeoutsAttempt: ms(20), engine.MaxAttempts: engine.Int(3),
	}))
	late := newLookers()
	base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
		want := req.Header.Get("Idempotency-Key")
		over := make(chan struct{})
		defer close(over)
		late.enter()
		go func() {
			defer late.leave()
			look := func() {
				if a, ok := policyd.AttemptFrom(req.Context()); !ok || a.IdempotencyKey != want || a.Max != 3 || a.Number < 1 || a.Number > 3 {
					t.Errorf("%s sees %+v", want, a)
				}
				if o, ok := policyd.OutcomeOf(&http.Response{Request: req}); ok && (o.Endpoint != ep || o.Attempts < 1 || o.Attempts > 3) {
					t.Errorf("%s sees %+v", want, o)
				}
				_, _ = policyd.AttemptFrom(policyd.WithCall(req.Context(), policyd.WithoutRetry()))
			}
			look()
			<-over
			for range 50 { // the call goes on, ends, and others take its place
				look()
			}
		}()
		answered, cancel := context.WithTimeout(req.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
		defer cancel()
		<-answered.Done()
		if err := context.Cause(req.Context()); err != nil {
			return nil, err
		}
		switch rand.IntN(8) {
		case 0:
			panic(http.ErrAbortHandler)
		case 1, 2:
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Request: req, Header: http.Header{}, Body: http.NoBody}, nil
		case 3:
			return nil, io.ErrUnexpectedEOF
		default:
			return &http.Response{StatusCode: http.StatusOK, Request: req, Header: http.Header{}, Body: http.NoBody}, nil
		}
	})
	rt := c.Transport(base, everything)
	one := func(ctx context.Context, key string) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // it is what was thrown
				t.Errorf("panic: %v", p)
			}
		}()
		req := request(t, ctx, http.MethodPut, nil)
		req.Header.Set("Idempotency-Key", key)
		resp, err := rt.RoundTrip(req.WithContext(policyd.WithCall(ctx, policyd.IdempotencyKey(key))))
		if err != nil {
			return
		}
		_ = resp.Body.Close()
		if a, ok := policyd.AttemptFrom(resp.Request.Context()); !ok || a.IdempotencyKey != key {
			t.Errorf("the response of %s is that of %+v", key, a)
		}
		if o, ok := policyd.OutcomeOf(resp); !ok || o.Attempts < 1 || o.Attempts > 3 {
			t.Errorf("%s: %+v", key, o)
		}
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range each {
				ctx, cancel := context.WithCancel(context.Background())
				if rand.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				one(ctx, fmt.Sprintf("%d-%d", i, n))
				cancel()
			}
		})
	}
	all.Wait()
	s := c.Stats(ep)
	late.wait(s.Attempts()) // one that lost a race may come to the base after its call has ended
	if s.Calls != callers*each || s.OK+s.Rescued+s.Failed+s.Cancelled != s.Calls {
		t.Fatalf("%+v", s)
	}
}

// lookers are those that look at what attempts left behind.
type lookers struct {
	changed       *sync.Cond
	entered, left uint64 // guarded by changed.L
}

func newLookers() *lookers { return &lookers{changed: sync.NewCond(&sync.Mutex{})} }

func (l *lookers) enter() {
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	l.entered++
}

func (l *lookers) leave() {
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	l.left++
	l.changed.Broadcast()
}

// wait returns when n have come and gone.
func (l *lookers) wait(n uint64) {
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	for l.left < n || l.left < l.entered {
		l.changed.Wait()
	}
}

// What a call takes from the heap is one record, over HTTP with the request that leads to it,
// and Do a context; the rest is on its goroutine's stack, where nobody can get hold of it.
func TestCalls_allocate_little(t *testing.T) {
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	bare := roundTripFunc(func(req *http.Request) (*http.Response, error) {
		resp.Request = req
		return resp, nil
	})
	policy := set{engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.MatchHTTPPath: engine.Text("/v1/call")}
	c, shut := newClient(t, policy), newClient(t, nil)
	put(shut, nil, killSwitch(engine.ForceOpen, time.Hour))
	through, refusing := c.Transport(bare), shut.Transport(bare, everything)
	req := request(t, t.Context(), http.MethodGet, nil)
	using := policyd.WithCall(t.Context(), policyd.Using(c))
	fn := func(context.Context) (*int, error) { return nil, nil } //nolint:nilnil // a result like any other
	for name, c := range map[string]struct {
		call func() error
		most float64
	}{
		"Transport": {func() error { _, err := through.RoundTrip(req); return err }, 1},
		"refused":   {func() error { _, err := refusing.RoundTrip(req); return gaveUp(err) }, 3},
		"Do":        {func() error { _, err := policyd.Do(using, ep, fn); return err }, 4},
	} {
		if n := testing.AllocsPerRun(200, func() {
			if err := c.call(); err != nil {
				t.Fatal(err)
			}
		}); n > c.most {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// gaveUp turns the errors of a policy into none.
func gaveUp(err error) error {
	var e *policyd.Error
	if errors.As(err, &e) {
		return nil
	}
	return fmt.Errorf("not refused: %w", err)
}
