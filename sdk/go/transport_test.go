// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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
func serve(t testing.TB, handle func(w http.ResponseWriter, r *http.Request, n int)) *upstream {
	t.Helper()
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
	t.Cleanup(u.Close)
	return u
}

// base returns a transport of its own, so that connections are the test's.
func base(t testing.TB) *http.Transport {
	t.Helper()
	b := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(b.CloseIdleConnections)
	return b
}

func do(t testing.TB, rt http.RoundTripper, method, url string, body io.Reader, header http.Header) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	return (&http.Client{Transport: rt}).Do(req)
}

// reset breaks the connection after the request was read.
func reset(t testing.TB, w http.ResponseWriter, r *http.Request) {
	t.Helper()
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
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

func TestO_RT_08_bodies_are_replayed_whole_or_not_at_all(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 1663)
	type seen struct {
		body   string
		length int64
	}
	serveBodies := func(t *testing.T, got *[]seen) *upstream {
		return serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			b, _ := io.ReadAll(r.Body)
			*got = append(*got, seen{string(b), r.ContentLength})
			if n < 3 {
				w.WriteHeader(503)
			}
			fmt.Fprintf(w, "answer %d", n)
		})
	}
	unnamed := func(r io.Reader) io.Reader { return struct{ io.Reader }{r} } // hides the type, so no GetBody
	policy := with(quick, set{engine.IdempotencyMethods: engine.Set("POST")})
	for name, c := range map[string]struct {
		body    io.Reader
		length  int64
		options []policyd.TransportOption
	}{
		"with GetBody":              {bytes.NewReader(payload), 1663, nil},
		"without, length known":     {unnamed(bytes.NewReader(payload)), 1663, nil},
		"without, length not known": {unnamed(bytes.NewReader(payload)), -1, nil},
		"just at the limit":         {unnamed(bytes.NewReader(payload)), 1663, []policyd.TransportOption{policyd.MaxReplayBody(1663)}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []seen
			u := serveBodies(t, &got)
			rt := newClient(t, policy).Transport(base(t), append(c.options, everything)...)
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, u.URL, c.body)
			if c.length > 0 {
				req.ContentLength = c.length
			}
			resp, err := rt.RoundTrip(req)
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			_ = resp.Body.Close()
			if len(got) != 3 {
				t.Fatalf("%d sends", len(got))
			}
			for _, g := range got {
				if g.body != string(payload) || g.length != c.length {
					t.Fatalf("%d bytes, Content-Length %d", len(g.body), g.length)
				}
			}
		})
	}
	for name, length := range map[string]int64{"too long, known": 1663, "too long, not known": -1} {
		t.Run(name, func(t *testing.T) {
			var got []seen
			u := serveBodies(t, &got)
			rt := newClient(t, policy).Transport(base(t), everything, policyd.MaxReplayBody(1662))
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, u.URL, unnamed(bytes.NewReader(payload)))
			if length > 0 {
				req.ContentLength = length
			}
			resp, err := rt.RoundTrip(req)
			if err != nil || resp.StatusCode != 503 {
				t.Fatal(resp, err)
			}
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "answer 1" {
				t.Fatalf("%q, %v", b, err)
			}
			if o := outcome(t, resp); o.Code != policyd.CodeBody || o.Attempts != 1 || len(got) != 1 || len(got[0].body) != 1663 {
				t.Fatalf("%+v after %d sends", o, len(got))
			}
		})
	}
}

func TestBody_of_an_unsafe_call_is_sent_when_the_connection_failed(t *testing.T) {
	var got string
	u := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
	})
	failures := 2
	b := base(t)
	b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if failures--; failures >= 0 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	resp, err := do(t, newClient(t, quick).Transport(b, everything), http.MethodPost, u.URL, struct{ io.Reader }{strings.NewReader("order")}, nil)
	if err != nil || resp.StatusCode != 200 || got != "order" {
		t.Fatalf("%v, %v, body %q", resp, err, got)
	}
	_ = resp.Body.Close()
}

func TestBody_is_closed_once_whatever_happens(t *testing.T) {
	for name, c := range map[string]struct {
		policy set
		script *script
		before func(*policyd.Client)
	}{
		"success":        {p0, statuses(200), nil},
		"retries":        {p0, statuses(503, 503, 200), nil},
		"given up":       {p0, statuses(503), nil},
		"error":          {p0, newScript(answer{err: errBoom}), nil},
		"refused":        {p0, statuses(200), func(c *policyd.Client) { put(c, p0, killSwitch(engine.ForceOpen, time.Hour)) }},
		"observed":       {with(p0, set{engine.Observe: engine.Bool(true)}), statuses(503), nil},
		"no replay":      {with(p0, set{engine.IdempotencyMethods: engine.Set("GET")}), statuses(503), nil},
		"single attempt": {with(p0, set{engine.MaxAttempts: engine.Int(1)}), statuses(503), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, c.policy)
				if c.before != nil {
					c.before(cl)
				}
				body := &trackedBody{Reader: strings.NewReader("payload")}
				resp, err := cl.Transport(c.script, everything).RoundTrip(request(t, t.Context(), http.MethodPut, body))
				if err == nil {
					_ = resp.Body.Close()
				}
				if _, closed := body.state(); closed != 1 {
					t.Fatalf("closed %d times (%v)", closed, err)
				}
			})
		})
	}
}

func TestO_RT_10_bodies_of_failed_attempts_free_their_connection(t *testing.T) {
	kib := strings.Repeat("x", 1024)
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		w.Header().Set("Content-Length", strconv.Itoa(len(kib)))
		if n%3 != 0 {
			w.WriteHeader(503)
		}
		_, _ = io.WriteString(w, kib)
	})
	b := base(t)
	noLeak(t, 2, func() {
		client := &http.Client{Transport: newClient(t, quick).Transport(b, everything)}
		for range 1000 {
			resp, err := client.Get(u.URL)
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != kib {
				t.Fatalf("%d bytes, %v", len(body), err)
			}
			_ = resp.Body.Close()
		}
		if u.sends.Load() != 3000 || u.connections.Load() != 1 {
			t.Fatalf("%d sends on %d connections", u.sends.Load(), u.connections.Load())
		}
		client.CloseIdleConnections()
		u.Config.SetKeepAlivesEnabled(false)
	})
}

func TestO_RT_10_bodies_are_closed_once_and_the_last_is_unread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(answer{status: 503, body: "small"}, answer{status: 503, body: strings.Repeat("x", 100<<10)}, answer{status: 200, body: "done"})
		resp := get(t, newClient(t, p0).Transport(s, everything))
		for i, want := range []int{5, 64 << 10, 0} {
			read, closed := s.bodies[i].state()
			if read != want || closed != min(1, 2-i) {
				t.Fatalf("body %d: read %d, closed %d times", i+1, read, closed)
			}
		}
		_ = resp.Body.Close()
		if _, closed := s.bodies[2].state(); closed != 1 {
			t.Fatalf("closed %d times", closed)
		}
	})
}

func TestBody_that_trickles_does_not_hold_up_the_retry(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 1 {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, "wait for it")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	resp, err := do(t, newClient(t, quick).Transport(base(t), everything), http.MethodGet, u.URL, nil, nil)
	if err != nil || resp.StatusCode != 200 || u.sends.Load() != 2 {
		t.Fatalf("%v, %v after %d sends", resp, err, u.sends.Load())
	}
	_ = resp.Body.Close()
}

func TestBody_beyond_the_bound_is_returned_whole_when_no_retry_follows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		text := strings.Repeat("0123456789", 10<<10)
		s := newScript(answer{status: 503, body: text})
		time.AfterFunc(100*time.Millisecond, func() { put(c, p0, killSwitch(engine.DisableRetries, time.Hour)) })
		resp := get(t, c.Transport(s, everything))
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != text {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
		_ = resp.Body.Close()
		if _, closed := s.bodies[0].state(); closed != 1 || s.count() != 1 {
			t.Fatalf("closed %d times, %d sends", closed, s.count())
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
	for name, observe := range map[string]func(*testing.T) *policyd.Client{
		"by policy": func(t *testing.T) *policyd.Client {
			return newClient(t, with(p0, b0, set{engine.MaxAttempts: engine.Int(5), engine.Observe: engine.Bool(true), engine.TimeoutsAttempt: ms(1)}))
		},
		"by mode": func(t *testing.T) *policyd.Client {
			return newClient(t, with(p0, b0, set{engine.MaxAttempts: engine.Int(5), engine.TimeoutsAttempt: ms(1)}), policyd.WithMode(policyd.Observe))
		},
		"switched off": func(t *testing.T) *policyd.Client {
			return newClient(t, with(p0, b0, set{engine.MaxAttempts: engine.Int(5), engine.TimeoutsAttempt: ms(1)}), policyd.WithMode(policyd.Off))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(answer{status: 503, wait: time.Second})
				rt := observe(t).Transport(s, everything)
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
