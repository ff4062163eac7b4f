// SPDX-License-Identifier: Apache-2.0

package policyotel_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policyotel"
	"github.com/policyd/policyd/sdk/go/policyqueue"
)

// quick waits no longer than it must.
const quick = `{"apiVersion": "policyd/v1", "kind": "RetryPolicy", "metadata": {"scope": "global", "revision": 7},
"spec": {"backoff": {"base": "1ms", "max": "1ms"}, "breaker": {"consecutive": {"failures": 50, "openFor": "10s"}}}}`

// newClient returns a client that reports to what is global now.
func newClient(t *testing.T, opts ...policyd.Option) *policyd.Client {
	t.Helper()
	return newClientOf(t, quick, opts...)
}

func newClientOf(t *testing.T, policies string, opts ...policyd.Option) *policyd.Client {
	t.Helper()
	file := t.TempDir() + "/policies.json"
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := policyd.New(append(opts, policyd.WithPolicyFile(file), policyd.WithCacheDir(""))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

// meter makes a reader global for one test.
func meter(t *testing.T, reader sdkmetric.Reader) {
	t.Helper()
	before := otel.GetMeterProvider()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	otel.SetMeterProvider(provider)
	t.Cleanup(func() {
		otel.SetMeterProvider(before)
		_ = provider.Shutdown(context.WithoutCancel(t.Context()))
	})
}

// tracer records the spans of one test.
func tracer(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	before := otel.GetTracerProvider()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	otel.SetTracerProvider(provider)
	t.Cleanup(func() {
		otel.SetTracerProvider(before)
		_ = provider.Shutdown(context.WithoutCancel(t.Context()))
	})
	return recorder
}

// backend fails the first n requests.
func backend(t *testing.T, n int64) *httptest.Server {
	t.Helper()
	var served atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Add(1) <= n {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func get(ctx context.Context, t *testing.T, rt http.RoundTripper, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

func TestTransport_has_a_span_per_attempt_below_the_callers(t *testing.T) {
	recorder := tracer(t)
	c := newClient(t, policyotel.Install())
	s := backend(t, 2)
	rt := policyotel.ClientTransport(c, nil, policyd.Route("GET", "/", "shop/catalog/items.get"))
	ctx, caller := otel.Tracer("test").Start(t.Context(), "caller")
	if code := get(ctx, t, rt, s.URL); code != http.StatusOK {
		t.Fatal(code)
	}
	caller.End()
	spans := recorder.Ended()
	if len(spans) != 4 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, span := range spans[:3] {
		if span.SpanKind() != trace.SpanKindClient || span.Parent().SpanID() != caller.SpanContext().SpanID() {
			t.Errorf("span %d: %s below %s", i, span.SpanKind(), span.Parent().SpanID())
		}
		set := attribute.NewSet(span.Attributes()...)
		count, ok := set.Value("http.request.resend_count")
		if ok != (i > 0) || ok && count.AsInt64() != int64(i) {
			t.Errorf("span %d: resend count %v", i, count.AsInt64())
		}
	}
	var events []string
	for _, e := range spans[3].Events() {
		events = append(events, e.Name)
	}
	if got := strings.Join(events, " "); got != "policyd.retry policyd.retry" {
		t.Errorf("events %q", got)
	}
}

func TestInstall_tells_the_callers_span_why_the_policy_gave_up(t *testing.T) {
	recorder := tracer(t)
	c := newClient(t, policyotel.Install())
	ctx, caller := otel.Tracer("test").Start(t.Context(), "caller")
	_, err := policyd.Do(ctx, "fx/rates/get", func(context.Context) (int, error) {
		return 0, policyd.Retryable(errors.New("down"))
	}, policyd.Using(c))
	caller.End()
	if !errors.Is(err, policyd.ErrAttempts) {
		t.Fatal(err)
	}
	events := recorder.Ended()[0].Events()
	last := events[len(events)-1]
	set := attribute.NewSet(last.Attributes...)
	code, _ := set.Value("policyd.code")
	attempts, _ := set.Value("policyd.attempts")
	if last.Name != "policyd.give_up" || code.AsString() != "attempts_exhausted" || attempts.AsInt64() != 3 {
		t.Fatalf("%s %v", last.Name, last.Attributes)
	}
}

func TestTransport_closes_idle_connections_of_its_base(t *testing.T) {
	closed := false
	client := &http.Client{Transport: policyotel.ClientTransport(newClient(t), idle{&closed})}
	client.CloseIdleConnections()
	if !closed {
		t.Fatal("not closed")
	}
}

type idle struct{ closed *bool }

func (idle) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("unused") }
func (i idle) CloseIdleConnections()                         { *i.closed = true }

// sums collects a reader's counters and gauges as name{labels}.
func sums(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	add := func(name string, points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			got[name+"{"+p.Attributes.Encoded(attribute.DefaultEncoder())+"}"] = p.Value
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				if !data.IsMonotonic {
					t.Errorf("%s may fall", m.Name)
				}
				add(m.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(m.Name, data.DataPoints)
			}
		}
	}
	return got
}

func TestInstall_counts_calls_attempts_and_reasons(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	meter(t, reader)
	c := newClient(t, policyotel.Install())
	const ep = "shop/stock/items.count" // of this test alone
	rt := policyotel.ClientTransport(c, nil, policyd.Route("GET", "/items", ep))
	s := backend(t, 1)
	get(t.Context(), t, rt, s.URL+"/items") // cured by a retry
	get(t.Context(), t, rt, s.URL+"/items")
	get(t.Context(), t, rt, s.URL+"/elsewhere")
	before := sums(t, reader)
	down := backend(t, 1000)
	get(t.Context(), t, rt, down.URL+"/items") // fails: the budget holds one more retry
	_ = sums(t, reader)                        // collections in between change nothing
	got := sums(t, reader)
	for key, want := range map[string]int64{
		"policyd.client.calls{endpoint=" + ep + ",result=ok}":                          1,
		"policyd.client.calls{endpoint=" + ep + ",result=ok_after_retry}":              1,
		"policyd.client.calls{endpoint=" + ep + ",result=failed}":                      1,
		"policyd.client.calls{endpoint=other,result=ok}":                               1,
		"policyd.client.attempts{endpoint=" + ep + ",kind=first,result=ok}":            1,
		"policyd.client.attempts{endpoint=" + ep + ",kind=first,result=failed}":        2,
		"policyd.client.attempts{endpoint=" + ep + ",kind=retry,result=ok}":            1,
		"policyd.client.attempts{endpoint=" + ep + ",kind=retry,result=failed}":        1,
		"policyd.client.retries.suppressed{code=budget_exhausted,endpoint=" + ep + "}": 1,
		"policyd.client.budget.tokens{endpoint=" + ep + "}":                            0,
		"policyd.client.breaker.state{endpoint=" + ep + ",state=closed}":               1,
		"policyd.client.breaker.state{endpoint=" + ep + ",state=open}":                 0,
		"policyd.client.policy.revision{}":                                             c.Status().Revision,
	} {
		if n, ok := got[key]; !ok || n != want {
			t.Errorf("%s is %d (%v), want %d", key, n, ok, want)
		}
	}
	for key, n := range before {
		if strings.Contains(key, "calls{") && got[key] < n {
			t.Errorf("%s fell from %d to %d", key, n, got[key])
		}
	}
	for key := range got {
		if strings.Contains(key, "127.0.0.1") {
			t.Errorf("a host is a label: %s", key)
		}
	}
}

// slowUnlessHedged holds each request but hedges until it is cancelled.
type slowUnlessHedged struct{}

func (slowUnlessHedged) RoundTrip(r *http.Request) (*http.Response, error) {
	if a, _ := policyd.AttemptFrom(r.Context()); !a.Hedge {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func TestInstall_counts_hedges_and_fallbacks(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	meter(t, reader)
	c := newClientOf(t, `{"apiVersion": "policyd/v1", "kind": "RetryPolicy", "metadata": {"scope": "global"},
"spec": {"hedging": {"after": "1ms"}, "maxAttempts": 2, "budget": {"minRetriesPerSecond": 5}, "fallback": {"mode": "static", "static": {"status": 200, "body": "kept"}}}}`,
		policyotel.Install())
	const hedged, failing = "shop/hedged/items.get", "shop/failing/items.get"
	get(t.Context(), t, policyotel.ClientTransport(c, slowUnlessHedged{}, policyd.Route("GET", "/", hedged)), "http://catalog.shop/")
	down := backend(t, 1000)
	if code := get(t.Context(), t, policyotel.ClientTransport(c, nil, policyd.Route("GET", "/", failing), policyd.StaticFallback()), down.URL); code != http.StatusOK {
		t.Fatal(code)
	}
	_ = sums(t, reader)
	broken := func(context.Context) (int, error) { return 0, policyd.Retryable(errors.New("down")) }
	v, err := policyd.DoOr(t.Context(), failing, broken, func(_ context.Context, gaveUp *policyd.Error) (int, error) {
		_ = sums(t, reader) // between the failure and its fallback
		return 42, nil
	}, policyd.Using(c))
	if v != 42 || err != nil {
		t.Fatal(v, err)
	}
	_, err = policyd.DoOr(t.Context(), failing, broken, func(_ context.Context, gaveUp *policyd.Error) (int, error) { return 0, gaveUp }, policyd.Using(c))
	if err == nil {
		t.Fatal("no error")
	}
	got := sums(t, reader)
	for key, want := range map[string]int64{
		"policyd.client.calls{endpoint=" + hedged + ",result=ok}":                      1,
		"policyd.client.attempts{endpoint=" + hedged + ",kind=hedge,result=ok}":        1,
		"policyd.client.attempts{endpoint=" + hedged + ",kind=first,result=ok}":        0,
		"policyd.client.attempts{endpoint=" + hedged + ",kind=hedge,result=cancelled}": 0,
		"policyd.client.calls{endpoint=" + failing + ",result=fallback}":               2,
		"policyd.client.calls{endpoint=" + failing + ",result=failed}":                 1,
	} {
		if n := got[key]; n != want {
			t.Errorf("%s is %d, want %d", key, n, want)
		}
	}
}

// Names and labels are those that dashboards and alerts rely on.
func TestInstall_works_through_Prometheus(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	meter(t, exporter)
	c := newClientOf(t, `{"apiVersion": "policyd/v1", "kind": "RetryPolicy", "metadata": {"scope": "global"}, "spec": {
"maxAttempts": 2, "backoff": {"base": "1ms", "max": "1ms"}, "hedging": {"after": "1ms"}, "budget": {"minRetriesPerSecond": 5},
"idempotency": {"key": {"enabled": true, "auto": true}}, "offlineQueue": {"enabled": true}}}`, policyotel.Install())
	rt := policyotel.ClientTransport(c, slowUnlessHedged{}, policyd.Route("GET", "/", "shop/hedged/items.get"))
	get(t.Context(), t, rt, "http://catalog.shop/")
	broken := func(context.Context) (int, error) { return 0, policyd.Retryable(errors.New("down")) }
	if _, err := policyd.DoOr(t.Context(), "shop/failing/items.get", broken,
		func(context.Context, *policyd.Error) (int, error) { return 42, nil }, policyd.Using(c)); err != nil {
		t.Fatal(err)
	}
	q, err := policyqueue.Open(policyqueue.Config{
		Dir: t.TempDir(), Client: c,
		Senders: map[string]policyqueue.Sender{"shop/notes/add": func(context.Context, []byte) error { return policyd.NotSent(errors.New("down")) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close(context.WithoutCancel(t.Context())) }()
	err = q.Do(t.Context(), "shop/notes/add", []byte("milk"), policyd.IdempotencyKey("k"))
	if !errors.Is(err, policyd.ErrQueued) {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName() + "{"
			for i, l := range m.GetLabel() {
				if i > 0 {
					name += ","
				}
				name += l.GetName() + "=" + l.GetValue()
			}
			got[name+"}"] = true
		}
	}
	for _, want := range []string{
		"policyd_client_calls_total{endpoint=shop/hedged/items.get,result=ok}",
		"policyd_client_calls_total{endpoint=shop/failing/items.get,result=fallback}",
		"policyd_client_calls_total{endpoint=shop/notes/add,result=failed}",
		"policyd_client_attempts_total{endpoint=shop/hedged/items.get,kind=hedge,result=ok}",
		"policyd_client_attempts_total{endpoint=shop/failing/items.get,kind=first,result=failed}",
		"policyd_client_attempts_total{endpoint=shop/failing/items.get,kind=retry,result=failed}",
		"policyd_client_retries_suppressed_total{code=attempts_exhausted,endpoint=shop/failing/items.get}",
		"policyd_client_retry_delay_seconds{endpoint=shop/failing/items.get}",
		"policyd_client_budget_tokens{endpoint=shop/failing/items.get}",
		"policyd_client_breaker_state{endpoint=shop/failing/items.get,state=closed}",
		"policyd_client_breaker_state{endpoint=shop/failing/items.get,state=half-open}",
		"policyd_client_breaker_state{endpoint=shop/failing/items.get,state=open}",
		"policyd_client_breaker_state{endpoint=shop/failing/items.get,state=forced-open}",
		"policyd_client_breaker_state{endpoint=shop/failing/items.get,state=forced-closed}",
		"policyd_client_policy_revision{}",
		"policyd_client_queue_items{endpoint=shop/notes/add}",
	} {
		if !got[want] {
			t.Errorf("%s is missing among %v", want, got)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "policyd_client_queue_items") && !strings.Contains(name, "shop/notes/add") {
			t.Errorf("%s, though it never had a queue", name)
		}
	}
}

func TestInstall_metrics_end_with_their_client(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	meter(t, reader)
	func() {
		c, err := policyd.New(policyotel.Install(), policyd.WithCacheDir(""))
		if err != nil {
			t.Fatal(err)
		}
		if got := sums(t, reader); len(got) == 0 {
			t.Fatal("no metrics of a live client")
		}
		runtime.KeepAlive(c)
	}()
	deadline := time.Now().Add(10 * time.Second)
	for len(sums(t, reader)) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("a client that nobody holds is still observed")
		}
		runtime.GC()
	}
}

func BenchmarkInstall_on_a_call(b *testing.B) {
	ok := func(context.Context) (int, error) { return 1, nil }
	for name, opts := range map[string][]policyd.Option{"without": nil, "with metrics": {policyotel.Install()}} {
		b.Run(name, func(b *testing.B) {
			c, err := policyd.New(append(opts, policyd.WithCacheDir(""))...)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close(context.Background()) }()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := policyd.Do(b.Context(), "shop/catalog/items.get", ok, policyd.Using(c)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	base := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	})
	c, err := policyd.New(policyotel.Install(), policyd.WithCacheDir(""))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	for name, rt := range map[string]http.RoundTripper{"transport": c.Transport(base), "transport with spans": policyotel.ClientTransport(c, base)} {
		b.Run(name, func(b *testing.B) {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://catalog.shop/", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
