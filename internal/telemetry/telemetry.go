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
	// Label and LabelValue, if set, tell samples of one name apart.
	Label, LabelValue string
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
		if s.Label != "" {
			labels, values = []string{s.Label}, []string{s.LabelValue}
		}
		kind := prometheus.GaugeValue
		if s.Counter {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(s.Name, s.Help, labels, nil), kind, s.Value, values...)
	}
}
