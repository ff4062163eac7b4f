// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// hostwise opens at the second failure in a row, for each host.
var hostwise = set{
	engine.MaxAttempts: engine.Int(1), engine.BreakerPer: engine.Enum("host"), engine.BreakerEnabled: engine.Bool(true),
	engine.BreakerConsecutiveEnabled: engine.Bool(true), engine.BreakerConsecutiveFailures: engine.Int(2),
	engine.BreakerConsecutiveOpenFor: ms(30_000), engine.BreakerReopenJitter: decimal(0), engine.BreakerRecoverOver: ms(0),
}

// byHost answers 503 for hosts that start with "sick".
type byHost struct{}

func (byHost) RoundTrip(r *http.Request) (*http.Response, error) {
	status := http.StatusOK
	if strings.HasPrefix(strings.ToLower(r.URL.Host), "sick") {
		status = http.StatusServiceUnavailable
	}
	return policytest.Script(status).RoundTrip(r)
}

func TestBreaker_per_host_of_an_endpoint_over_HTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan policyd.BreakerEvent, 10)
		c := newClient(t, hostwise, policyd.WithHooks(policyd.Hooks{OnBreaker: func(e policyd.BreakerEvent) { told <- e }}))
		rt := c.Transport(byHost{}, policyd.NameFunc(func(*http.Request) string { return ep }))
		get := func(url string) error {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			resp, err := rt.RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		for _, url := range []string{"http://sick.shop/a", "http://SICK.shop:80/b"} { // one host
			if err := get(url); err != nil {
				t.Fatal(err)
			}
		}
		var e *policyd.Error
		if err := get("http://sick.shop/"); !errors.As(err, &e) || e.Code != policyd.CodeBreaker || e.Host != "sick.shop" ||
			e.Error() != "policyd: shop/upstream/call: breaker_open for sick.shop, next probe in 30s (rule consecutive: 2 failures)" {
			t.Fatal(err)
		}
		for _, url := range []string{"http://well.shop/", "http://sick.shop:8080/", "http://sick2.shop/"} { // other hosts
			if err := get(url); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := <-told; got.Host != "sick.shop" || got.To != "open" || got.Endpoint != ep || len(told) != 0 {
			t.Errorf("told %+v, and %d more", got, len(told))
		}

		var page struct {
			Endpoints []struct {
				Endpoint, Breaker string
				Hosts             []struct{ Host, Breaker string }
			}
		}
		if err := json.Unmarshal([]byte(getPage(t, c, "/", "application/json")), &page); err != nil {
			t.Fatal(err)
		}
		if p := page.Endpoints[0]; p.Breaker != "open" || len(p.Hosts) != 1 || p.Hosts[0].Host != "sick.shop" || p.Hosts[0].Breaker != "open" {
			t.Errorf("page %+v", p)
		}
		if html := getPage(t, c, "/", "text/html"); !strings.Contains(html, "sick.shop: open until") {
			t.Errorf("page %s", html)
		}
		if s := c.Endpoints()[0]; s.Breaker.State != engine.BreakerOpen || s.Hosts[0].Host != "sick.shop" {
			t.Errorf("%+v", s)
		}

		put(c, hostwise, killSwitch(engine.ForceOpen, time.Minute))
		for _, url := range []string{"http://well.shop/", "http://sick.shop/"} {
			if err := get(url); !errors.As(err, &e) || e.Switch == nil || e.Host != "" {
				t.Errorf("%s under force-open: %v", url, err)
			}
		}
		put(c, hostwise)
		if err := get("http://well.shop/"); err != nil {
			t.Error(err)
		}
		put(c, with(hostwise, set{engine.BreakerPer: engine.Enum("endpoint")}))
		if err := get("http://well.shop/"); !errors.Is(err, policyd.ErrBreakerOpen) {
			t.Errorf("an edit closed an open breaker: %v", err)
		}
	})
}

func TestBreaker_per_host_calls_of_functions_share_one(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, hostwise)
		fail := func() error {
			_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, down }, policyd.Using(c))
			return err
		}
		_, _ = fail(), fail()
		var e *policyd.Error
		if err := fail(); !errors.As(err, &e) || e.Code != policyd.CodeBreaker || e.Host != "" {
			t.Error(err)
		}
	})
}
