// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// stormy panics for some requests, before or after they were sent.
type stormy struct {
	http.RoundTripper
	n atomic.Int64
}

func (s *stormy) RoundTrip(r *http.Request) (*http.Response, error) {
	switch s.n.Add(1) % 31 {
	case 0:
		panic("before")
	case 1:
		resp, err := s.RoundTripper.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		panic("after")
	}
	return s.RoundTripper.RoundTrip(r)
}

// Callers that panic, leave, forget bodies and get every kind of answer, a thousand at once:
// what they hold comes back.
func TestWire_a_thousand_careless_callers_lose_nothing(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) { careless(t, h2) })
	}
}

func careless(t *testing.T, h2 bool) {
	t.Helper()
	cl := newClient(t, with(quick, set{
		engine.MaxAttempts:        engine.Int(3),
		engine.ConcurrencyEnabled: engine.Bool(true), engine.ConcurrencyLimit: engine.Int(50),
		engine.ConcurrencyQueue: engine.Int(10_000), engine.ConcurrencyWhenFull: engine.Enum("wait"),
		engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.BreakerConsecutiveFailures: engine.Int(100),
		engine.HedgingEnabled: engine.Bool(true), engine.HedgingAfter: ms(1), engine.TimeoutsAttempt: ms(5000),
	}), policyd.WithHooks(policyd.Hooks{
		OnRetry:   func(context.Context, policyd.RetryEvent) { panic("hook") },
		OnBreaker: func(policyd.BreakerEvent) { panic("hook") },
	}))
	noLeak(t, 4, func() {
		var served atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch served.Add(1) % 7 {
			case 0:
				w.WriteHeader(503)
			case 1:
				panic(http.ErrAbortHandler)
			case 2:
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(503)
				_, _ = w.Write(make([]byte, 100<<10))
			default:
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = w.Write(make([]byte, 10<<10))
			}
		}))
		base := &http.Transport{MaxIdleConnsPerHost: 100, Protocols: new(http.Protocols)}
		base.Protocols.SetHTTP1(!h2)
		base.Protocols.SetUnencryptedHTTP2(h2)
		server.Config.Protocols = base.Protocols
		server.Start()
		defer server.Close()
		rt := cl.Transport(&stormy{RoundTripper: base}, everything)
		all, end := context.WithCancel(t.Context())
		defer end()
		var callers sync.WaitGroup
		for i := range 1000 {
			callers.Go(func() {
				defer func() { _ = recover() }()
				ctx, cancel := context.WithCancel(all)
				if i%11 == 0 {
					go cancel()
				}
				body := io.Reader(strings.NewReader("payload"))
				if i%3 == 0 {
					body = struct{ io.Reader }{body}
				}
				req, _ := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, body)
				resp, err := rt.RoundTrip(req)
				switch {
				case err != nil:
					cancel()
				case i%13 == 0: // forgets it
					context.AfterFunc(all, cancel)
				default:
					if i%2 == 0 {
						_, _ = io.Copy(io.Discard, resp.Body)
					}
					_ = resp.Body.Close()
					cancel()
				}
			})
		}
		callers.Wait()
		if s := cl.Stats(ep); s.Concurrency.Running != 0 || s.Concurrency.Waiting != 0 || s.Budget.Used > int64(s.Attempts()) {
			t.Errorf("%+v", s)
		}
		end()
		base.CloseIdleConnections()
		server.CloseClientConnections()
	})
}
