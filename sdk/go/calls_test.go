// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// ep is the endpoint of most tests.
const ep = "shop/upstream/call"

// set is a shorthand for the settings of a document.
type set = engine.Settings

func ms(n int) engine.Value { return engine.Duration(time.Duration(n) * time.Millisecond) }

func decimal(f float64) engine.Value {
	v, ok := engine.Decimal(f)
	if !ok {
		panic("not a decimal")
	}
	return v
}

// with returns base with changes.
func with(base set, changes ...set) set {
	all := maps.Clone(base)
	for _, c := range changes {
		maps.Copy(all, c)
	}
	return all
}

// open lifts the ceilings and switches off what most tests do not want: budget and gate.
var open = set{
	engine.CeilingsMaxAttempts: engine.Int(10), engine.CeilingsBudgetRatio: decimal(1),
	engine.CeilingsMinRetriesPerSecond: decimal(1000), engine.CeilingsTimeoutsOverall: engine.Duration(time.Hour),
	engine.BudgetRatio: decimal(1), engine.BudgetMinRetriesPerSecond: decimal(1000),
	engine.BudgetSuccessGateEnabled: engine.Bool(false),
}

// p0 is the policy P0 of the cases.
var p0 = set{
	engine.MaxAttempts: engine.Int(5), engine.BackoffBase: ms(200), engine.BackoffMax: ms(3000),
	engine.BackoffMultiplier: decimal(2), engine.BackoffJitter: engine.Enum("none"),
	engine.RetryOnHTTP: engine.Set("502", "503", "504"), engine.RetryAfterJitter: decimal(0),
}

// b0 is the breaker B0 of the cases; one attempt per call.
var b0 = set{
	engine.MaxAttempts: engine.Int(1), engine.BreakerEnabled: engine.Bool(true),
	engine.BreakerRatioEnabled: engine.Bool(true), engine.BreakerRatioFailures: decimal(0.5),
	engine.BreakerRatioWindow: ms(10_000), engine.BreakerRatioMinCalls: engine.Int(10),
	engine.BreakerRatioOpenFor: ms(5000), engine.BreakerHalfOpenProbes: engine.Int(1),
	engine.BreakerHalfOpenCloseAfter: engine.Int(1), engine.BreakerReopenJitter: decimal(0),
	engine.BreakerRecoverOver: ms(0),
}

// newClient returns a client that talks to nobody, with one policy at ep.
func newClient(tb testing.TB, policy set, opts ...policyd.Option) *policyd.Client {
	tb.Helper()
	c, err := policyd.New(append([]policyd.Option{
		policyd.WithCacheDir(""), policyd.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	put(c, policy)
	return c
}

func put(c *policyd.Client, policy set, switches ...engine.Switch) {
	c.Put([]engine.Document{
		{Scope: engine.Global, Revision: 1, Settings: open},
		{Scope: ep, Revision: 2, Settings: policy},
	}, switches...)
}

func killSwitch(action engine.Action, d time.Duration) engine.Switch {
	return engine.Switch{
		ID: "ks-7f3a", Revision: 9, Action: action, Scope: "shop", Percent: 100,
		Ends: time.Now().Add(d), Reason: "drill", Incident: "INC-2481",
	}
}

// everything routes all requests of a transport to ep.
var everything = policyd.Route("", "/", ep)

// answer is one scripted response, or the error instead of it.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
	wait   time.Duration // until it comes; the request's context cuts it short
}

// script is a transport that gives answers in order, then repeats the last one.
type script struct {
	answers []answer
	began   time.Time

	mu     sync.Mutex
	sends  []time.Duration // guarded by mu
	seen   []*http.Request // guarded by mu
	bodies []*trackedBody  // guarded by mu
}

func newScript(answers ...answer) *script { return &script{answers: answers, began: time.Now()} }

func statuses(codes ...int) *script {
	s := newScript()
	for _, code := range codes {
		s.answers = append(s.answers, answer{status: code})
	}
	return s
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(req.Context()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	a := s.answers[min(len(s.sends), len(s.answers)-1)]
	s.sends = append(s.sends, time.Since(s.began))
	s.seen = append(s.seen, req)
	s.mu.Unlock()
	if a.wait > 0 {
		timer := time.NewTimer(a.wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	header := a.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	body := &trackedBody{Reader: strings.NewReader(a.body)}
	s.mu.Lock()
	s.bodies = append(s.bodies, body)
	s.mu.Unlock()
	return &http.Response{
		StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: int64(len(a.body)), Request: req,
	}, nil
}

// at returns the times of the sends since the script was made.
func (s *script) at() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.sends...)
}

// last returns the request that was sent last.
func (s *script) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[len(s.seen)-1]
}

func (s *script) count() int { return len(s.at()) }

type trackedBody struct {
	io.Reader
	mu     sync.Mutex
	closed int
	read   int
}

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += n
	return n, err
}

func (b *trackedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed++
	return nil
}

func (b *trackedBody) state() (read, closed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read, b.closed
}

func request(tb testing.TB, ctx context.Context, method string, body io.Reader) *http.Request { //nolint:revive // tb comes first in tests
	tb.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://upstream.test/v1/call?token=s3cr3t", body)
	if err != nil {
		tb.Fatal(err)
	}
	return req
}

// get sends a GET through rt and fails the test on an error.
func get(tb testing.TB, rt http.RoundTripper) *http.Response {
	tb.Helper()
	resp, err := rt.RoundTrip(request(tb, tb.Context(), http.MethodGet, nil))
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

func outcome(tb testing.TB, resp *http.Response) policyd.Outcome {
	tb.Helper()
	o, ok := policyd.OutcomeOf(resp)
	if !ok {
		tb.Fatal("the response has no outcome")
	}
	return o
}

func equalTimes(tb testing.TB, got []time.Duration, want ...time.Duration) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Fatalf("sends at %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			tb.Fatalf("sends at %v, want %v", got, want)
		}
	}
}

// noLeak fails the test if goroutines are left after f; those of the network may take a while.
func noLeak(tb testing.TB, slack int, f func()) {
	tb.Helper()
	before := runtime.NumGoroutine()
	f()
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		after := runtime.NumGoroutine()
		if after <= before+slack {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d goroutines before, %d after", before, after)
		}
	}
}

var errBoom = errors.New("boom")
