// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// panickyBody panics where a test wants it.
type panickyBody struct {
	io.Reader
	read, close bool
	closed      atomic.Int64
}

func (p *panickyBody) Read(b []byte) (int, error) {
	if p.read {
		panic("read")
	}
	return p.Reader.Read(b)
}

func (p *panickyBody) Close() error {
	if p.closed.Add(1); p.close {
		panic("close")
	}
	return nil
}

// alone lets one call at a time through, so that a slot that is lost stops the next.
var alone = set{engine.ConcurrencyEnabled: engine.Bool(true), engine.ConcurrencyLimit: engine.Int(1)}

func TestTransport_a_panic_of_anything_of_the_applications_gives_everything_back(t *testing.T) {
	for name, c := range map[string]struct {
		options  []policyd.TransportOption
		hooks    policyd.Hooks
		base     func(*http.Request) (*http.Response, error)
		response *panickyBody
		getBody  func() (io.ReadCloser, error)
		passes   bool // the call goes on
	}{
		"the base": {base: func(*http.Request) (*http.Response, error) { panic("base") }},
		"the base, after the body was read": {base: func(r *http.Request) (*http.Response, error) {
			_, _ = io.ReadAll(r.Body)
			panic("base")
		}},
		"NameFunc":               {options: []policyd.TransportOption{policyd.NameFunc(func(*http.Request) string { panic("name") })}},
		"GetBody":                {getBody: func() (io.ReadCloser, error) { panic("body") }},
		"OnRetry":                {hooks: policyd.Hooks{OnRetry: func(context.Context, policyd.RetryEvent) { panic("hook") }}, passes: true},
		"OnGiveUp":               {hooks: policyd.Hooks{OnGiveUp: func(context.Context, *policyd.Error) { panic("hook") }}, passes: true},
		"a response that reads":  {response: &panickyBody{Reader: strings.NewReader("x"), read: true}},
		"a response that closes": {response: &panickyBody{Reader: strings.NewReader("x"), close: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, with(quick, alone), policyd.WithHooks(c.hooks))
				base := c.base
				if base == nil {
					base = func(r *http.Request) (*http.Response, error) {
						_ = r.Body.Close()
						var body io.ReadCloser = http.NoBody
						if c.response != nil {
							body = c.response
						}
						return &http.Response{StatusCode: 503, Header: http.Header{}, Body: body}, nil
					}
				}
				options := c.options
				if options == nil {
					options = []policyd.TransportOption{everything}
				}
				body := &trackedBody{Reader: strings.NewReader("payload")}
				req := request(t, t.Context(), http.MethodPut, body)
				req.GetBody = c.getBody
				panicked := func() (p any) {
					defer func() { p = recover() }()
					resp, err := cl.Transport(roundTripFunc(base), options...).RoundTrip(req)
					if err == nil {
						_ = resp.Body.Close()
					}
					return nil
				}()
				if (panicked == nil) != c.passes {
					t.Fatalf("panic %v", panicked)
				}
				if _, closed := body.state(); closed == 0 {
					t.Error("the request's body is open")
				}
				if c.response != nil && c.response.closed.Load() == 0 {
					t.Error("the response's body is open")
				}
				resp, err := cl.Transport(statuses(200), everything).RoundTrip(request(t, t.Context(), http.MethodGet, nil))
				if err != nil || resp.StatusCode != 200 {
					t.Fatal("the next call: ", resp, err)
				}
				_ = resp.Body.Close()
				s := cl.Stats(ep)
				if s.Concurrency.Running != 0 || s.Budget.Used > int64(s.Retries) {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// The probe of a breaker is not lost to a panic wherever it happens.
func TestTransport_a_panic_in_a_probe_frees_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newClient(t, with(p0, set{
			engine.MaxAttempts: engine.Int(1), engine.BreakerConsecutiveEnabled: engine.Bool(true),
			engine.BreakerConsecutiveFailures: engine.Int(1), engine.BreakerConsecutiveOpenFor: ms(1000),
		}))
		fails := true
		rt := cl.Transport(roundTripFunc(func(*http.Request) (*http.Response, error) {
			if fails {
				panic("boom")
			}
			return &http.Response{StatusCode: 204, Header: http.Header{}, Body: http.NoBody}, nil
		}), everything)
		call := func() (err error) {
			defer func() { _ = recover() }()
			resp, err := rt.RoundTrip(request(t, t.Context(), http.MethodGet, nil))
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		for range 4 { // one opens it, the others are failed probes
			if err := call(); err != nil {
				t.Fatal(err)
			}
			if err := call(); !errors.Is(err, policyd.ErrBreakerOpen) {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		fails = false
		for range 3 {
			if err := call(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestTransport_responses_without_a_body_are_as_net_http_made_them(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if r.URL.Query().Get("fails") != "" && n%2 == 1 {
			w.WriteHeader(503)
			return
		}
		switch {
		case r.Method == http.MethodHead:
			w.Header().Set("Content-Length", "5000")
		case r.URL.Path == "/204":
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/304":
			w.WriteHeader(http.StatusNotModified)
		case r.URL.Path == "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(gzipped("text"))
		default:
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, r.Host+" "+r.Header.Get("X-Big"))
		}
	})
	plain := base(t)
	limited := newClient(t, with(quick, set{engine.TimeoutsAttempt: ms(60_000)})).Transport(plain, everything)
	for name, c := range map[string]struct {
		method, path string
		body         io.Reader
	}{
		"HEAD": {http.MethodHead, "/", nil}, "204": {http.MethodGet, "/204", nil}, "304": {http.MethodGet, "/304", nil},
		"gzip": {http.MethodGet, "/gzip", nil}, "a length not known": {http.MethodGet, "/", nil},
		"NoBody": {http.MethodPut, "/", http.NoBody},
	} {
		for _, fails := range []string{"", "?fails=1"} {
			t.Run(name+fails, func(t *testing.T) {
				ask := func(rt http.RoundTripper, query string) (*http.Response, string) {
					req, _ := http.NewRequestWithContext(t.Context(), c.method, u.URL+c.path+query, c.body)
					req.Host = "other.shop"
					req.Header.Set("X-Big", strings.Repeat("x", 100<<10))
					resp, err := rt.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					text, err := io.ReadAll(resp.Body)
					if err != nil || resp.Body.Close() != nil {
						t.Fatal(err)
					}
					return resp, string(text)
				}
				want, text := ask(plain, "")
				u.sends.Store(0)
				got, gotText := ask(limited, fails)
				if got.StatusCode != want.StatusCode || got.ContentLength != want.ContentLength || got.Uncompressed != want.Uncompressed || gotText != text {
					t.Fatalf("status %d, length %d, uncompressed %v, text of %d; want %d, %d, %v, %d", got.StatusCode, got.ContentLength, got.Uncompressed,
						len(gotText), want.StatusCode, want.ContentLength, want.Uncompressed, len(text))
				}
			})
		}
	}
	if n := u.connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// The server decides by the headers; the body is still the caller's to send again.
func TestTransport_a_refused_expectation_sends_no_body(t *testing.T) {
	for _, status := range []int{http.StatusExpectationFailed, http.StatusForbidden, http.StatusServiceUnavailable} {
		u := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(status) })
		b := base(t)
		b.ExpectContinueTimeout = time.Minute
		cl := newClient(t, quick)
		body := &trackedBody{Reader: strings.NewReader("payload")}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, u.URL, body)
		req.ContentLength = 7
		req.Header.Set("Expect", "100-continue")
		resp, err := cl.Transport(b, everything).RoundTrip(req)
		if err != nil || resp.StatusCode != status {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		sends := int64(1)
		if status == http.StatusServiceUnavailable {
			sends = 5
		}
		await(t, func() bool { _, closed := body.state(); return closed == 1 })
		if read, _ := body.state(); read != 0 || u.sends.Load() != sends {
			t.Errorf("%d: %d bytes read, %d sends", status, read, u.sends.Load())
		}
	}
}

func TestTransport_a_caller_that_leaves_while_it_reads_gets_the_reason(t *testing.T) {
	protocols(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "start")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, func(t *testing.T, client *http.Client, url string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		resp, err := client.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		_ = resp.Body.Close()
	})
}

func gzipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.Bytes()
}

// await returns once cond holds.
func await(tb testing.TB, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			tb.Fatal("it does not happen")
		}
	}
}
