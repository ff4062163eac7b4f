// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

const endpointScope = engine.Scope("shop/payments/charge")

func TestMerge_does_not_depend_on_the_order_of_documents(t *testing.T) {
	for seed := range uint64(300) {
		r := seeded(seed)
		documents := randomDocuments(r, false)
		for _, scope := range scopes {
			a, b := engine.Merge(scope, documents), engine.Merge(scope, shuffled(r, documents))
			for _, f := range engine.Fields() {
				if x, y := a.At(f), b.At(f); !reflect.DeepEqual(x, y) {
					t.Fatalf("seed %d: %s at %s: %+v or %+v", seed, f, scope, x, y)
				}
			}
		}
	}
}

func TestMerge_keeps_every_value_below_its_ceilings_and_names_a_real_origin(t *testing.T) {
	for seed := range uint64(300) {
		documents := randomDocuments(seeded(seed), false)
		e := engine.Merge(endpointScope, documents)
		for _, c := range []struct{ field, bound engine.Field }{
			{engine.MaxAttempts, engine.CeilingsMaxAttempts},
			{engine.BudgetRatio, engine.CeilingsBudgetRatio},
			{engine.BudgetMinRetriesPerSecond, engine.CeilingsMinRetriesPerSecond},
			{engine.TimeoutsOverall, engine.CeilingsTimeoutsOverall},
		} {
			if v, most := e.Value(c.field), e.Value(c.bound); v.Int > most.Int {
				t.Fatalf("seed %d: %s %s above %s", seed, c.field, v, most)
			}
			for _, d := range documents {
				if v, ok := d.Settings[c.bound]; ok && d.Scope.Contains(endpointScope) && d.Scope != engine.Global && e.Value(c.bound).Int > v.Int {
					t.Fatalf("seed %d: %s %s, but %s sets %s", seed, c.bound, e.Value(c.bound), d.Scope, v)
				}
			}
		}
		for _, f := range engine.Fields() {
			r := e.At(f)
			if !r.Present() || r.From == engine.BuiltIn {
				continue
			}
			if from := engine.Scope(r.From); !from.Contains(endpointScope) || f.Spec().Own && from != endpointScope {
				t.Fatalf("seed %d: %s from %s", seed, f, from)
			}
		}
	}
}

func TestMerge_a_namespace_may_tighten_but_never_loosen(t *testing.T) {
	for seed := range uint64(300) {
		documents := randomDocuments(seeded(seed), false)
		without := engine.Merge(endpointScope, documents)
		limit := engine.Document{Scope: "shop/payments", Settings: engine.Settings{engine.CeilingsMaxAttempts: engine.Int(int64(1 + seed%10))}}
		kept := documents[:0:0]
		for _, d := range documents {
			if d.Scope == limit.Scope {
				limit.Settings = d.Settings.Clone()
				limit.Settings[engine.CeilingsMaxAttempts] = engine.Int(int64(1 + seed%10))
				delete(d.Settings, engine.CeilingsMaxAttempts)
				without = engine.Merge(endpointScope, documents)
				continue
			}
			kept = append(kept, d)
		}
		with := engine.Merge(endpointScope, append(kept, limit))
		if with.Value(engine.MaxAttempts).Int > without.Value(engine.MaxAttempts).Int {
			t.Fatalf("seed %d: a ceiling raised maxAttempts", seed)
		}
	}
}

func TestO_RL_07_deleting_the_stronger_definition_brings_the_weaker_one_back(t *testing.T) {
	attempts := func(n int64) engine.Settings { return engine.Settings{engine.MaxAttempts: engine.Int(n)} }
	documents := []engine.Document{
		{Scope: "global", Settings: attempts(2)},
		{Scope: "shop/payments", Settings: attempts(3)},
		{Scope: endpointScope, Settings: attempts(5)},
	}
	for _, want := range []int{5, 3, 2, 3} {
		if p := engine.Compile(engine.Merge(endpointScope, documents)); p.MaxAttempts != want {
			t.Fatalf("with %d documents maxAttempts is %d, want %d", len(documents), p.MaxAttempts, want)
		}
		documents = documents[:max(0, len(documents)-1)]
	}
}

func TestO_BO_07_a_default_cap_is_shown_as_such(t *testing.T) {
	document := engine.Document{Scope: "shop", Settings: engine.Settings{
		engine.BackoffBase: engine.Duration(time.Second), engine.MaxAttempts: engine.Int(5),
	}}
	if broken := engine.ValidateEffective([]engine.Document{document}); len(broken) != 0 {
		t.Fatal(broken)
	}
	r := engine.Merge("shop", []engine.Document{document}).At(engine.BackoffMax)
	if r.From != engine.BuiltIn || r.Value.String() != "2s" {
		t.Errorf("backoff.max is %s from %q", r.Value, r.From)
	}
	// A base that the default cap would flatten is refused, and the cap is named.
	document.Settings[engine.BackoffBase] = engine.Duration(3 * time.Second)
	broken := engine.ValidateEffective([]engine.Document{document})
	if len(broken) != 1 || !strings.Contains(broken[0].Rule, "backoff.max, 2s (built-in)") {
		t.Errorf("violations %v", broken)
	}
}

func TestO_WA_07_a_scope_does_not_take_in_its_neighbours(t *testing.T) {
	for _, c := range []struct {
		scope, other engine.Scope
		contains     bool
	}{
		{"pay", "payments", false},
		{"pay", "payments/charge", false},
		{"pay", "pay/ments", true},
		{"shop/pay", "shop/payments", false},
		{"shop/pay", "shop/pay", true},
		{"shop/pay", "shop/pay/charge", true},
		{"shop/pay/charge", "shop/pay", false},
		{"global", "pay", true},
		{"pay", "global", false},
	} {
		if got := c.scope.Contains(c.other); got != c.contains {
			t.Errorf("%s contains %s: %v", c.scope, c.other, got)
		}
	}
	for _, name := range []string{"pay/", "/pay", "a//b", "a/b/c/d", "a/global", "global/a", "Pay", "pay ", "é", ".a", "a-", strings.Repeat("a", 64)} {
		if scope, err := engine.ParseScope(name); err == nil {
			t.Errorf("%q is taken as %q", name, scope)
		}
	}
}

func TestScope_path_leads_from_global_to_itself(t *testing.T) {
	for scope, want := range map[engine.Scope][]engine.Scope{
		"global":   {"global"},
		"shop":     {"global", "shop"},
		"shop/a/b": {"global", "shop", "shop/a", "shop/a/b"},
	} {
		if got := scope.Path(); !reflect.DeepEqual(got, want) {
			t.Errorf("path of %s: %v", scope, got)
		}
	}
}

func FuzzParseScope(f *testing.F) {
	for _, s := range []string{"global", "shop/payments/charges.create", "a//b", "\x00", "a/b/c/d", strings.Repeat("a/", 40)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		scope, err := engine.ParseScope(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("the error repeats its input: %d bytes", len(err.Error()))
			}
			return
		}
		if string(scope) != s || len(scope.Path()) != int(scope.Level())+1 || !engine.Global.Contains(scope) || !scope.Contains(scope) {
			t.Errorf("%q: path %v, level %s", s, scope.Path(), scope.Level())
		}
		if p := scope.Parent(); p != "" && !p.Contains(scope) {
			t.Errorf("%q is not below its parent %q", s, p)
		}
	})
}

func BenchmarkMerge(b *testing.B) {
	documents := randomDocuments(seeded(1), false)
	b.ReportAllocs()
	for b.Loop() {
		engine.Merge(endpointScope, documents)
	}
}
