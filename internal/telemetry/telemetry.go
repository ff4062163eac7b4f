// SPDX-License-Identifier: Apache-2.0

// Package telemetry turns the counters of policyd's parts into Prometheus metrics. The parts
// do not know it: they count, it asks when it is scraped.
package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Sample is one value of a metric at the time of a scrape.
type Sample struct {
	Name  string
	Help  string
	Value float64
	// Counter says that the value only grows.
	Counter bool
	// Labels tell samples of one name apart.
	Labels []Label
	// Histogram, if set, is the sample instead of Value.
	Histogram *Histogram
}

// Label of a sample.
type Label struct{ Name, Value string }

// Histogram counts observations.
type Histogram struct {
	// Buckets count the observations up to a bound, all smaller ones included.
	Buckets map[float64]uint64
	Count   uint64
	Sum     float64
}

// Handler serves metrics: those of the process, and what sample returns at each scrape.
func Handler(sample func() []Sample) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collector(sample),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

type collector func() []Sample

// Describe sends nothing: the metrics are known when they are asked for.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c() {
		var labels, values []string
		for _, l := range s.Labels {
			labels, values = append(labels, l.Name), append(values, l.Value)
		}
		desc := prometheus.NewDesc(s.Name, s.Help, labels, nil)
		if h := s.Histogram; h != nil {
			out <- prometheus.MustNewConstHistogram(desc, h.Count, h.Sum, h.Buckets, values...)
			continue
		}
		kind := prometheus.GaugeValue
		if s.Counter {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(desc, kind, s.Value, values...)
	}
}
