// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestNested_attempts_are_marked_in_baggage(t *testing.T) {
	for name, c := range map[string]struct {
		policy set
		had    []string
		want   []string // of the two attempts
	}{
		"off by default":            {nil, nil, []string{"", ""}},
		"marked":                    {set{engine.NestedMark: engine.Bool(true)}, nil, []string{"policyd.attempt=1", "policyd.attempt=2"}},
		"beside what is there":      {set{engine.NestedMark: engine.Bool(true)}, []string{"user=7;x=1, tenant=a"}, []string{"user=7;x=1,tenant=a,policyd.attempt=1", "user=7;x=1,tenant=a,policyd.attempt=2"}},
		"in place of an older mark": {set{engine.NestedMark: engine.Bool(true)}, []string{"policyd.attempt=3,user=7"}, []string{"user=7,policyd.attempt=1", "user=7,policyd.attempt=2"}},
		"no room":                   {set{engine.NestedMark: engine.Bool(true)}, []string{"a=" + strings.Repeat("x", 8180)}, []string{"a=" + strings.Repeat("x", 8180), "a=" + strings.Repeat("x", 8180)}},
		"sent once":                 {set{engine.NestedMark: engine.Bool(true), engine.MaxAttempts: engine.Int(1)}, nil, []string{""}},
		"observed":                  {set{engine.NestedMark: engine.Bool(true), engine.Observe: engine.Bool(true)}, nil, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, with(p0, set{engine.MaxAttempts: engine.Int(2)}, c.policy))
				s := statuses(503)
				req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://upstream.shop/", http.NoBody)
				for _, v := range c.had {
					req.Header.Add("Baggage", v)
				}
				resp, err := cl.Transport(s, everything).RoundTrip(req)
				if err != nil || len(s.seen) != len(c.want) {
					t.Fatalf("%v, %d sends", err, len(s.seen))
				}
				_ = resp.Body.Close()
				for i, sent := range s.seen {
					if got := sent.Header.Get("Baggage"); got != c.want[i] {
						t.Errorf("attempt %d: %q, want %q", i+1, got, c.want[i])
					}
				}
				if got := req.Header.Values("Baggage"); len(got) != len(c.had) || len(got) > 0 && got[0] != c.had[0] {
					t.Errorf("the caller's header is now %q", got)
				}
			})
		})
	}
}

func TestNested_calls_of_unmatched_hosts_are_not_marked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, nil)
		c.Put([]engine.Document{{Scope: engine.Global, Revision: 1, Settings: with(open, set{engine.NestedMark: engine.Bool(true)})}})
		s := statuses(200)
		_ = get(t, c.Transport(s)).Body.Close()
		if got := s.last().Header.Get("Baggage"); got != "" {
			t.Fatal(got)
		}
	})
}

func TestNested_a_host_that_a_service_names_is_marked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, nil)
		c.Put([]engine.Document{
			{Scope: engine.Global, Revision: 1, Settings: with(open, set{engine.NestedMark: engine.Bool(true)})},
			{Scope: "shop/upstream", Revision: 1, Settings: set{engine.MatchHTTPHost: engine.Text("upstream.test")}},
		})
		s := statuses(200)
		_ = get(t, c.Transport(s)).Body.Close()
		if got := s.last().Header.Get("Baggage"); got != "policyd.attempt=1" {
			t.Fatal(got)
		}
	})
}

func TestNested_calls_for_a_marked_request_are_sent_once_where_the_policy_says_so(t *testing.T) {
	single := set{engine.NestedWhenMarked: engine.Enum("single-attempt")}
	for name, c := range map[string]struct {
		policy  set
		baggage string
		sends   int
	}{
		"marked":             {single, "policyd.attempt=1", 1},
		"among others":       {single, "user=7, policyd.attempt = 2 ;p=1", 1},
		"not marked":         {single, "user=7", 5},
		"no baggage":         {single, "", 5},
		"not a number":       {single, "policyd.attempt=x", 5},
		"another name":       {single, "policyd.attempts=2", 5},
		"normal is the rule": {nil, "policyd.attempt=1", 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, with(p0, c.policy))
				s := statuses(503)
				tries := 0
				h := policyd.Incoming(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					req, _ := http.NewRequestWithContext(r.Context(), "GET", "http://upstream.shop/", http.NoBody)
					resp, err := cl.Transport(s, everything).RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					_ = resp.Body.Close()
					_, _ = policyd.Do(r.Context(), ep, func(context.Context) (int, error) { tries++; return 0, down }, policyd.Using(cl))
				}))
				r := httptest.NewRequestWithContext(t.Context(), "GET", "/", http.NoBody)
				if c.baggage != "" {
					r.Header.Set("Baggage", c.baggage)
				}
				h.ServeHTTP(httptest.NewRecorder(), r)
				if s.count() != c.sends || tries != c.sends {
					t.Fatalf("%d sends, %d tries, want %d", s.count(), tries, c.sends)
				}
			})
		})
	}
}

func FuzzWithIncoming(f *testing.F) {
	f.Add("policyd.attempt=2,user=7;x")
	f.Fuzz(func(_ *testing.T, baggage string) {
		policyd.WithIncoming(context.Background(), baggage)
	})
}
