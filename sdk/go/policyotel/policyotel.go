// SPDX-License-Identifier: Apache-2.0

// Package policyotel brings what package policyd does to OpenTelemetry: a client span for
// each attempt, events on the caller's span, and metrics. It is a module of its own, so that
// nobody compiles OpenTelemetry in who does not use it.
//
//	client, err := policyd.New(policyotel.Install())
//	api := &http.Client{Transport: policyotel.ClientTransport(client, nil)}
//
// # Spans
//
// [Transport] puts otelhttp around each attempt, so that retries are spans of their own,
// with http.request.resend_count from the second on; their parent is the caller's span. On
// that, Install records an event policyd.retry before each wait and policyd.give_up where
// the policy ended a call. For gRPC, otelgrpc's stats handler makes a span per attempt of a
// policygrpc channel by itself.
//
// # Metrics
//
// Prometheus shows the names with underscores, and _total or _seconds at the end:
//
//	policyd.client.calls               endpoint, result: ok, ok_after_retry, failed, rejected, fallback, cancelled
//	policyd.client.attempts            endpoint, kind: first, retry, hedge; result: ok, failed; of a hedge also cancelled
//	policyd.client.retries.suppressed  endpoint, code
//	policyd.client.retry.delay         endpoint; histogram, seconds
//	policyd.client.budget.tokens       endpoint; retries that the budget allows now
//	policyd.client.breaker.state       endpoint, state; 1 for the state it is in, else 0
//	policyd.client.policy.revision     of the policies in force
//	policyd.client.policy.age          seconds since policyd confirmed them; none before
//	policyd.client.queue.items         endpoint; calls that package policyqueue keeps; none before the first
//
// ok_after_retry ÷ calls is the rescue rate, attempts ÷ calls the amplification. An attempt
// that its caller cut off is in calls as cancelled, and no attempt. Endpoints are those that
// policies or code name; all others are counted together as other. Calls pay nothing for
// metrics: they are read from counts that the client keeps in any case.
package policyotel

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	policyd "github.com/policyd/policyd/sdk/go"
)

const scope = "github.com/policyd/policyd/sdk/go/policyotel"

// Transport is [policyd.Transport] with a client span for each attempt, made by otelhttp
// with the global TracerProvider and propagators at the time. base is the transport that
// sends; nil is http.DefaultTransport. Wrap neither base nor the result in otelhttp again.
// Safe for concurrent use.
func Transport(base http.RoundTripper, opts ...policyd.TransportOption) http.RoundTripper {
	return policyd.Transport(perAttempt(base), opts...)
}

// ClientTransport is [Transport] with the policies of c.
func ClientTransport(c *policyd.Client, base http.RoundTripper, opts ...policyd.TransportOption) http.RoundTripper {
	return c.Transport(perAttempt(base), opts...)
}

func perAttempt(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return attempts{otelhttp.NewTransport(resend{base}), base}
}

// attempts is otelhttp's transport, which keeps idle connections from being closed.
type attempts struct {
	http.RoundTripper
	base http.RoundTripper
}

// CloseIdleConnections closes what base keeps for later, if it can.
func (a attempts) CloseIdleConnections() {
	if base, ok := a.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// resend marks the spans of repeated attempts.
type resend struct{ base http.RoundTripper }

// RoundTrip sends a request within the span of its attempt.
func (r resend) RoundTrip(req *http.Request) (*http.Response, error) {
	if a, ok := policyd.AttemptFrom(req.Context()); ok && a.Number > 1 {
		trace.SpanFromContext(req.Context()).SetAttributes(attribute.Int("http.request.resend_count", a.Number-1))
	}
	return r.base.RoundTrip(req)
}

// Install has a client report metrics to the global MeterProvider and events to the spans of
// callers. The provider may be set up later. Metrics end when the client is no longer used;
// an instrument that cannot be made is told to the global error handler. One option may
// configure several clients: their metrics add up.
func Install() policyd.Option {
	meter := otel.Meter(scope, metric.WithInstrumentationVersion(policyd.Version))
	delay, err := meter.Float64Histogram("policyd.client.retry.delay", metric.WithUnit("s"),
		metric.WithDescription("Waits before retries."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20))
	if err != nil {
		otel.Handle(err)
	}
	return policyd.WithHooks(policyd.Hooks{
		OnClient: func(c *policyd.Client) { observe(meter, c) },
		OnRetry: func(ctx context.Context, e policyd.RetryEvent) {
			if delay != nil {
				delay.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(endpointKey.String(label(e.Endpoint, e.Unmatched))))
			}
			retrying(ctx, &e)
		},
		OnGiveUp: gaveUp,
	})
}

const (
	endpointKey = attribute.Key("endpoint")
	otherName   = "other"
)

// label keeps the number of series bounded.
func label(endpoint string, unmatched bool) string {
	if unmatched {
		return otherName
	}
	return endpoint
}

func retrying(ctx context.Context, e *policyd.RetryEvent) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String("policyd.endpoint", e.Endpoint),
		attribute.Int("policyd.attempt", e.Next.Number),
		attribute.Float64("policyd.wait_ms", float64(e.Wait)/float64(time.Millisecond)),
	}
	if e.Status != 0 {
		attrs = append(attrs, attribute.Int("http.response.status_code", e.Status))
	}
	if e.Cause != nil {
		attrs = append(attrs, attribute.String("policyd.cause", e.Cause.Error()))
	}
	span.AddEvent("policyd.retry", trace.WithAttributes(attrs...))
}

func gaveUp(ctx context.Context, e *policyd.Error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String("policyd.endpoint", e.Endpoint),
		attribute.String("policyd.code", string(e.Code)),
		attribute.Int("policyd.attempts", e.Attempts),
		attribute.String("policyd.scope", e.Scope),
		attribute.Int64("policyd.revision", e.Revision),
	}
	if e.Switch != nil {
		attrs = append(attrs, attribute.String("policyd.switch", e.Switch.ID))
	}
	span.AddEvent("policyd.give_up", trace.WithAttributes(attrs...))
}
