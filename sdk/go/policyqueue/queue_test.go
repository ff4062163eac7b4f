// SPDX-License-Identifier: Apache-2.0

package policyqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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

const notes = `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/notes/save}
spec:
  match: {http: {method: POST, host: notes.test, path: /notes}}
  maxAttempts: 2
  backoff: {base: 100ms, max: 1s, multiplier: 2, jitter: full}
  budget: {minRetriesPerSecond: 5}
  idempotency: {key: {auto: true}}
  offlineQueue: {enabled: true, maxItems: 1000, ttl: 12h}
`

// service is a service that can be cut off, or answer as told. It is a base transport.
type service struct {
	mu     sync.Mutex
	down   bool                           // guarded by mu
	status func(n int) (int, http.Header) // guarded by mu; of the nth request, from 1; nil: 200
	hang   func(ctx context.Context)      // guarded by mu
	got    []received                     // guarded by mu
}

type received struct {
	at              time.Time
	key, body, auth string
	header          http.Header
	url, host       string
}

func (s *service) cut(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *service) answers(f func(n int) (int, http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = f
}

// hangs has each request wait.
func (s *service) hangs(f func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = f
}

func (s *service) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		all, err := io.ReadAll(req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
		body = string(all)
	}
	s.mu.Lock()
	hang := s.hang
	if hang != nil && !s.down {
		s.mu.Unlock()
		if hang(req.Context()); req.Context().Err() != nil {
			return nil, req.Context().Err()
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("network is unreachable")}
	}
	s.got = append(s.got, received{time.Now(), req.Header.Get("Idempotency-Key"), body, req.Header.Get("Authorization"), req.Header, req.URL.String(), req.Host})
	status, header := 200, http.Header{}
	if s.status != nil {
		if code, h := s.status(len(s.got)); code != 0 {
			status = code
			for name := range h {
				header[name] = h[name]
			}
		}
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("ok")), Request: req}, nil
}

func (s *service) received() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func post(ctx context.Context, t *testing.T, rt http.RoundTripper, body string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://notes.test/notes", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// told are the calls that OnSettled was told of.
type told struct {
	mu  sync.Mutex
	all []policyqueue.Settled // guarded by mu
}

func (o *told) add(s policyqueue.Settled) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, s)
}

func (o *told) list() []policyqueue.Settled {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

// fixture is a queue under a fake policyd before a service that is not there.
type fixture struct {
	*policyqueue.Queue
	t    *testing.T
	fake *policytest.Fake
	s    *service
	told told
	log  *bytes.Buffer
	cfg  policyqueue.Config
}

func newFixture(t *testing.T, yaml string, change ...func(*policyqueue.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, fake: policytest.New(t, yaml), s: &service{}, log: &bytes.Buffer{}}
	f.cfg = policyqueue.Config{
		Dir: t.TempDir(), Client: f.fake.Client(), Base: f.s, OnSettled: f.told.add,
		Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	}
	for _, c := range change {
		c(&f.cfg)
	}
	f.open()
	t.Cleanup(f.close)
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	q, err := policyqueue.Open(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Queue = q
}

func (f *fixture) close() {
	f.t.Helper()
	if err := f.Close(context.Background()); err != nil {
		f.t.Error(err)
	}
}

// post makes a call that may be kept.
func (f *fixture) post(body string) (int, error) {
	f.t.Helper()
	return post(policyqueue.Keep(context.Background()), f.t, f.Transport(), body)
}

// keep makes calls that must be kept.
func (f *fixture) keep(bodies ...string) {
	f.t.Helper()
	for _, body := range bodies {
		if status, err := f.post(body); !errors.Is(err, policyd.ErrQueued) {
			f.t.Fatalf("%s: status %d, error %v, want it kept", body, status, err)
		}
	}
}

// drained waits until nothing is left.
func (f *fixture) drained() {
	f.t.Helper()
	for range 100_000 {
		if f.Len() == 0 {
			synctest.Wait()
			return
		}
		time.Sleep(time.Second)
	}
	f.t.Fatalf("%d calls are left; log:\n%s", f.Len(), f.log)
}

func (f *fixture) bodies() []string {
	var all []string
	for _, r := range f.s.received() {
		all = append(all, r.body)
	}
	return all
}

func TestQueue_sends_a_thousand_calls_in_order_within_the_budget_each_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		var want []string
		for i := range 1000 {
			want = append(want, fmt.Sprint("note ", i))
		}
		f.keep(want...)
		if _, err := f.post("one too many"); !errors.Is(err, policyd.ErrQueueFull) {
			t.Fatalf("error %v", err)
		}
		keys := map[string]string{}
		for i, it := range f.Items() {
			keys[want[i]] = it.Key
		}
		time.Sleep(30 * time.Second)
		f.s.cut(false)
		back := time.Now()
		f.drained()

		got := f.s.received()
		if len(got) != len(want) || len(keys) != len(want) {
			t.Fatalf("%d sends of %d calls with %d keys", len(got), len(want), len(keys))
		}
		// The policy allows 5 retries per second, counted over 10 s in slices of 1 s.
		const perWindow, window = 50, 10 * time.Second
		for i, r := range got {
			if r.body != want[i] || r.key != keys[r.body] {
				t.Fatalf("send %d is %q under %q, want %q under %q", i, r.body, r.key, want[i], keys[want[i]])
			}
			if i >= perWindow && r.at.Sub(got[i-perWindow].at) < window-time.Second {
				t.Fatalf("sends %d to %d within %s", i-perWindow, i, r.at.Sub(got[i-perWindow].at))
			}
		}
		if took := got[len(got)-1].at.Sub(back); took < 180*time.Second || took > 240*time.Second {
			t.Errorf("took %s; a thousand retries at 5/s take 200 s", took)
		}
		if n := len(f.told.list()); n != len(want) {
			t.Errorf("%d calls were told", n)
		}
	})
}

func TestQueue_remembers_a_bounded_number_of_hosts_that_it_told_of(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: global}\nspec:\n  offlineQueue: {enabled: true}\n")
		for i := range 2_000 {
			if _, err := with(func(r *http.Request) { r.URL.Host = fmt.Sprint("host-", i, ".test") })(f); err != nil {
				t.Fatal(err)
			}
		}
		if told := strings.Count(f.log.String(), "no idempotency key"); told != 1_000 {
			t.Errorf("told %d times", told)
		}
	})
}
