// SPDX-License-Identifier: Apache-2.0

package telemetry_test

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/telemetry"
)

func TestHandler_serves_what_the_parts_count_at_each_scrape(t *testing.T) {
	streams := 1.0
	h := telemetry.Handler(func() []telemetry.Sample {
		return []telemetry.Sample{
			{Name: "policyd_push_streams", Help: "h", Value: streams},
			{Name: "policyd_server_instances", Help: "h", Value: 2, Labels: []telemetry.Label{{"state", "live"}}},
			{Name: "policyd_server_instances", Help: "h", Value: 3, Labels: []telemetry.Label{{"state", "stale"}}},
			{Name: "policyd_server_propagation_seconds", Help: "h", Histogram: &telemetry.Histogram{
				Buckets: map[float64]uint64{0.001: 2, 0.002: 5}, Count: 6, Sum: 0.5,
			}},
			{Name: "policyd_store_relists_total", Help: "h", Value: 4, Counter: true},
		}
	})
	scrape := func() string {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	out := scrape()
	require.Contains(t, out, "policyd_push_streams 1\n")
	require.Contains(t, out, `policyd_server_instances{state="live"} 2`)
	require.Contains(t, out, `policyd_server_instances{state="stale"} 3`)
	require.Contains(t, out, "# TYPE policyd_store_relists_total counter")
	require.Contains(t, out, "# TYPE policyd_server_propagation_seconds histogram")
	require.Contains(t, out, `policyd_server_propagation_seconds_bucket{le="0.002"} 5`)
	require.Contains(t, out, `policyd_server_propagation_seconds_bucket{le="+Inf"} 6`)
	require.Contains(t, out, "policyd_server_propagation_seconds_sum 0.5")
	streams = 7
	require.Contains(t, scrape(), "policyd_push_streams 7\n")
}
