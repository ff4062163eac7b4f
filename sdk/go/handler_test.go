// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func getPage(tb testing.TB, c *policyd.Client, url, accept string) string {
	tb.Helper()
	r := httptest.NewRequest(http.MethodGet, url, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		tb.Fatalf("%s: %d %s", url, w.Code, w.Body)
	}
	return w.Body.String()
}

func TestHandler_shows_people_text_and_programs_JSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		const script = `<img src=x onerror=alert(1)>`
		ks := switchEntry("ks-1", "shop", 2, time.Hour)
		ks.GetKillSwitch().Spec.Reason = script
		shop := policyEntry("shop", 1, &policydv1.PolicySpec{MaxAttempts: proto.Int64(4), Description: proto.String(script)})
		s.next().apply(t, wholeState("e", 2, shop, ks))
		c.Touch("shop/pay/charge")
		c.TouchHost(script)

		html := getPage(t, c, "/debug/policyz?endpoint=shop", "text/html,*/*")
		if strings.Contains(html, "<img") || !strings.Contains(html, "&lt;img src=x") {
			t.Errorf("not escaped:\n%s", html)
		}
		for _, want := range []string{"policyd: live", "ks-1", "INC-1", "shop/pay/charge", "(unmatched)", "maxAttempts", "switch ks-1", "4 (shop)", "built-in"} {
			if !strings.Contains(html, want) {
				t.Errorf("the page lacks %q", want)
			}
		}

		var page struct {
			Status struct {
				State    string
				Revision int64
				Switches []struct{ ID, Reason string }
			}
			Endpoints []struct {
				Endpoint string
				Breaker  string
			}
			Effective struct {
				Values []struct {
					Path  string
					Value any
					From  string
				}
			}
		}
		for _, how := range []string{"/?endpoint=shop/pay/charge&format=json", "/?endpoint=shop/pay/charge"} {
			if err := json.Unmarshal([]byte(getPage(t, c, how, "application/json")), &page); err != nil {
				t.Fatal(err)
			}
		}
		if page.Status.State != "live" || page.Status.Revision != 2 || page.Status.Switches[0].Reason != script || len(page.Endpoints) != 3 {
			t.Errorf("page %+v", page)
		}
		found := false
		for _, v := range page.Effective.Values {
			found = found || v.Path == "backoff.base" && v.Value == "200ms" && v.From == "built-in"
		}
		if !found {
			t.Errorf("no backoff.base among %+v", page.Effective.Values)
		}
	})
}

func TestHandler_guards_its_page(t *testing.T) {
	c := newWatched(t, policyd.WithCacheDir(""))
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(w.Body.String())[1]
	sum := sha256.Sum256([]byte(style))
	policy := w.Header().Get("Content-Security-Policy")
	if !strings.Contains(policy, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("policy %q does not fit the style", policy)
	}
	if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", w.Header())
	}
	w = httptest.NewRecorder()
	c.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", w.Code, w.Header())
	}
}

func TestHandler_shows_the_last_decisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type line struct {
			Endpoint, Code, Text string
			Attempts, Status     int
			Observed             bool
		}
		decisions := func(c *policyd.Client) []line {
			t.Helper()
			var page struct {
				Decisions []line `json:"last_decisions"`
			}
			if err := json.Unmarshal([]byte(getPage(t, c, "/", "application/json")), &page); err != nil {
				t.Fatal(err)
			}
			return page.Decisions
		}
		c := newClient(t, p0)
		if got := decisions(c); len(got) != 0 || !strings.Contains(getPage(t, c, "/", "text/html"), "No call was refused") {
			t.Fatalf("before any call: %+v", got)
		}
		get(t, c.Transport(statuses(503), everything))
		put(c, p0, killSwitch(engine.ForceOpen, time.Hour))
		for range 100 { // more than are kept
			_, _ = c.Transport(statuses(200), everything).RoundTrip(request(t, t.Context(), http.MethodGet, nil))
		}
		got := decisions(c)
		if len(got) != 50 || got[0].Code != "breaker_open" || got[0].Attempts != 0 || !strings.Contains(got[0].Text, "by ks-7f3a (INC-2481") {
			t.Fatalf("%d decisions, the last is %+v", len(got), got[0])
		}
		put(c, with(p0, set{engine.Observe: engine.Bool(true), engine.MaxAttempts: engine.Int(1)}))
		get(t, c.Transport(statuses(503), everything))
		if got := decisions(c)[0]; !got.Observed || got.Code != "attempts_exhausted" || got.Status != 503 || got.Endpoint != ep {
			t.Fatalf("observed: %+v", got)
		}
		if html := getPage(t, c, "/", "text/html"); !strings.Contains(html, "attempts_exhausted after 1 attempt in 0s (observed only)") {
			t.Fatalf("page:\n%s", html)
		}
	})
}
