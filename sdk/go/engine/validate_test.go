// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestFields_table_is_sound(t *testing.T) {
	for _, f := range engine.Fields() {
		spec := f.Spec()
		if g, ok := engine.FieldByPath(spec.Path); !ok || g != f {
			t.Errorf("%s leads to %s", spec.Path, g)
		}
		if spec.Doc == "" || !strings.HasSuffix(spec.Doc, ".") {
			t.Errorf("%s has no sentence", f)
		}
		numeric := spec.Kind == engine.KindInt || spec.Kind == engine.KindDecimal || spec.Kind == engine.KindDuration
		if numeric != spec.Bounded || numeric && spec.Min > spec.Max {
			t.Errorf("%s is bounded from %d to %d", f, spec.Min, spec.Max)
		}
		if spec.Default == nil {
			continue
		}
		scope := [...]engine.Scope{"global", "shop", "shop/payments", endpointScope}[spec.From]
		if found := engine.Validate(scope, engine.Settings{f: *spec.Default}); len(found) > 0 && f.Spec().Kind != engine.KindText {
			t.Errorf("the default is refused: %v", found)
		}
	}
	if found := engine.ValidateMerged(engine.Merge(endpointScope, nil)); len(found) > 0 {
		t.Errorf("the built-in policy breaks %v", found)
	}
	if _, ok := engine.FieldByPath("no.such"); ok {
		t.Error("a path that is none leads somewhere")
	}
}

func TestValidate_accepts_what_is_in_the_table_and_refuses_what_is_not(t *testing.T) {
	for seed := range uint64(500) {
		r := seeded(seed)
		for _, d := range randomDocuments(r, true) {
			for _, v := range engine.Validate(d.Scope, d.Settings) {
				if v.Scope != d.Scope || !strings.HasPrefix(v.Path, "spec.") || v.Rule == "" || !utf8.ValidString(v.Value+v.Rule+v.Fix) || len(v.Value) > 100 {
					t.Fatalf("seed %d: %+v", seed, v)
				}
			}
		}
		for _, f := range engine.Fields() {
			spec := f.Spec()
			scope := [...]engine.Scope{"global", "shop", "shop/payments", endpointScope}[spec.From]
			if !spec.Bounded {
				continue
			}
			inside := engine.Value{Kind: spec.Kind, Int: spec.Min + r.Int64N(spec.Max-spec.Min+1)}
			outside := engine.Value{Kind: spec.Kind, Int: spec.Max + 1 + r.Int64N(math.MaxInt64-spec.Max)}
			if found := engine.Validate(scope, engine.Settings{f: inside}); len(found) != 0 {
				t.Fatalf("%s %s: %v", f, inside, found)
			}
			if found := engine.Validate(scope, engine.Settings{f: outside}); len(found) != 1 || found[0].Path != "spec."+f.Path() {
				t.Fatalf("%s %s: %v", f, outside, found)
			}
		}
	}
}

func TestValidate_refuses_long_lists_and_texts(t *testing.T) {
	items := make([]string, engine.MaxListItems+1)
	for i := range items {
		items[i] = fmt.Sprintf("M%d", i)
	}
	for name, s := range map[string]engine.Settings{
		"501 methods":          {engine.IdempotencyMethods: engine.Set(items...)},
		"a text of 8 KiB and":  {engine.Description: engine.Text(strings.Repeat("a", engine.MaxTextBytes+1))},
		"a path of 1 KiB and":  {engine.MatchHTTPPath: engine.Text("/" + strings.Repeat("a", 1024))},
		"a host of 254 bytes":  {engine.MatchHTTPHost: engine.Text(strings.Repeat("a", 254))},
		"a header of 257":      {engine.IdempotencyKeyHeader: engine.Text(strings.Repeat("a", 257))},
		"text that is no text": {engine.Description: engine.Text("\xff\xfe")},
	} {
		found := engine.Validate(endpointScope, s)
		if len(found) != 1 || len(found[0].Value) > 100 {
			t.Errorf("%s: %v", name, found)
		}
	}
	if found := engine.Validate(endpointScope, engine.Settings{engine.IdempotencyMethods: engine.Set(items[:engine.MaxListItems]...)}); len(found) != 0 {
		t.Errorf("500 methods: %v", found)
	}
}

func TestO_BG_08_budget_bounds_are_checked_and_named(t *testing.T) {
	micro := func(f float64) engine.Value { v, _ := engine.Decimal(f); return v }
	for name, tc := range map[string]struct {
		field engine.Field
		value engine.Value
		rule  string
	}{
		"window 0s":   {engine.BudgetWindow, engine.Duration(0), "1s to 1m"},
		"window 61s":  {engine.BudgetWindow, engine.Duration(61 * time.Second), "1s to 1m"},
		"floor -1":    {engine.BudgetMinRetriesPerSecond, micro(-1), "0 to 1000"},
		"ratio -0.1":  {engine.BudgetRatio, micro(-0.1), "0 to 1"},
		"ratio 1001":  {engine.BudgetRatio, micro(1001), "0 to 1"},
		"a tiny loss": {engine.BudgetRatio, engine.Micro(-1), "0 to 1"},
	} {
		found := engine.Validate("shop", engine.Settings{tc.field: tc.value})
		if len(found) != 1 || found[0].Path != "spec."+tc.field.Path() || found[0].Rule != tc.rule {
			t.Errorf("%s: %+v", name, found)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300} {
		if v, ok := engine.Decimal(f); ok {
			t.Errorf("%v is taken as %s", f, v)
		}
	}
	none := engine.Settings{engine.BudgetRatio: micro(0), engine.BudgetMinRetriesPerSecond: micro(0)}
	if found := engine.Validate("shop", none); len(found) != 0 {
		t.Errorf("no retries at all: %v", found)
	}
}

func TestValidateEffective_names_who_sets_the_bound(t *testing.T) {
	path := []engine.Document{
		{Scope: "shop", Settings: engine.Settings{engine.CeilingsMaxAttempts: engine.Int(2)}},
		{Scope: endpointScope, Settings: engine.Settings{engine.MaxAttempts: engine.Int(3)}},
	}
	found := engine.ValidateEffective(path)
	want := engine.Violation{
		Scope: endpointScope, Other: "shop", Path: "spec.maxAttempts", Value: "3",
		Rule: "at most 2 (ceiling of shop)", Fix: "lower it; a ceiling of a wider scope cannot be passed",
	}
	if len(found) != 1 || found[0] != want {
		t.Errorf("%+v", found)
	}
}
