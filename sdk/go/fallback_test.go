// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

var down = policyd.Retryable(errBoom)

func cached(age time.Duration) set {
	return with(p0, set{engine.FallbackMode: engine.Enum("cached"), engine.FallbackCachedMaxAge: engine.Duration(age)})
}

func TestFallback_the_error_tells_what_the_policy_advises(t *testing.T) {
	for name, c := range map[string]struct {
		policy set
		want   policyd.Fallback
		runs   bool
	}{
		"no policy":  {nil, policyd.Fallback{Mode: policyd.FallbackNone}, true},
		"none":       {set{engine.FallbackMode: engine.Enum("none")}, policyd.Fallback{Mode: policyd.FallbackNone}, true},
		"cached":     {cached(time.Minute), policyd.Fallback{Mode: policyd.FallbackCached, MaxAge: time.Minute}, true},
		"fail-fast":  {set{engine.FallbackMode: engine.Enum("fail-fast")}, policyd.Fallback{Mode: policyd.FallbackFailFast}, false},
		"static":     {set{engine.FallbackMode: engine.Enum("static"), engine.FallbackStaticBody: engine.Text("{}")}, policyd.Fallback{Mode: policyd.FallbackStatic, Status: 503, Body: "{}"}, true},
		"a mode off": {with(cached(time.Minute), set{engine.FallbackMode: engine.Enum("none")}), policyd.Fallback{Mode: policyd.FallbackNone}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, c.policy)
				_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, down }, policyd.Using(cl))
				var e *policyd.Error
				if !errors.As(err, &e) || e.Fallback() != c.want {
					t.Fatalf("%v advises %+v", err, e.Fallback())
				}
				ran := false
				_, err = policyd.DoOr(t.Context(), ep, func(context.Context) (int, error) { return 0, down },
					func(_ context.Context, e *policyd.Error) (int, error) {
						ran = e.Fallback() == c.want
						return 7, nil
					}, policyd.Using(cl))
				if ran != c.runs || (err == nil) != c.runs {
					t.Fatalf("ran %v, %v", ran, err)
				}
			})
		})
	}
	if f := (&policyd.Error{}).Fallback(); f.Mode != policyd.FallbackNone {
		t.Fatalf("%+v", f)
	}
}

func TestLastGood_returns_the_kept_value_while_the_policy_advises_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, cached(time.Minute))
		l := policyd.NewLastGood[string](10 * time.Minute)
		do := func(key, v string, fail error) (string, time.Duration, error) {
			return l.Do(t.Context(), ep, key, func(context.Context) (string, error) { return v, fail }, policyd.Using(c))
		}
		check := func(v string, age time.Duration, err error) func(string, time.Duration, bool) {
			return func(want string, wantAge time.Duration, ok bool) {
				t.Helper()
				if ok != (err == nil) || ok && (v != want || age != wantAge) {
					t.Fatalf("%q %v %v, want %q %v", v, age, err, want, wantAge)
				}
			}
		}
		check(do("eur", "", down))("", 0, false) // nothing is kept yet
		check(do("eur", "1.08", nil))("1.08", 0, true)
		v, age, err := do("eur", "", down)
		if v != "1.08" || age <= 0 || err != nil {
			t.Fatal(v, age, err)
		}
		check(do("usd", "", down))("", 0, false) // another key
		check(do("eur", "", errBoom))("", 0, false)
		time.Sleep(time.Hour)
		check(do("eur", "", down))("", 0, false) // too old

		check(do("eur", "1.09", nil))("1.09", 0, true)
		put(c, with(p0, set{engine.FallbackMode: engine.Enum("none")}))
		check(do("eur", "", down))("", 0, false) // no longer advised
		put(c, cached(time.Hour))
		if v, age, err := do("eur", "", down); v != "1.09" || age <= 0 || err != nil {
			t.Fatal(v, age, err)
		}
		time.Sleep(11 * time.Minute)
		check(do("eur", "", down))("", 0, false) // the code's own limit
	})
}

func TestLastGood_is_bounded_and_safe(t *testing.T) {
	c := newClient(t, with(cached(time.Hour), set{engine.MaxAttempts: engine.Int(1)}))
	l := policyd.NewLastGood[int](time.Hour)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if _, _, err := l.Do(t.Context(), ep, fmt.Sprint(g, i), func(context.Context) (int, error) { return i, nil }, policyd.Using(c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	kept := 0
	for g := range 8 {
		for i := range 500 {
			if v, age, err := l.Do(t.Context(), ep, fmt.Sprint(g, i), func(context.Context) (int, error) { return 0, down }, policyd.Using(c)); err == nil {
				if kept++; v != i || age <= 0 {
					t.Fatal(v, age)
				}
			}
		}
	}
	if kept != 1000 {
		t.Fatalf("%d values are kept", kept)
	}
}

func TestStaticFallback_answers_where_the_policy_gave_up(t *testing.T) {
	policy := with(p0, set{
		engine.MaxAttempts: engine.Int(2), engine.FallbackMode: engine.Enum("static"), engine.FallbackStaticStatus: engine.Int(200),
		engine.FallbackStaticContentType: engine.Text("application/json"), engine.FallbackStaticBody: engine.Text(`{"items":[]}`),
	})
	for name, c := range map[string]struct {
		method string
		status int
		opts   []policyd.TransportOption
		want   int
		body   string
	}{
		"GET":                 {"GET", 503, []policyd.TransportOption{policyd.StaticFallback()}, 200, `{"items":[]}`},
		"HEAD":                {"HEAD", 503, []policyd.TransportOption{policyd.StaticFallback()}, 200, ""},
		"an answer":           {"GET", 404, []policyd.TransportOption{policyd.StaticFallback()}, 404, "real"},
		"not GET":             {"PUT", 503, []policyd.TransportOption{policyd.StaticFallback()}, 503, "real"},
		"code does not allow": {"GET", 503, nil, 503, "real"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newClient(t, policy)
				s := newScript(answer{status: c.status, body: "real"})
				req, _ := http.NewRequestWithContext(t.Context(), c.method, "http://upstream.shop/", http.NoBody)
				resp, err := cl.Transport(s, append(c.opts, everything)...).RoundTrip(req)
				if err != nil || resp.StatusCode != c.want {
					t.Fatal(resp, err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if string(body) != c.body {
					t.Fatalf("%q", body)
				}
				if o := outcome(t, resp); c.status == 503 && (o.Code != policyd.CodeAttempts || o.Attempts != 2) {
					t.Fatalf("%+v", o)
				}
				for _, b := range s.bodies {
					if b.closed == 0 {
						t.Error("a body is open")
					}
				}
			})
		})
	}
	t.Run("refused", func(t *testing.T) {
		cl := newClient(t, policy)
		put(cl, policy, killSwitch(engine.ForceOpen, time.Hour))
		s := newScript(answer{status: 200})
		resp := get(t, cl.Transport(s, everything, policyd.StaticFallback()))
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if o := outcome(t, resp); string(body) != `{"items":[]}` || s.count() != 0 || o.Code != policyd.CodeBreaker || o.Attempts != 0 ||
			!strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			t.Fatalf("%q %+v", body, o)
		}
	})
}
