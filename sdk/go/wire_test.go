// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// protocols runs a test over HTTP/1.1 and over HTTP/2, both with a time limit per attempt,
// which gives attempts a context of their own, and without.
func protocols(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, client *http.Client, url string)) {
	t.Helper()
	for _, h2 := range []bool{false, true} {
		for _, limit := range []set{nil, {engine.TimeoutsAttempt: ms(60_000)}} {
			name := "HTTP/1.1"
			if h2 {
				name = "HTTP/2"
			}
			if limit != nil {
				name += " with a time limit"
			}
			t.Run(name, func(t *testing.T) {
				server := httptest.NewUnstartedServer(handler)
				server.EnableHTTP2 = h2
				server.StartTLS()
				t.Cleanup(server.Close)
				client := server.Client()
				client.Transport = newClient(t, with(quick, limit)).Transport(client.Transport, everything)
				t.Cleanup(client.CloseIdleConnections)
				noLeak(t, 30, func() { test(t, client, server.URL) })
			})
		}
	}
}

func TestWire_retries_with_a_body(t *testing.T) {
	payload := strings.Repeat("payload ", 10<<10)
	var n atomic.Int64
	protocols(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != payload {
			t.Errorf("%d bytes, %v", len(body), err)
		}
		if n.Add(1)%3 != 0 {
			w.WriteHeader(503)
		}
		_, _ = io.WriteString(w, r.Proto)
	}, func(t *testing.T, client *http.Client, url string) {
		for _, body := range []io.Reader{strings.NewReader(payload), struct{ io.Reader }{strings.NewReader(payload)}} {
			resp, err := do(t, client.Transport, http.MethodPut, url, body, nil)
			if err != nil || resp.StatusCode != 200 || outcome(t, resp).Attempts != 3 {
				t.Fatal(resp, err)
			}
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != resp.Proto || resp.Body.Close() != nil {
				t.Fatalf("%q, %v", got, err)
			}
		}
	})
}

func TestWire_an_answer_before_the_body_is_read(t *testing.T) {
	// The server refuses without reading; the second attempt must still have all of it.
	payload := strings.Repeat("payload ", 100<<10)
	var n atomic.Int64
	protocols(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 1 {
			w.WriteHeader(503)
			return
		}
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != payload {
			t.Errorf("%d bytes, %v", len(body), err)
		}
	}, func(t *testing.T, client *http.Client, url string) {
		resp, err := do(t, client.Transport, http.MethodPut, url, struct{ io.Reader }{strings.NewReader(payload)}, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
	})
}

func TestWire_streams_both_ways(t *testing.T) {
	protocols(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			_, _ = fmt.Fprintf(w, "echo %s\n", lines.Text())
			_ = http.NewResponseController(w).Flush()
		}
	}, func(t *testing.T, client *http.Client, url string) {
		r, w := io.Pipe()
		defer func() { _ = w.Close() }()
		go func() { _, _ = io.WriteString(w, "one\n") }()
		resp, err := do(t, client.Transport, http.MethodPut, url, r, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for _, next := range []string{"two", "three", ""} {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), "echo ") {
				t.Fatalf("%q, %v", lines.Text(), lines.Err())
			}
			if next != "" {
				_, _ = io.WriteString(w, next+"\n")
			}
		}
	})
}

func TestWire_informational_responses_trailers_and_continue(t *testing.T) {
	var n atomic.Int64
	protocols(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		body, _ := io.ReadAll(r.Body) // sends 100 Continue
		if string(body) != "expected" {
			t.Errorf("body %q", body)
		}
		w.Header().Set("Trailer", "X-Sum")
		if n.Add(1)%2 == 1 {
			w.WriteHeader(503)
		}
		_, _ = io.WriteString(w, "text")
		w.Header().Set("X-Sum", "4")
	}, func(t *testing.T, client *http.Client, url string) {
		var hints, continues atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				if code == http.StatusEarlyHints {
					hints.Add(1)
				}
				return nil
			},
			Got100Continue: func() { continues.Add(1) },
		})
		req, _ := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("expected"))
		req.Header.Set("Expect", "100-continue")
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "text" || resp.Body.Close() != nil {
			t.Fatalf("%q, %v", text, err)
		}
		if resp.Trailer.Get("X-Sum") != "4" || hints.Load() != 2 || resp.ProtoMajor == 1 && continues.Load() != 2 {
			t.Fatalf("trailer %v, %d hints, %d continues", resp.Trailer, hints.Load(), continues.Load())
		}
	})
}

func TestWire_switching_protocols(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.WriteHeader(503)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})
	rt := newClient(t, with(quick, set{engine.TimeoutsAttempt: ms(60_000)})).Transport(base(t), everything)
	resp, err := do(t, rt, http.MethodGet, u.URL, nil, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}})
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("the body of 101 is a %T", resp.Body)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if o := outcome(t, resp); o.Attempts != 2 {
		t.Fatalf("%+v", o)
	}
}

func TestWire_a_slow_body_outlives_the_time_limit_of_its_attempt(t *testing.T) {
	release := make(chan struct{})
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		_, _ = io.WriteString(w, "start ")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, "end")
	})
	rt := newClient(t, with(quick, set{engine.TimeoutsAttempt: ms(300)})).Transport(base(t), everything)
	resp, err := do(t, rt, http.MethodGet, u.URL, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	expired := time.NewTimer(400 * time.Millisecond)
	<-expired.C
	close(release)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "start end" || resp.Body.Close() != nil {
		t.Fatalf("%q, %v", body, err)
	}
}

func TestWire_an_attempt_that_hangs_is_cut_and_repeated(t *testing.T) {
	var n atomic.Int64
	protocolsWith := with(quick, set{engine.TimeoutsAttempt: ms(200)})
	for _, h2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if n.Add(1)%2 == 1 {
				<-r.Context().Done()
			}
		}))
		server.EnableHTTP2 = h2
		server.StartTLS()
		client := server.Client()
		client.Transport = newClient(t, protocolsWith).Transport(client.Transport, everything)
		resp, err := do(t, client.Transport, http.MethodGet, server.URL, nil, nil)
		if err != nil || resp.StatusCode != 200 || outcome(t, resp).Attempts != 2 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		server.Close()
	}
}

func TestWire_how_real_failures_are_sorted(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	closing := listen(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); _ = conn.Close() })
	half := listen(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nServer: half\r\n")
		_ = conn.Close()
	})
	garbage := listen(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_, _ = io.WriteString(conn, "SSH-2.0\r\n\r\n")
		_ = conn.Close()
	})
	silent := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })

	for _, c := range []struct {
		name, url string
		post      bool
		attempts  int64
	}{
		{"nobody listens", "http://" + dead.Addr().String(), false, 5},
		{"nobody listens, unsafe", "http://" + dead.Addr().String(), true, 5},
		{"the server hangs up", "http://" + closing, false, 5},
		{"the server hangs up, unsafe", "http://" + closing, true, 1},
		{"the server hangs up in the header", "http://" + half, false, 5},
		{"not HTTP", "http://" + garbage, false, 1},
		{"a certificate nobody trusts", secure.URL, false, 1},
		{"TLS to a plain server", strings.Replace(plain.URL, "http:", "https:", 1), false, 1},
		{"no TLS handshake", "https://" + silent, true, 5},
		{"an unknown scheme", "gopher://" + closing, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newClient(t, quick)
			b := base(t)
			if c.name == "no TLS handshake" {
				b.TLSHandshakeTimeout = 20 * time.Millisecond
			}
			b.DisableKeepAlives = true
			method := http.MethodGet
			if c.post {
				method = http.MethodPost
			}
			_, err := do(t, cl.Transport(b, everything), method, c.url, nil, nil)
			if got := int64(cl.Stats(ep).Attempts()); err == nil || got != c.attempts {
				t.Fatalf("%d attempts, want %d: %v", got, c.attempts, err)
			}
		})
	}
}

// listen serves connections one by one with f.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			wg.Go(func() { f(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// h2Frame is an HTTP/2 frame as bytes.
func h2Frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	n := len(payload)
	head := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}
	return append(head, payload...)
}

func TestWire_HTTP2_streams_that_fail(t *testing.T) {
	const settings, rst, goaway = 4, 3, 7
	for _, c := range []struct {
		name     string
		frame    func(stream uint32) []byte
		post     bool
		attempts uint64
	}{
		{"reset by an internal error", func(s uint32) []byte { return h2Frame(rst, 0, s, 0, 0, 0, 2) }, false, 5},
		{"reset by an internal error, unsafe", func(s uint32) []byte { return h2Frame(rst, 0, s, 0, 0, 0, 2) }, true, 1},
		{"GOAWAY with an error", func(uint32) []byte { return h2Frame(goaway, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 2) }, false, 5},
		{"GOAWAY with an error, unsafe", func(uint32) []byte { return h2Frame(goaway, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 2) }, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := listen(t, func(conn net.Conn) {
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, 24)); err != nil { // preface
					return
				}
				_, _ = conn.Write(h2Frame(settings, 0, 0))
				head := make([]byte, 9)
				for {
					if _, err := io.ReadFull(conn, head); err != nil {
						return
					}
					if _, err := io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
						return
					}
					if head[3] == 1 { // HEADERS
						_, _ = conn.Write(c.frame(uint32(head[5])<<24 | uint32(head[6])<<16 | uint32(head[7])<<8 | uint32(head[8])))
						if c.frame(1)[3] == goaway {
							return
						}
					}
				}
			})
			b := base(t)
			b.Protocols = new(http.Protocols)
			b.Protocols.SetUnencryptedHTTP2(true)
			cl := newClient(t, quick)
			method := http.MethodGet
			if c.post {
				method = http.MethodPost
			}
			_, err := do(t, cl.Transport(b, everything), method, "http://"+addr, nil, nil)
			if got := cl.Stats(ep).Attempts(); err == nil || got != c.attempts {
				t.Fatalf("%d attempts, want %d: %v", got, c.attempts, err)
			}
		})
	}
}

func TestWire_cancelled_calls_leave_nothing(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "overloaded")
	})
	// Every other call is cancelled while it waits for its retry, the rest as they start.
	type cancelKey struct{}
	c := newClient(t, with(p0, set{engine.BackoffBase: ms(3_600_000), engine.BackoffMax: ms(3_600_000), engine.TimeoutsAttempt: ms(60_000)}),
		policyd.WithHooks(policyd.Hooks{OnRetry: func(ctx context.Context, _ policyd.RetryEvent) {
			ctx.Value(cancelKey{}).(context.CancelCauseFunc)(errBoom)
		}}))
	b := base(t)
	noLeak(t, 4, func() {
		client := &http.Client{Transport: c.Transport(b, everything)}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				ctx = context.WithValue(ctx, cancelKey{}, cancel)
				if i%2 == 0 {
					go cancel(errBoom)
				}
				req, _ := http.NewRequestWithContext(policyd.WithCall(ctx), http.MethodPut, u.URL, bytes.NewReader([]byte("x")))
				resp, err := client.Do(req)
				if err == nil {
					_ = resp.Body.Close()
					t.Error("a cancelled call was answered")
				} else if !errors.Is(err, errBoom) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		client.CloseIdleConnections()
		u.CloseClientConnections()
	})
}

func TestWire_leaked_bodies_hold_up_nobody(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n%2 == 1 {
			w.WriteHeader(503)
		}
		_, _ = w.Write(make([]byte, 256<<10))
	})
	client := &http.Client{Transport: newClient(t, quick).Transport(base(t), everything)}
	for range 20 {
		resp, err := client.Get(u.URL) // its body is never closed
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
	}
	u.CloseClientConnections()
}

func TestWire_client_timeout_of_net_http_still_works(t *testing.T) {
	hang := make(chan struct{})
	u := serve(t, func(http.ResponseWriter, *http.Request, int) { <-hang })
	defer close(hang)
	client := &http.Client{Transport: newClient(t, quick).Transport(base(t), everything), Timeout: 50 * time.Millisecond}
	_, err := client.Get(u.URL)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || u.sends.Load() != 1 {
		t.Fatalf("%v after %d sends", err, u.sends.Load())
	}
}

func TestWire_TLS_state_is_there(t *testing.T) {
	protocols(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, client *http.Client, url string) {
		resp, err := client.Get(url)
		if err != nil || resp.TLS == nil || resp.TLS.Version < tls.VersionTLS12 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
	})
}
