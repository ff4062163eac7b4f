// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestO_RT_08_bodies_are_replayed_whole_or_not_at_all(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 1663)
	type seen struct {
		body   string
		length int64
	}
	serveBodies := func(t *testing.T, got *[]seen) *upstream {
		t.Helper()
		return serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			b, _ := io.ReadAll(r.Body)
			*got = append(*got, seen{string(b), r.ContentLength})
			if n < 3 {
				w.WriteHeader(503)
			}
			_, _ = fmt.Fprintf(w, "answer %d", n)
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

func TestBody_that_cannot_be_had_again_after_all_is_counted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		s := statuses(503)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://upstream.shop/", strings.NewReader("body"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		resp, err := c.Transport(s, everything).RoundTrip(req)
		if err != nil || resp.StatusCode != 503 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		if o := outcome(t, resp); o.Code != policyd.CodeBody || o.Attempts != 1 {
			t.Errorf("%+v", o)
		}
		if s := c.Stats(ep); s.Suppressed(engine.CodeBody) != 1 || s.Failed != 1 || s.Retries != 0 || s.Budget.Used != 0 {
			t.Errorf("%+v", s)
		}
	})
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

// pipes is a network without kernel and wall time, so that a busy machine is no slow server.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	dials  atomic.Int64
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.dials.Add(1)
	p.accept <- server
	return client, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func TestO_RT_10_bodies_of_failed_attempts_free_their_connection(t *testing.T) {
	kib := strings.Repeat("x", 1024)
	synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
		var sends atomic.Int64
		network := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(kib)))
			if sends.Add(1)%3 != 0 {
				w.WriteHeader(503)
			}
			_, _ = io.WriteString(w, kib)
		})}
		go func() { _ = server.Serve(network) }()
		client := &http.Client{Transport: newClient(t, quick).Transport(&http.Transport{DialContext: network.dial}, everything)}
		for range 1000 {
			resp, err := client.Get("http://upstream.test/")
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != kib {
				t.Fatalf("%d bytes, %v", len(body), err)
			}
			_ = resp.Body.Close()
		}
		if sends.Load() != 3000 || network.dials.Load() != 1 {
			t.Errorf("%d sends on %d connections", sends.Load(), network.dials.Load())
		}
		client.CloseIdleConnections()
		_ = server.Close()
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

func TestBody_that_trickles_is_returned_whole_when_no_retry_follows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, p0)
		began := time.Now()
		rt := roundTrip(func(req *http.Request) (*http.Response, error) {
			r, w := io.Pipe()
			go func() {
				_, _ = io.WriteString(w, "wait ")
				time.Sleep(time.Second)
				_, _ = io.WriteString(w, "for ")
				time.Sleep(time.Second)
				_, _ = io.WriteString(w, "it")
				_ = w.Close()
			}()
			return &http.Response{StatusCode: 503, Request: req, Header: http.Header{}, Body: r}, nil
		})
		time.AfterFunc(300*time.Millisecond, func() { put(c, p0, killSwitch(engine.DisableRetries, time.Hour)) })
		resp := get(t, c.Transport(rt, everything))
		first := make([]byte, 10)
		if n, err := resp.Body.Read(first); string(first[:n]) != "wait " || err != nil || time.Since(began) > time.Second {
			t.Fatalf("%q, %v after %v", first[:n], err, time.Since(began))
		}
		if rest, err := io.ReadAll(resp.Body); string(rest) != "for it" || err != nil {
			t.Fatalf("%q, %v", rest, err)
		}
		if err := resp.Body.Close(); err != nil || outcome(t, resp).Attempts != 1 {
			t.Fatal(err, outcome(t, resp))
		}
	})
}

func TestBody_that_panics_does_so_where_it_is_waited_for(t *testing.T) {
	c := newClient(t, p0)
	rt := roundTrip(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Request: req, Header: http.Header{}, Body: io.NopCloser(panicReader{})}, nil
	})
	defer func() {
		if p := recover(); p != "no body" {
			t.Fatalf("%v", p)
		}
		if s := c.Stats(ep); s.Calls != 1 {
			t.Fatalf("%+v", s)
		}
	}()
	_ = get(t, c.Transport(rt, everything)).Body.Close()
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("no body") }
