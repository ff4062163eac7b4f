// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// quick is P0 with waits of a millisecond, for tests over real connections.
var quick = with(p0, set{engine.BackoffBase: ms(1), engine.BackoffMax: ms(2)})

// upstream is a real server that counts what it receives.
type upstream struct {
	*httptest.Server
	sends       atomic.Int64
	connections atomic.Int64
}

// serve starts an upstream; n is the number of the request, from 1.
func serve(tb testing.TB, handle func(w http.ResponseWriter, r *http.Request, n int)) *upstream {
	tb.Helper()
	u := &upstream{}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handle(w, r, int(u.sends.Add(1)))
	}))
	u.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			u.connections.Add(1)
		}
	}
	u.Start()
	tb.Cleanup(u.Close)
	return u
}

// base returns a transport of its own, so that connections are the test's.
func base(tb testing.TB) *http.Transport {
	tb.Helper()
	b := &http.Transport{MaxIdleConnsPerHost: 100}
	tb.Cleanup(b.CloseIdleConnections)
	return b
}

func do(tb testing.TB, rt http.RoundTripper, method, url string, body io.Reader, header http.Header) (*http.Response, error) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, body)
	if err != nil {
		tb.Fatal(err)
	}
	maps.Copy(req.Header, header)
	return (&http.Client{Transport: rt}).Do(req)
}

// reset breaks the connection after the request was read.
func reset(tb testing.TB, w http.ResponseWriter, r *http.Request) {
	tb.Helper()
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		tb.Error(err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestO_RT_07_an_unsafe_call_is_not_repeated(t *testing.T) {
	keyed := http.Header{"Idempotency-Key": {"order-1"}}
	for name, c := range map[string]struct {
		policy set
		header http.Header
		opts   []policyd.CallOption
		sends  int64
		key    string
	}{
		"by default":                     {policy: quick, sends: 1},
		"with a key header alone":        {policy: quick, header: keyed, sends: 1, key: "order-1"},
		"methods include POST":           {policy: with(quick, set{engine.IdempotencyMethods: engine.Set("GET", "POST")}), sends: 5},
		"a key, and the policy takes it": {policy: with(quick, set{engine.IdempotencyKeyEnabled: engine.Bool(true)}), header: keyed, sends: 5, key: "order-1"},
		"the application gives a key":    {policy: quick, opts: []policyd.CallOption{policyd.IdempotencyKey("order-2")}, sends: 5, key: "order-2"},
		"the application says so":        {policy: quick, opts: []policyd.CallOption{policyd.Idempotent(true)}, sends: 5},
		"one attempt is wanted":          {policy: quick, opts: []policyd.CallOption{policyd.Idempotent(true), policyd.WithoutRetry()}, sends: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var keys []string
			u := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				mu.Lock()
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				mu.Unlock()
				reset(t, w, r)
			})
			rt := newClient(t, c.policy).Transport(base(t), everything)
			ctx := policyd.WithCall(t.Context(), c.opts...)
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, u.URL, strings.NewReader("{}"))
			maps.Copy(req.Header, c.header)
			before := req.Header.Clone()
			_, err := rt.RoundTrip(req)
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
				t.Fatalf("error %v", err)
			}
			if u.sends.Load() != c.sends {
				t.Fatalf("%d sends, want %d: %v", u.sends.Load(), c.sends, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if keys = slices.Compact(keys); len(keys) != 1 || keys[0] != c.key {
				t.Fatalf("keys %q, want %q", keys, c.key)
			}
			if !maps.EqualFunc(req.Header, before, slices.Equal) {
				t.Fatalf("headers %v, before %v", req.Header, before)
			}
		})
	}
}

func TestKey_of_the_policy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := set{engine.IdempotencyKeyEnabled: engine.Bool(true), engine.IdempotencyKeyAuto: engine.Bool(true)}
		send := func(policy set, method string) []string {
			s := statuses(503, 503, 200)
			c := newClient(t, with(p0, policy))
			resp, err := c.Transport(s, everything).RoundTrip(request(t, t.Context(), method, nil))
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			var keys []string
			for _, r := range s.seen {
				keys = append(keys, r.Header.Get("Idempotency-Key")+r.Header.Get("X-Request-Key"))
			}
			return keys
		}
		first, second := send(block, "POST"), send(block, "POST")
		if len(first[0]) != 36 || first[0] != first[1] || first[1] != first[2] {
			t.Fatalf("one key per call: %q", first)
		}
		if first[0] == second[0] {
			t.Fatal("two calls have one key")
		}
		quoted := send(with(block, set{
			engine.IdempotencyKeyFormat: engine.Enum("quoted"), engine.IdempotencyKeyHeader: engine.Text("X-Request-Key"),
		}), "POST")
		if len(quoted[0]) != 38 || quoted[0][0] != '"' || quoted[0] != quoted[2] {
			t.Fatalf("quoted: %q", quoted)
		}
		if keys := send(block, "GET"); keys[0] != "" {
			t.Fatalf("a GET needs no key: %q", keys)
		}
	})
}

func TestKey_conflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		ctx := policyd.WithCall(t.Context(), policyd.IdempotencyKey("k"))
		for status, want := range map[int]policyd.Code{409: policyd.CodeAttempts, 422: policyd.CodeKeyConflict, 400: ""} {
			s := statuses(status)
			resp, err := c.Transport(s, everything).RoundTrip(request(t, ctx, http.MethodPost, nil))
			if err != nil || outcome(t, resp).Code != want {
				t.Fatalf("%d: %+v, %v", status, outcome(t, resp), err)
			}
		}
		// In progress elsewhere, then done.
		s := statuses(409, 201)
		if resp, err := c.Transport(s, everything).RoundTrip(request(t, ctx, http.MethodPost, nil)); err != nil || resp.StatusCode != 201 {
			t.Fatal(resp, err)
		}
		// Without a key, 409 is an answer like any other.
		s = statuses(409, 201)
		if resp, err := c.Transport(s, everything).RoundTrip(request(t, t.Context(), http.MethodPut, nil)); err != nil || resp.StatusCode != 409 {
			t.Fatal(resp, err)
		}
	})
}

type closer struct {
	http.RoundTripper
	closed atomic.Int64
}

func (c *closer) CloseIdleConnections() { c.closed.Add(1) }

func TestO_RT_17_the_callers_request_is_left_alone(t *testing.T) {
	inner := &closer{RoundTripper: http.DefaultTransport}
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n%2 == 1 {
			w.WriteHeader(503)
		}
	})
	policy := with(quick, set{
		engine.IdempotencyKeyEnabled: engine.Bool(true), engine.IdempotencyKeyAuto: engine.Bool(true),
		engine.TimeoutsAttempt: ms(60_000),
	})
	client := &http.Client{Transport: newClient(t, policy).Transport(inner, everything)}
	header := http.Header{"X-Tenant": {"a"}, "Accept": {"text/plain"}}
	before := header.Clone()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 50 {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, u.URL, nil)
				req.Header = header
				resp, err := client.Transport.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				if req.Header.Get("Idempotency-Key") != "" {
					t.Error("the key is in the caller's headers")
				}
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	if !maps.EqualFunc(header, before, slices.Equal) {
		t.Fatalf("headers %v, before %v", header, before)
	}
	client.CloseIdleConnections()
	if inner.closed.Load() != 1 {
		t.Fatal("CloseIdleConnections does not reach the base")
	}
}

func TestO_SE_03_credentials_stay_behind_at_a_redirect(t *testing.T) {
	s := newScript(
		answer{status: 503},
		answer{status: 302, header: http.Header{"Location": {"http://b.test/next"}}},
		answer{status: 503},
		answer{status: 200},
	)
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: newClient(t, p0).Transport(s, everything)}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.test/", nil)
		req.Header.Set("Authorization", "Bearer s3cr3t")
		req.Header.Set("Cookie", "session=s3cr3t")
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != 200 || s.count() != 4 {
			t.Fatalf("%v, %v after %d sends", resp, err, s.count())
		}
		for i, r := range s.seen {
			has := r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != ""
			if toB := r.URL.Host == "b.test"; has == toB || toB != (i >= 2) {
				t.Fatalf("send %d to %s: credentials %t", i+1, r.URL.Host, has)
			}
		}
	})
}

func TestErrors_tell_no_secret_of_the_URL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		_, err := c.Transport(newScript(answer{err: syscall.ECONNRESET}), everything).RoundTrip(request(t, t.Context(), http.MethodGet, nil))
		if err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Fatal(err)
		}
	})
}

func TestTransport_names_endpoints_by_route_then_function_then_policy(t *testing.T) {
	c := newClient(t, p0)
	c.Put([]engine.Document{{Scope: "shop/catalog/items", Settings: set{engine.MatchHTTPPath: engine.Text("/items/{id}")}}})
	rt := c.Transport(statuses(200),
		policyd.Route("POST", "/v1/charges/{id}", "shop/payments/charges.create"),
		policyd.Route("", "pay.test/v1/", "shop/payments/other"),
		policyd.Route("GET", "no slash", "shop/payments/invalid"),
		policyd.Route("GET", "/x", "not an endpoint"),
		policyd.NameFunc(func(r *http.Request) string { return r.Header.Get("X-Endpoint") }))
	for _, c := range []struct{ method, url, name, want string }{
		{"POST", "http://a.test/v1/charges/7?x=1", "shop/a/ignored", "shop/payments/charges.create"},
		{"GET", "http://a.test/v1/charges/7", "shop/a/named", "shop/a/named"},
		{"GET", "http://pay.test:8080/v1/any/thing", "", "shop/payments/other"},
		{"GET", "http://a.test/items/7", "", "shop/catalog/items"},
		{"GET", "http://a.test/items/7", "Not A Scope", "shop/catalog/items"},
		{"GET", "http://a.test/items/7", "shop/service", "shop/catalog/items"},
		{"GET", "http://a.test:81/x", "", "a.test:81"},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), c.method, c.url, nil)
		req.Header.Set("X-Endpoint", c.name)
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if o := outcome(t, resp); o.Endpoint != c.want {
			t.Errorf("%s %s (%s): %s, want %s", c.method, c.url, c.name, o.Endpoint, c.want)
		}
	}
}

func TestTransport_that_only_observes_changes_nothing(t *testing.T) {
	acts := with(p0, b0, set{engine.MaxAttempts: engine.Int(5), engine.TimeoutsAttempt: ms(1)})
	for name, c := range map[string]struct {
		policy set
		mode   policyd.Mode
	}{
		"by policy":    {with(acts, set{engine.Observe: engine.Bool(true)}), policyd.Enforce},
		"by mode":      {acts, policyd.Observe},
		"switched off": {acts, policyd.Off},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(answer{status: 503, wait: time.Second})
				rt := newClient(t, c.policy, policyd.WithMode(c.mode)).Transport(s, everything)
				for i := range 30 { // far beyond what opens the breaker
					resp := get(t, rt)
					if o := outcome(t, resp); s.count() != i+1 || o.Attempts != 1 || o.Code != "" {
						t.Fatalf("call %d: %d sends, %+v", i+1, s.count(), o)
					}
				}
			})
		})
	}
}

func TestTransport_breaks_no_contract_of_a_base_that_does(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		rt := c.Transport(roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, nil }), everything)
		if resp, err := rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil)); resp != nil || err == nil {
			t.Fatal(resp, err)
		}
		body := &trackedBody{Reader: strings.NewReader("x")}
		rt = c.Transport(roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: body}, errBoom
		}), everything)
		resp, err := rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil))
		if _, closed := body.state(); resp != nil || err != errBoom || closed != 1 { //nolint:errorlint // unchanged
			t.Fatal(resp, err, closed)
		}
		rt = c.Transport(roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 204}, nil
		}), everything)
		if resp, err = rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil)); err != nil || outcome(t, resp).Attempts != 1 {
			t.Fatal(resp, err)
		}
	})
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOutcomeOf_other_responses(t *testing.T) {
	for name, resp := range map[string]*http.Response{
		"nil": nil, "no request": {}, "plain request": {Request: request(t, t.Context(), http.MethodGet, nil)},
	} {
		if o, ok := policyd.OutcomeOf(resp); ok {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
