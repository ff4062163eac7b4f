// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// mux asks the real ServeMux, which panics at conflicts.
type mux struct{ http.ServeMux }

func (m *mux) add(p, name string) (ok bool) {
	defer func() { ok = recover() == nil }()
	m.Handle(p, named(name))
	return true
}

type named string

func (named) ServeHTTP(http.ResponseWriter, *http.Request) {}

func (m *mux) find(method, host, path string) string {
	u, err := url.Parse("http://" + host + path)
	if err != nil {
		panic(err)
	}
	h, p := m.Handler(&http.Request{Method: method, Host: host, URL: u})
	if n, ok := h.(named); ok {
		return string(n)
	}
	if p != "" {
		return "redirect" // to the path with a slash, which is another path to us
	}
	return "none"
}

func randomPattern(r *rand.Rand) (method, host, path string) {
	method = []string{"", "", "GET", "HEAD", "POST"}[r.IntN(5)]
	host = []string{"", "", "a.test", "b.test"}[r.IntN(4)]
	for range r.IntN(4) {
		path += []string{"/a", "/b", "/%61", "/a%2Fb", "/{x}"}[r.IntN(5)]
	}
	if i := strings.LastIndex(path, "{x}"); i >= 0 { // names must differ
		path = strings.Replace(path[:i], "{x}", "{y}", 1) + path[i:]
		path = strings.Replace(path, "/{x}/{x}", "/{x}/{z}", 1)
	}
	return method, host, path + []string{"", "/", "/{$}", "/{rest...}"}[r.IntN(4)]
}

func TestMatcher_answers_as_ServeMux_does(t *testing.T) {
	calls := []string{"/", "/a", "/b", "/c", "/a/", "/a/a", "/a/b", "/b/a", "/a/b/", "/a/c/a", "/a/b/c/d", "/a%2Fb", "/a%2fb/a", "/%61/b", "/c/c/c", "/a/a/a"}
	for seed := range uint64(2000) {
		r := seeded(seed)
		var reference mux
		var documents []engine.Document
		for i := range 8 {
			method, host, path := randomPattern(r)
			scope := engine.Scope(fmt.Sprintf("shop/web/e%d", i))
			settings := engine.Settings{engine.MatchHTTPMethod: engine.Text(method), engine.MatchHTTPHost: engine.Text(host), engine.MatchHTTPPath: engine.Text(path)}
			if path == "" || len(engine.Validate(scope, settings)) > 0 {
				continue
			}
			with := append(documents[:len(documents):len(documents)], engine.Document{Scope: scope, Settings: settings})
			conflicts := engine.MatchConflicts(with, []engine.Scope{scope})
			if ok := reference.add(strings.TrimSpace(method+" "+host+path), string(scope)); ok != (len(conflicts) == 0) {
				t.Fatalf("seed %d: %s %s%s: ServeMux takes it: %v, conflicts %v", seed, method, host, path, ok, conflicts)
			}
			if len(conflicts) == 0 {
				documents = with
			}
		}
		m := engine.NewMatcher(shuffled(r, documents), "shop")
		for _, path := range calls {
			for _, method := range []string{"GET", "HEAD", "POST"} {
				for _, host := range []string{"a.test", "c.test"} {
					want := reference.find(method, host, path)
					switch want {
					case "none":
						want = "?shop"
					case "redirect":
						continue
					}
					if got := find(t, m, method+" "+host+" "+path, ""); got != want {
						t.Fatalf("seed %d: %s %s%s is at %s, ServeMux says %s, %v", seed, method, host, path, got, want, documents)
					}
				}
			}
		}
	}
}

func TestO_SE_07_matching_takes_linear_time(t *testing.T) {
	// Patterns that backtrack in engines for regular expressions.
	if found := engine.Validate(endpointScope, engine.Settings{engine.MatchHTTPPath: engine.Text("^(a+)+$")}); len(found) == 0 {
		t.Error("a regular expression is taken for a path")
	}
	var documents []engine.Document
	path := ""
	for i := range 60 {
		path += "/{" + fmt.Sprintf("n%d", i) + "}"
		scope := engine.Scope(fmt.Sprintf("shop/web/e%d", i))
		documents = append(documents,
			engine.Document{Scope: scope, Settings: engine.Settings{engine.MatchHTTPPath: engine.Text(path + "/x")}},
			engine.Document{Scope: scope + "a", Settings: engine.Settings{engine.MatchHTTPPath: engine.Text(strings.Repeat("/a", i) + "/y")}})
	}
	m := engine.NewMatcher(documents, "shop")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			m.HTTP("GET", "any", strings.Repeat("/a", 2000)+"!")
			m.HTTP("GET", "any", strings.Repeat("/", 4000)+strings.Repeat("a", 4000)+"%zz")
		}
	}()
	tooLong := time.NewTimer(30 * time.Second)
	defer tooLong.Stop()
	select {
	case <-done:
	case <-tooLong.C: // seconds where an exponential engine takes years
		t.Fatal("matching does not end")
	}
}

func TestMatcher_does_not_allocate_for_ordinary_paths(t *testing.T) {
	m := engine.NewMatcher([]engine.Document{
		{Scope: endpointScope, Settings: engine.Settings{engine.MatchHTTPMethod: engine.Text("POST"), engine.MatchHTTPHost: engine.Text("payments.shop"), engine.MatchHTTPPath: engine.Text("/v1/charges/{id}")}},
		{Scope: endpointScope + ".rpc", Settings: engine.Settings{engine.MatchGRPCMethod: engine.Text("/shop.Charges/*")}},
	}, "shop")
	if n := testing.AllocsPerRun(100, func() {
		if !m.HTTP("POST", "payments.shop:8080", "/v1/charges/7").Matched || !m.GRPC("/shop.Charges/Create", "").Matched {
			t.Fatal("no match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMatcher_gives_equal_patterns_to_one_scope_whatever_the_order(t *testing.T) {
	path := engine.Settings{engine.MatchHTTPPath: engine.Text("/a"), engine.MatchGRPCMethod: engine.Text("/a.B/C")}
	documents := []engine.Document{{Scope: "shop/web/b", Settings: path}, {Scope: "shop/web/a", Settings: path}, {Scope: "media/web/a", Settings: path}}
	for seed := range uint64(10) {
		m := engine.NewMatcher(shuffled(seeded(seed), documents), "shop")
		if got := find(t, m, "GET any /a", ""); got != "shop/web/a" {
			t.Errorf("HTTP at %s", got)
		}
		if got := find(t, m, "", "/a.B/C any"); got != "shop/web/a" {
			t.Errorf("gRPC at %s", got)
		}
	}
}

func FuzzMatcher(f *testing.F) {
	for _, seed := range [][3]string{{"/v1/{id}/", "", "/v1/7/x"}, {"/{$}", "GET", "/"}, {"/caf\u00e9/{rest...}", "", "/cafe\u0301/%2F"}, {"/%zz", "", "/%"}, {"/{a}/{a}", "", "//"}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, pattern, method, path string) {
		settings := engine.Settings{engine.MatchHTTPPath: engine.Text(pattern), engine.MatchHTTPMethod: engine.Text(method)}
		documents := []engine.Document{{Scope: "shop/web/a", Settings: settings}, {Scope: "shop/web/b", Settings: settings}}
		valid := len(engine.Validate("shop/web/a", settings)) == 0
		m := engine.NewMatcher(documents, "shop")
		got := m.HTTP(method, "any", path)
		if got.Matched && got.Scope != "shop/web/a" || !got.Matched && got.Scope != "shop" {
			t.Errorf("%q on %q is at %v", path, pattern, got)
		}
		if again := m.HTTP(method, "any", path); again != got {
			t.Error("the answer changes")
		}
		if valid && len(engine.MatchConflicts(documents, nil)) != 1 {
			t.Errorf("%q does not conflict with itself", pattern)
		}
		if valid && !strings.ContainsAny(pattern, "{") && !m.HTTP(method, "any", pattern).Matched {
			t.Errorf("%q does not match itself", pattern)
		}
	})
}

func BenchmarkMatcher(b *testing.B) {
	var documents []engine.Document
	for i := range 1000 {
		documents = append(documents, engine.Document{
			Scope:    engine.Scope(fmt.Sprintf("shop/web/e%d", i)),
			Settings: engine.Settings{engine.MatchHTTPMethod: engine.Text("GET"), engine.MatchHTTPPath: engine.Text(fmt.Sprintf("/v1/things%d/{id}", i))},
		})
	}
	m := engine.NewMatcher(documents, "shop")
	b.ReportAllocs()
	for b.Loop() {
		m.HTTP("GET", "web.shop:8080", "/v1/things500/7")
	}
}
