// SPDX-License-Identifier: Apache-2.0

package policyotel

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// series is a count of an endpoint and how it is labelled.
type series struct {
	of    func(*policyd.EndpointStats) uint64
	attrs []attribute.KeyValue
}

func result(word string, of func(*policyd.EndpointStats) uint64) series {
	return series{of, []attribute.KeyValue{attribute.String("result", word)}}
}

func attempt(kind, word string, of func(*policyd.EndpointStats) uint64) series {
	return series{of, []attribute.KeyValue{attribute.String("kind", kind), attribute.String("result", word)}}
}

// callSeries add up to all calls that have ended.
func callSeries() []series {
	return []series{
		result("ok", func(s *policyd.EndpointStats) uint64 { return s.OK }),
		result("ok_after_retry", func(s *policyd.EndpointStats) uint64 { return s.Rescued }),
		result("failed", func(s *policyd.EndpointStats) uint64 { return less(s.Failed, s.Fallbacks) }),
		result("rejected", func(s *policyd.EndpointStats) uint64 { return less(s.Rejected, s.RejectedFallbacks) }),
		result("fallback", func(s *policyd.EndpointStats) uint64 { return s.Fallbacks + s.RejectedFallbacks }),
		result("cancelled", func(s *policyd.EndpointStats) uint64 { return s.Cancelled }),
	}
}

func attemptSeries() []series {
	return []series{
		attempt("first", "ok", func(s *policyd.EndpointStats) uint64 { return less(s.OK, s.Hedged.Answered-s.Hedged.Rescued) }),
		attempt("first", "failed", func(s *policyd.EndpointStats) uint64 { return s.FirstFailed }),
		attempt("retry", "ok", func(s *policyd.EndpointStats) uint64 { return less(s.Rescued, s.Hedged.Rescued) }),
		attempt("retry", "failed", func(s *policyd.EndpointStats) uint64 { return s.RetriesFailed }),
		attempt("hedge", "ok", func(s *policyd.EndpointStats) uint64 { return s.Hedged.Answered }),
		attempt("hedge", "failed", func(s *policyd.EndpointStats) uint64 { return s.Hedged.Failed }),
		attempt("hedge", "cancelled", func(s *policyd.EndpointStats) uint64 { return s.Hedged.Lost }),
	}
}

func less(n, some uint64) uint64 { return n - min(n, some) }

func suppressedSeries() []series {
	var all []series
	for _, code := range engine.Codes() {
		all = append(all, series{
			func(s *policyd.EndpointStats) uint64 { return s.Suppressed(policyd.Code(code)) },
			[]attribute.KeyValue{attribute.String("code", string(code))},
		})
	}
	return all
}

// counter is an instrument and the counts that it shows.
type counter struct {
	instrument metric.Int64ObservableCounter
	series     []series
	// by label and series; grows only, though endpoints may go and come
	totals map[string][]uint64
}

// seen is what an endpoint had counted at the last collection.
type seen struct {
	calls  uint64
	counts [][]uint64 // by counter and series
}

// observer reads one client. Collections may run at once, for several readers.
type observer struct {
	client weak.Pointer[policyd.Client]

	mu       sync.Mutex
	counters []*counter
	before   map[string]seen // by endpoint
	queued   map[string]bool // labels that have had calls in a queue

	tokens, state, revision, items metric.Int64ObservableGauge
	age                            metric.Float64ObservableGauge
}

// observe registers the metrics of a client until nobody holds it any more.
func observe(meter metric.Meter, c *policyd.Client) {
	o := &observer{client: weak.Make(c), before: map[string]seen{}, queued: map[string]bool{}}
	var errs []error
	check := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	add := func(name, unit, description string, all []series) {
		i, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		check(err)
		o.counters = append(o.counters, &counter{i, all, map[string][]uint64{}})
	}
	add("policyd.client.calls", "{call}", "Calls that have ended.", callSeries())
	add("policyd.client.attempts", "{attempt}", "Attempts that have ended; calls have one or more.", attemptSeries())
	add("policyd.client.retries.suppressed", "{retry}", "Retries that were not made, by what prevented them.", suppressedSeries())
	var err error
	o.tokens, err = meter.Int64ObservableGauge("policyd.client.budget.tokens", metric.WithUnit("{retry}"),
		metric.WithDescription("Retries that the budget allows now."))
	check(err)
	o.state, err = meter.Int64ObservableGauge("policyd.client.breaker.state",
		metric.WithDescription("1 for the state that a breaker is in, else 0."))
	check(err)
	o.revision, err = meter.Int64ObservableGauge("policyd.client.policy.revision",
		metric.WithDescription("Revision of the policies in force."))
	check(err)
	o.age, err = meter.Float64ObservableGauge("policyd.client.policy.age", metric.WithUnit("s"),
		metric.WithDescription("Time since policyd confirmed the policies in force."))
	check(err)
	o.items, err = meter.Int64ObservableGauge("policyd.client.queue.items", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that wait in queues of package policyqueue to be sent later."))
	check(err)
	instruments := []metric.Observable{o.tokens, o.state, o.revision, o.items, o.age}
	for _, c := range o.counters {
		instruments = append(instruments, c.instrument)
	}
	registration, err := meter.RegisterCallback(o.collect, instruments...)
	if check(err); len(errs) > 0 {
		otel.Handle(errors.Join(errs...))
	}
	if registration != nil {
		runtime.AddCleanup(c, func(r metric.Registration) {
			if err := r.Unregister(); err != nil {
				otel.Handle(err)
			}
		}, registration)
	}
}

// collect observes everything at one moment.
func (o *observer) collect(_ context.Context, to metric.Observer) error {
	c := o.client.Value()
	if c == nil {
		return nil
	}
	all := c.Endpoints()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count(all)
	for _, c := range o.counters {
		c.observe(to)
	}
	for i := range all {
		if e := &all[i]; !e.Unmatched {
			o.endpoint(to, e)
		}
	}
	o.queues(to, all)
	status := c.Status()
	to.ObserveInt64(o.revision, status.Revision)
	if !status.AsOf.IsZero() {
		to.ObserveFloat64(o.age, max(0, time.Since(status.AsOf).Seconds()))
	}
	return nil
}

// count adds what happened since the last collection.
func (o *observer) count(all []policyd.EndpointStats) {
	now := make(map[string]seen, len(all))
	for i := range all {
		e := &all[i]
		name := label(e.Endpoint, e.Unmatched)
		key := e.Endpoint
		if e.Unmatched {
			key = "host " + key // a name is another endpoint
		}
		before := o.before[key]
		if e.Calls < before.calls { // it was gone and started anew
			before = seen{}
		}
		counts := make([][]uint64, len(o.counters))
		for j, c := range o.counters {
			counts[j] = c.read(e)
			var last []uint64
			if before.counts != nil {
				last = before.counts[j]
			}
			c.add(name, counts[j], last)
		}
		now[key] = seen{e.Calls, counts}
	}
	o.before = now
}

func (c *counter) read(s *policyd.EndpointStats) []uint64 {
	counts := make([]uint64, len(c.series))
	for i := range c.series {
		counts[i] = c.series[i].of(s)
	}
	return counts
}

// add adds the growth of counts. One that is lower than it was, as a call moves from failed
// to fallback, grows again from where it was.
func (c *counter) add(name string, counts, before []uint64) {
	total := c.totals[name]
	if total == nil {
		total = make([]uint64, len(c.series))
		c.totals[name] = total
	}
	for i, n := range counts {
		if before != nil {
			counts[i] = max(n, before[i])
			n = counts[i] - before[i]
		}
		total[i] += n
	}
}

// observe shows the totals; what never happened has no series.
func (c *counter) observe(to metric.Observer) {
	for name, total := range c.totals {
		for i, n := range total {
			if n > 0 {
				attrs := append([]attribute.KeyValue{endpointKey.String(name)}, c.series[i].attrs...)
				to.ObserveInt64(c.instrument, int64(n), metric.WithAttributes(attrs...))
			}
		}
	}
}

// endpoint shows the state of a named endpoint.
func (o *observer) endpoint(to metric.Observer, e *policyd.EndpointStats) {
	name := endpointKey.String(e.Endpoint)
	to.ObserveInt64(o.tokens, e.Budget.Left, metric.WithAttributes(name))
	for s := engine.BreakerClosed; s <= engine.BreakerForcedClosed; s++ {
		var in int64
		if e.Breaker.State == s {
			in = 1
		}
		to.ObserveInt64(o.state, in, metric.WithAttributes(name, attribute.String("state", s.String())))
	}
}

// queues shows how many calls are kept; an endpoint that never had one has no series.
func (o *observer) queues(to metric.Observer, all []policyd.EndpointStats) {
	items := map[string]int64{}
	for i := range all {
		name := label(all[i].Endpoint, all[i].Unmatched)
		items[name] += int64(all[i].Queued)
		if all[i].Queued > 0 {
			o.queued[name] = true
		}
	}
	for name := range o.queued {
		to.ObserveInt64(o.items, items[name], metric.WithAttributes(endpointKey.String(name)))
	}
}
