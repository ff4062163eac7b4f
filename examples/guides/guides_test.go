// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/examples/guides"
	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// policies returns the first document of a guide.
func policies(t *testing.T, guide string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/guides/" + guide)
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block)
	return string(block[1])
}

// reach is a network on which every host is server.
func reach(t *testing.T, server *httptest.Server) *http.Transport {
	t.Helper()
	t.Cleanup(server.Close)
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}
}

// quick lets retries come without waiting, and often enough to see what multiplies.
const quick = "\n---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: global}, spec: {backoff: {base: 1ms, max: 1ms}, budget: {minRetriesPerSecond: 5, successGate: off}}}\n"

func TestNested_a_marked_request_is_not_multiplied_by_the_next_layer(t *testing.T) {
	attempts := func(document string) int64 {
		var sent atomic.Int64
		stock := reach(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			sent.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		})))
		service := policytest.New(t, document)
		orders := reach(t, httptest.NewServer(guides.Orders(&http.Client{Transport: service.Client().Transport(stock)})))
		front := &http.Client{Transport: policytest.New(t, document).Client().Transport(orders)}
		resp, err := front.Get("http://orders.shop/orders/1")
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		return sent.Load()
	}
	require.Equal(t, int64(9), attempts(quick), "three times three")
	require.Equal(t, int64(3), attempts(policies(t, "nested-retries.md")+quick))
}

func TestObserve_counts_and_changes_nothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, policies(t, "observe-mode-adoption.md"))
		var sent atomic.Int64
		script := policytest.Script(503)
		api := &http.Client{Transport: f.Client().Transport(counting{script, &sent},
			policyd.Route("GET", "/v1/items/{id}", "shop/catalog/items.get"))}
		for range 4 {
			resp, err := api.Get("http://catalog.shop/v1/items/42")
			require.NoError(t, err)
			resp.Body.Close()
		}
		require.Equal(t, int64(4), sent.Load(), "as if policyd was not there")
		require.Equal(t, "shop/catalog/items.get: 4 calls, 2 would be retried, 2 not for lack of budget\n", guides.Watched(f.Client()))
	})
}

type counting struct {
	base http.RoundTripper
	n    *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.base.RoundTrip(r)
}

func TestKeys_an_order_is_charged_once(t *testing.T) {
	var charges guides.Charges
	var sent atomic.Int64
	network := reach(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent.Add(1) < 3 { // the charge is made, its answer gets lost
			charges.ServeHTTP(httptest.NewRecorder(), r)
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
		charges.ServeHTTP(w, r)
	})))
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, policies(t, "idempotency-keys.md"))
		resp, err := guides.Pay(t.Context(), &http.Client{Transport: f.Client().Transport(network)}, "4711", "{}")
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.JSONEq(t, `{"charge": 1}`, string(body))
		require.Equal(t, int64(3), sent.Load())
		require.Equal(t, 1, charges.Made)
	})
}

const catalog = `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/catalog}
spec:
  match: {http: {host: catalog.shop}}
  breaker: {consecutive: {failures: 5, openFor: 30s}}
`

func TestShop_has_a_price_while_the_catalogue_is_away(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // virtual time
		f := policytest.New(t, catalog)
		shop := guides.Shop{HTTP: &http.Client{Transport: f.Client().Transport(policytest.Script(200),
			policyd.Route("GET", "/v1/items/{id}", "shop/catalog/items.get"))}}

		f.OpenBreaker("shop/catalog/items.get", 30*time.Second)
		price, _ := shop.Price(t.Context())
		require.Equal(t, "price on request", price)

		time.Sleep(30 * time.Second) // takes no time
		price, _ = shop.Price(t.Context())
		require.Equal(t, "200 OK", price)
	})
}

func TestShop_under_a_kill_switch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := policytest.New(t, catalog)
		shop := guides.Shop{HTTP: &http.Client{Transport: f.Client().Transport(policytest.Script(503))}}
		f.Switch("disable-retries", "shop", 30*time.Minute)
		f.Disconnect() // policyd is gone: the switch ends on time all the same

		_, _ = shop.Price(t.Context())
		require.Len(t, f.Attempts("catalog.shop"), 1)

		time.Sleep(33 * time.Minute) // with the ramp after it
		_, _ = shop.Price(t.Context())
		require.Len(t, f.Attempts("catalog.shop"), 1+3)
	})
}
