// SPDX-License-Identifier: Apache-2.0

package policyqueue_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policyqueue"
	"github.com/policyd/policyd/sdk/go/policytest"
)

const endpoint = "shop/notes/save"

// edit replaces parts of the policy.
func edit(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(notes) }

func always(status int) func(int) (int, http.Header) {
	return func(int) (int, http.Header) { return status, nil }
}

func TestKeep_for_reasons_that_pass(t *testing.T) {
	for name, c := range map[string]struct {
		yaml     string
		prepare  func(f *fixture)
		attempts int
		cause    string
	}{
		"the service cannot be reached": {notes, func(f *fixture) { f.s.cut(true) }, 2, "network is unreachable"},
		"each attempt fails":            {notes, func(f *fixture) { f.s.answers(always(503)) }, 2, "503 Service Unavailable"},
		"the breaker is open":           {notes + "  breaker: {consecutive: {failures: 5}}\n", func(f *fixture) { f.fake.OpenBreaker(endpoint, time.Hour) }, 0, ""},
		"it is forced open":             {notes, func(f *fixture) { f.fake.Switch("force-open", endpoint, time.Hour) }, 0, ""},
		"retries are switched off": {notes, func(f *fixture) {
			f.fake.Switch("disable-retries", "shop", time.Hour)
			f.s.answers(always(503))
		}, 1, "503"},
		"the budget is spent": {edit("minRetriesPerSecond: 5", "minRetriesPerSecond: 0, ratio: 0"), func(f *fixture) { f.s.cut(true) }, 1, "network"},
		"the service wants a long pause": {notes, func(f *fixture) {
			f.s.answers(func(int) (int, http.Header) { return 503, http.Header{"Retry-After": {"3600"}} })
		}, 1, "503"},
		"the wait would take too long": {notes + "  timeouts: {overall: 1ms}\n", func(f *fixture) { f.s.answers(always(503)) }, 1, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, c.yaml)
				c.prepare(f)
				_, err := f.post("a note")
				var e *policyd.Error
				if !errors.As(err, &e) || e.Code != policyd.CodeQueued || e.QueueID == "" || e.Endpoint != endpoint || e.Attempts != c.attempts {
					t.Fatalf("error %#v", err)
				}
				if text := e.Error(); !strings.Contains(text, "queued as "+e.QueueID) || !strings.Contains(text, c.cause) {
					t.Errorf("text %q", text)
				}
				if e.Temporary() || errors.Is(err, policyd.ErrQueueFull) {
					t.Error("it says that another try may help")
				}
				items := f.Items()
				if len(items) != 1 || items[0].ID != e.QueueID || items[0].Attempts != c.attempts || items[0].Endpoint != endpoint ||
					items[0].ExpiresAt.Sub(items[0].QueuedAt) != 12*time.Hour {
					t.Fatalf("items %+v", items)
				}
				for _, st := range f.fake.Client().Endpoints() {
					if st.Endpoint == endpoint && st.Queued != 1 {
						t.Errorf("queued %d", st.Queued)
					}
				}
			})
		})
	}
}

func TestKeep_not_for_an_answer_or_without_being_asked(t *testing.T) {
	plain := func(f *fixture) (int, error) { return f.post("a note") }
	for name, c := range map[string]struct {
		yaml string
		call func(f *fixture) (int, error)
		log  string
	}{
		"a refusal of the request":     {notes, func(f *fixture) (int, error) { f.s.answers(always(400)); f.s.cut(false); return f.post("x") }, ""},
		"an error that is not retried": {notes, func(f *fixture) (int, error) { f.s.answers(always(500)); f.s.cut(false); return f.post("x") }, ""},
		"a key used twice":             {notes, func(f *fixture) (int, error) { f.s.answers(always(422)); f.s.cut(false); return f.post("x") }, ""},
		"a call that does not ask":     {notes, func(f *fixture) (int, error) { return post(context.Background(), f.t, f.Transport(), "x") }, ""},
		"a policy without queue":       {edit("enabled: true, maxItems", "enabled: false, maxItems"), plain, ""},
		"an observed policy":           {notes + "  observe: true\n", plain, ""},
		"a call without a key":         {edit("auto: true", "auto: false"), plain, "no idempotency key"},
		"a caller that has gone": {notes, func(f *fixture) (int, error) {
			ctx, cancel := context.WithCancel(policyqueue.Keep(context.Background()))
			f.s.answers(func(int) (int, http.Header) { cancel(); return 503, nil })
			f.s.cut(false)
			return post(ctx, f.t, f.Transport(), "x")
		}, ""},
		"one attempt, as the caller wants": {notes, func(f *fixture) (int, error) {
			return post(policyd.WithCall(policyqueue.Keep(context.Background()), policyd.WithoutRetry()), f.t, f.Transport(), "x")
		}, ""},
		"a call within another one": {notes, func(f *fixture) (int, error) {
			return policyd.Do(context.Background(), "shop/a/b", func(ctx context.Context) (int, error) {
				return post(policyqueue.Keep(ctx), f.t, f.Transport(), "x")
			}, policyd.Using(f.fake.Client()), policyd.Idempotent(false))
		}, ""},
		"an unknown header":           {notes, with(func(r *http.Request) { r.Header.Set("X-Tenant", "7") }), "X-Tenant may be a credential"},
		"a token in a header":         {notes, with(func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }), "Authorization may be a credential"},
		"a token in the URL":          {notes, with(func(r *http.Request) { r.URL.RawQuery = "access_token=x" }), "its URL has a credential: access_token"},
		"a signature there":           {notes, with(func(r *http.Request) { r.URL.RawQuery = "a=1&X-Amz-Signature=x" }), "its URL has a credential"},
		"a query that cannot be read": {notes, with(func(r *http.Request) { r.URL.RawQuery = "a=1;token=x" }), "its query cannot be read"},
		"trailers":                    {notes, with(func(r *http.Request) { r.Trailer = http.Header{"X": nil} }), "more than a request"},
		"a body that is too long": {notes, with(func(r *http.Request) {
			r.Body, r.GetBody, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 2000))), nil, -1
		}), "longer than Config.MaxBody"},
		"a body that is said to be too long": {notes, with(func(r *http.Request) {
			body := strings.NewReader(strings.Repeat("x", 2000))
			r.Body, r.GetBody, r.ContentLength = io.NopCloser(body), func() (io.ReadCloser, error) { return io.NopCloser(body), nil }, 2000
		}), "longer than Config.MaxBody"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, c.yaml, func(cfg *policyqueue.Config) { cfg.MaxBody = 1000 })
				f.s.cut(true)
				status, err := c.call(f)
				if errors.Is(err, policyd.ErrQueued) || f.Len() > 0 {
					t.Fatalf("kept: status %d, %v", status, err)
				}
				if status == 0 && err == nil {
					t.Error("neither an answer nor an error")
				}
				if !strings.Contains(f.log.String(), c.log) || c.log == "" && strings.Contains(f.log.String(), "WARN") {
					t.Errorf("log:\n%s", f.log)
				}
			})
		})
	}
}

// with changes a request that may be kept.
func with(change func(*http.Request)) func(f *fixture) (int, error) {
	return func(f *fixture) (int, error) {
		req, err := http.NewRequestWithContext(policyqueue.Keep(context.Background()), http.MethodPost, "http://notes.test/notes", strings.NewReader("x"))
		if err != nil {
			return 0, err
		}
		change(req)
		resp, err := (&http.Client{Transport: f.Transport()}).Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
}

func TestKeep_stores_the_request_but_no_credential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes, func(cfg *policyqueue.Config) {
			cfg.Headers = []string{"x-tenant"}
			cfg.Authorize = func(req *http.Request) error {
				req.Header.Set("Authorization", "Bearer fresh")
				return nil
			}
		})
		f.s.cut(true)
		_, err := with(func(r *http.Request) {
			r.URL.RawQuery, r.URL.Fragment = "sort=a&x=%20", "part"
			r.Host = "notes.internal"
			for name, value := range map[string]string{
				"Authorization": "Bearer s3cret", "Cookie": "sid=s3cret", "X-Api-Key": "s3cret", "X-Tenant": "seven",
				"Content-Type": "text/markdown", "Traceparent": "00-old-trace-01", "Idempotency-Key": `"order-7"`,
			} {
				r.Header.Set(name, value)
			}
		})(f)
		if !errors.Is(err, policyd.ErrQueued) {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(f.cfg.Dir, "*"))
		if err != nil || len(files) != 2 {
			t.Fatalf("files %v, %v", files, err)
		}
		for _, path := range files {
			if data, err := os.ReadFile(path); err != nil || bytes.Contains(data, []byte("s3cret")) || bytes.Contains(data, []byte("sid")) {
				t.Fatalf("%s: %s, %v", path, data, err)
			}
		}
		f.s.cut(false)
		f.drained()
		got := f.s.received()
		if len(got) != 1 || got[0].auth != "Bearer fresh" || got[0].url != "http://notes.test/notes?sort=a&x=%20" || got[0].host != "notes.internal" {
			t.Fatalf("received %+v", got)
		}
		h := got[0].header
		if h.Get("X-Tenant") != "seven" || h.Get("Content-Type") != "text/markdown" || h.Get("Idempotency-Key") != `"order-7"` || h.Get("Traceparent") != "" || h.Get("X-Api-Key") != "" {
			t.Errorf("header %v", h)
		}
		if s := f.told.list(); len(s) != 1 || s[0].Key != "order-7" {
			t.Errorf("told %+v", s)
		}
	})
}

func TestKeep_leaves_the_request_and_its_body_as_a_transport_must(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes, func(cfg *policyqueue.Config) { cfg.MaxBody = 10 })
		for _, size := range []int{3, 10, 11, 5000} {
			for _, length := range []int64{-1, int64(size)} {
				text := strings.Repeat("y", size)
				body := &closing{Reader: strings.NewReader(text)}
				req, err := http.NewRequestWithContext(policyqueue.Keep(t.Context()), http.MethodPost, "http://notes.test/notes", body)
				if err != nil {
					t.Fatal(err)
				}
				req.ContentLength = length
				before := *req
				resp, err := f.Transport().RoundTrip(req)
				if err != nil || resp.StatusCode != 200 || resp.Body.Close() != nil {
					t.Fatalf("%v, %v", resp, err)
				}
				if got := f.bodies(); got[len(got)-1] != text || !body.closed {
					t.Errorf("%d bytes of %d arrived; closed: %v", len(got[len(got)-1]), size, body.closed)
				}
				if req.Body != before.Body || req.ContentLength != before.ContentLength || len(req.Header) > 0 || req.GetBody != nil {
					t.Error("the request was changed")
				}
			}
		}
		if len(f.s.received()[0].key) != 36 {
			t.Error("no key")
		}
		boom := errors.New("boom")
		broken := &closing{Reader: io.MultiReader(strings.NewReader("x"), failing{boom})}
		req, _ := http.NewRequestWithContext(policyqueue.Keep(t.Context()), http.MethodPost, "http://notes.test/notes", broken)
		if _, err := f.Transport().RoundTrip(req); !errors.Is(err, boom) || !broken.closed {
			t.Errorf("error %v, closed %v", err, broken.closed)
		}
	})
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestKeep_calls_join_those_that_wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, notes)
		f.s.cut(true)
		f.keep("1")
		f.s.cut(false)
		f.keep("2") // though the service is back: it must not overtake
		if len(f.s.received()) > 0 {
			t.Fatal("overtaken")
		}
		if status, err := post(t.Context(), t, f.Transport(), "urgent"); status != 200 || err != nil {
			t.Fatalf("a call that does not ask: %d, %v", status, err)
		}
		f.drained()
		if status, err := f.post("3"); status != 200 || err != nil {
			t.Fatalf("status %d, %v", status, err)
		}
		if got := f.bodies(); !slices.Equal(got, []string{"urgent", "1", "2", "3"}) {
			t.Errorf("received %v", got)
		}
	})
}

// Calls keep coming faster than the budget lets repeats out: the queue still gets empty, and
// the load is that of the calls and the budget.
func TestKeep_a_queue_that_calls_keep_joining_gets_empty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, edit("minRetriesPerSecond: 5", "minRetriesPerSecond: 1, ratio: 0"))
		f.s.cut(true)
		for range 30 {
			f.keep("old")
		}
		f.s.cut(false)
		joined := 0
		for i := 0; f.Len() > 0 && i < 1000; i++ {
			if _, err := f.post("new"); errors.Is(err, policyd.ErrQueued) {
				joined++
			}
			time.Sleep(200 * time.Millisecond)
		}
		if f.Len() > 0 || joined < 100 {
			t.Fatalf("%d are left after %d joined", f.Len(), joined)
		}
		// 5 calls a second, and 10 retries in 10 s.
		got := f.s.received()
		for i := 65; i < len(got); i++ {
			if d := got[i].at.Sub(got[i-65].at); d < 9*time.Second {
				t.Fatalf("65 sends in %s", d)
			}
		}
	})
}

func TestKeep_full_queues_say_so(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, edit("maxItems: 1000", "maxItems: 2"), func(cfg *policyqueue.Config) { cfg.MaxBytes = 3 * 4096 })
		f.fake.Apply(`
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/notes/delete}
spec:
  match: {http: {method: DELETE, host: notes.test}}
  idempotency: {key: {auto: true}}
  offlineQueue: {enabled: true}
`)
		f.s.cut(true)
		f.keep("1", "2")
		_, err := f.post("3")
		var e *policyd.Error
		if !errors.Is(err, policyd.ErrQueueFull) || !errors.As(err, &e) || e.QueueID != "" || !strings.Contains(err.Error(), "as its policy allows") {
			t.Errorf("error %v", err)
		}
		del := with(func(r *http.Request) { r.Method, r.URL.Path = "DELETE", "/" })
		if _, err := del(f); !errors.Is(err, policyd.ErrQueued) {
			t.Fatal(err)
		}
		if _, err := del(f); !errors.Is(err, policyd.ErrQueueFull) || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("error %v", err)
		}
	})
}

func TestDo_keeps_payloads_for_the_sender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		fails := errors.New("no route")
		answer := policyd.NotSent(fails)
		f := newFixture(t, notes, func(cfg *policyqueue.Config) {
			cfg.Senders = map[string]policyqueue.Sender{endpoint: func(ctx context.Context, payload []byte) error {
				a, _ := policyd.AttemptFrom(ctx)
				if answer == nil {
					sent = append(sent, string(payload)+" "+a.IdempotencyKey)
				}
				return answer
			}}
		})
		if err := f.Do(t.Context(), "shop/other/x", nil); err == nil || !strings.Contains(err.Error(), `has none for "shop/other/x"`) {
			t.Errorf("error %v", err)
		}
		for _, key := range []string{"a", "b"} {
			err := f.Do(t.Context(), endpoint, []byte("payload "+key), policyd.IdempotencyKey(key))
			if !errors.Is(err, policyd.ErrQueued) || key == "a" && !errors.Is(err, fails) {
				t.Fatalf("error %v", err)
			}
		}
		answer = nil
		f.drained()
		if err := f.Do(t.Context(), endpoint, []byte("payload c"), policyd.IdempotencyKey("c")); err != nil {
			t.Fatal(err)
		}
		if want := []string{"payload a a", "payload b b", "payload c c"}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
		answer = policyd.Permanent(fails)
		if err := f.Do(t.Context(), endpoint, nil); !errors.Is(err, fails) || f.Len() > 0 {
			t.Errorf("error %v", err)
		}
	})
}

func TestOpen_names_what_is_wrong(t *testing.T) {
	client := policytest.New(t, "").Client()
	if _, err := policyqueue.Open(policyqueue.Config{Client: client}); err == nil || !strings.Contains(err.Error(), "Config.Dir is empty") {
		t.Errorf("error %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := policyqueue.Open(policyqueue.Config{Dir: filepath.Join(file, "x"), Client: client}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("error %v", err)
	}
	dir := t.TempDir()
	q, err := policyqueue.Open(policyqueue.Config{Dir: dir, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policyqueue.Open(policyqueue.Config{Dir: dir, Client: client}); err == nil || !strings.Contains(err.Error(), "another queue has it open") {
		t.Errorf("error %v", err)
	}
	if err := q.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(t.Context()); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}
