// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

type settings = engine.Settings

func doc(scope engine.Scope, s settings) *policy.Policy {
	return &policy.Policy{Scope: scope, Settings: s}
}

func setOf(documents ...*policy.Policy) policy.Set {
	set := policy.Set{}
	for _, p := range documents {
		set[p.Scope] = p
	}
	return set
}

func attempts(n int64) settings { return settings{engine.MaxAttempts: engine.Int(n)} }

func paths(violations []fault.Violation) []string {
	var all []string
	for _, v := range violations {
		all = append(all, strings.TrimSpace(v.Scope+" "+v.Path))
	}
	return all
}

func TestValidate_metadata(t *testing.T) {
	labels := func(m map[string]string) policy.Metadata { return policy.Metadata{Labels: m} }
	many := map[string]string{}
	for i := range policy.MaxNames + 1 {
		many[fmt.Sprint("n", i)] = "x"
	}
	for name, tc := range map[string]struct {
		metadata policy.Metadata
		want     []string
	}{
		"nothing":            {policy.Metadata{}, nil},
		"ordinary":           {policy.Metadata{Owner: "team-payments", ManagedBy: "git policies", Labels: map[string]string{"tier": "1", "criticality": "critical"}, Annotations: map[string]string{"runbook": "https://wiki.example/a"}}, nil},
		"a criticality":      {labels(map[string]string{"criticality": "high"}), []string{"shop metadata.labels.criticality"}},
		"no criticality":     {labels(map[string]string{"criticality": ""}), []string{"shop metadata.labels.criticality"}},
		"a name of a label":  {labels(map[string]string{"a b": "x", "": "x"}), []string{"shop metadata.labels", "shop metadata.labels"}},
		"a long name":        {labels(map[string]string{strings.Repeat("a", 64): "x"}), []string{"shop metadata.labels"}},
		"a long label":       {labels(map[string]string{"a": strings.Repeat("x", policy.MaxLabelBytes+1)}), []string{"shop metadata.labels.a"}},
		"many labels":        {labels(many), []string{"shop metadata.labels"}},
		"a long annotation":  {policy.Metadata{Annotations: map[string]string{"a": strings.Repeat("x", policy.MaxAnnotationBytes+1)}}, []string{"shop metadata.annotations.a"}},
		"a long owner":       {policy.Metadata{Owner: strings.Repeat("x", policy.MaxOwnerBytes+1)}, []string{"shop metadata.owner"}},
		"an owner on lines":  {policy.Metadata{Owner: "a\nb"}, []string{"shop metadata.owner"}},
		"who is no text":     {policy.Metadata{ManagedBy: "\xff"}, []string{"shop metadata.managedBy"}},
		"a formula is text":  {labels(map[string]string{"a": `=HYPERLINK("http://x","y")`}), nil},
		"a word like a bool": {labels(map[string]string{"a": "off"}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := doc("shop", attempts(2))
			p.Metadata = tc.metadata
			require.Equal(t, tc.want, paths(policy.Validate(p)))
		})
	}
}

func TestValidate_scope_and_size_come_first(t *testing.T) {
	require.Equal(t, []string{"Shop metadata.scope"}, paths(policy.Validate(doc("Shop", attempts(99)))))

	big := doc("shop", settings{})
	big.Metadata.Annotations = map[string]string{}
	for i := range 20 {
		big.Metadata.Annotations[fmt.Sprint("a", i)] = strings.Repeat("x", 4000)
	}
	found := policy.Validate(big)
	require.Equal(t, []string{"shop"}, paths(found))
	require.Contains(t, found[0].Rule, "65536 bytes")
}

func TestValidateSet_refuses_what_the_change_breaks(t *testing.T) {
	for name, tc := range map[string]struct {
		set     policy.Set
		changed []engine.Scope
		want    []string
	}{
		"nothing": {setOf(doc("shop", attempts(2))), []engine.Scope{"shop"}, nil},
		"its own rules, before all others": {
			setOf(doc("shop", attempts(11)), doc("shop/pay", attempts(12))),
			[]engine.Scope{"shop", "shop/pay"},
			[]string{"shop spec.maxAttempts", "shop/pay spec.maxAttempts"},
		},
		"a ceiling of a wider scope": {
			setOf(doc("shop", settings{engine.CeilingsMaxAttempts: engine.Int(2)}), doc("shop/pay", attempts(3))),
			[]engine.Scope{"shop/pay"},
			[]string{"shop/pay spec.maxAttempts"},
		},
		"a tightened ceiling clips others and is taken": {
			setOf(doc("shop", settings{engine.CeilingsMaxAttempts: engine.Int(2)}), doc("shop/pay", attempts(3))), []engine.Scope{"shop"}, nil,
		},
		"a narrower document that no longer fits": {
			setOf(doc("shop", settings{engine.BackoffMax: engine.Duration(500 * time.Millisecond)}), doc("shop/pay", settings{engine.BackoffBase: engine.Duration(time.Second)})),
			[]engine.Scope{"shop"},
			[]string{"shop/pay spec.backoff.base"},
		},
		"two narrower ones that no longer fit": {
			setOf(
				doc("shop", settings{engine.BackoffMax: engine.Duration(500 * time.Millisecond)}),
				doc("shop/pay", settings{engine.BackoffBase: engine.Duration(time.Second)}),
				doc("shop/pay/a", attempts(2)), doc("shop/pay/b", attempts(2)),
			),
			[]engine.Scope{"shop"},
			[]string{"shop/pay spec.backoff.base"},
		},
		"what was broken before is not held against a change": {
			setOf(
				doc("shop", settings{engine.BackoffMax: engine.Duration(500 * time.Millisecond)}),
				doc("shop/pay", settings{engine.BackoffBase: engine.Duration(time.Second)}), doc("shop/pay/a", attempts(2)),
			),
			[]engine.Scope{"shop/pay/a"},
			nil,
		},
		"a pattern that another endpoint has": {
			setOf(doc("shop/pay/a", settings{engine.MatchHTTPPath: engine.Text("/x/{id}")}), doc("shop/pay/b", settings{engine.MatchHTTPPath: engine.Text("/x/{name}")})),
			[]engine.Scope{"shop/pay/b"},
			[]string{"shop/pay/b spec.match.http.path"},
		},
		"a conflict among others": {
			setOf(doc("shop/pay/a", settings{engine.MatchHTTPPath: engine.Text("/x")}), doc("shop/pay/b", settings{engine.MatchHTTPPath: engine.Text("/x")}), doc("shop/pay/c", attempts(2))),
			[]engine.Scope{"shop/pay/c"},
			nil,
		},
		"a host of a service that makes endpoints conflict": {
			setOf(
				doc("shop/pay", settings{engine.MatchHTTPHost: engine.Text("gw")}), doc("shop/pay/a", settings{engine.MatchHTTPPath: engine.Text("/x")}),
				doc("shop/web/a", settings{engine.MatchHTTPHost: engine.Text("gw"), engine.MatchHTTPPath: engine.Text("/x")}),
			),
			[]engine.Scope{"shop/pay"},
			[]string{"shop/pay/a spec.match.http.path"},
		},
		"a scope that is gone": {setOf(doc("shop", attempts(2))), []engine.Scope{"shop/pay"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found := policy.ValidateSet(tc.set, tc.set, tc.changed)
			require.Equal(t, tc.want, paths(found), "%v", found)
		})
	}
}

func TestValidateSet_a_conflict_names_both(t *testing.T) {
	set := setOf(doc("shop/pay/a", settings{engine.MatchHTTPPath: engine.Text("/x/{id}")}), doc("shop/pay/b", settings{engine.MatchHTTPPath: engine.Text("/{kind}/y")}))
	found := policy.ValidateSet(set, set, []engine.Scope{"shop/pay/b"})
	require.Len(t, found, 1)
	require.Equal(t, "shop/pay/b", found[0].Scope)
	require.Equal(t, "/{kind}/y", found[0].Value)
	require.Contains(t, found[0].Rule, "shop/pay/a")
}

func TestValidateSet_bounds_the_policies_of_a_namespace(t *testing.T) {
	set := policy.Set{}
	for i := range engine.MaxPoliciesPerNS {
		p := doc(engine.Scope(fmt.Sprintf("shop/s/e%d", i)), attempts(2))
		set[p.Scope] = p
	}
	require.Empty(t, policy.ValidateSet(set, set, []engine.Scope{"shop/s/e1"}))
	set["shop"] = doc("shop", settings{engine.Description: engine.Text("one more")})
	require.Equal(t, []string{"shop metadata.scope"}, paths(policy.ValidateSet(set, set, []engine.Scope{"shop"})))
	require.Empty(t, policy.ValidateSet(set, set, []engine.Scope{"media"}))
}

func TestDiff_says_what_an_operator_changed(t *testing.T) {
	before := &policy.Policy{
		Scope: "shop", Revision: 4,
		Settings: settings{engine.MaxAttempts: engine.Int(3), engine.BackoffJitter: engine.Enum("full"), engine.Description: engine.Text("a"), engine.RetryOnHTTP: engine.Set("503")},
		Metadata: policy.Metadata{Owner: "a", Labels: map[string]string{"tier": "1", "gone": ""}, UpdatedBy: policy.Actor{Name: "alex"}},
	}
	after := &policy.Policy{
		Scope: "shop", Revision: 5,
		Settings: settings{engine.MaxAttempts: engine.Int(4), engine.BackoffJitter: engine.Enum("full"), engine.Description: engine.Text("a\nb"), engine.RetryOnHTTP: engine.Set(), engine.BackoffBase: engine.Duration(time.Second)},
		Metadata: policy.Metadata{Owner: "b", Labels: map[string]string{"tier": "2"}, Annotations: map[string]string{"x": " y"}, ManagedBy: "git", UpdatedBy: policy.Actor{Name: "sam"}},
	}
	require.Equal(t, []policy.FieldChange{
		{"description", "a", `"a\nb"`},
		{"maxAttempts", "3", "4"},
		{"backoff.base", "", "1s"},
		{"retryOn.http", "[503]", "[]"},
		{"metadata.owner", "a", "b"},
		{"metadata.labels.gone", `""`, ""},
		{"metadata.labels.tier", "1", "2"},
		{"metadata.annotations.x", "", `" y"`},
		{"metadata.managedBy", "", "git"},
	}, policy.Diff(before, after))
	require.Empty(t, policy.Diff(before, before))
	require.Empty(t, policy.Diff(nil, nil))
	require.Equal(t, []policy.FieldChange{{"maxAttempts", "", "2"}}, policy.Diff(nil, doc("shop", attempts(2))))
	require.Equal(t, []policy.FieldChange{{"maxAttempts", "2", ""}}, policy.Diff(doc("shop", attempts(2)), nil))
}

func TestAffected_names_endpoints_whose_effective_policy_changes(t *testing.T) {
	endpoints := []engine.Scope{"shop/pay/b", "shop/pay/a", "shop/web/a", "media/x/y", "shop/pay/a"}
	before := setOf(doc("shop", attempts(2)), doc("shop/pay/b", attempts(3)))
	after := setOf(doc("shop", attempts(4)), doc("shop/pay/b", attempts(3)))
	require.Equal(t, []engine.Scope{"shop/pay/a", "shop/web/a"}, policy.Affected(before, after, endpoints))

	described := setOf(doc("shop", settings{engine.MaxAttempts: engine.Int(2), engine.Description: engine.Text("x")}), doc("shop/pay/b", attempts(3)))
	require.Empty(t, policy.Affected(before, described, endpoints), "a description changes nothing")

	critical := setOf(doc("shop", attempts(2)), doc("shop/pay/b", attempts(3)))
	critical["shop"].Metadata.Labels = map[string]string{policy.LabelCriticality: "critical"}
	require.Len(t, policy.Affected(before, critical, endpoints), 3, "criticality decides what a switch selects")
}

func TestNewlyClipped_lists_whom_a_tightened_ceiling_hits(t *testing.T) {
	before := setOf(doc("shop", settings{}), doc("shop/pay", attempts(3)), doc("shop/web", attempts(2)), doc("shop/old", attempts(9)))
	after := setOf(doc("shop", settings{engine.CeilingsMaxAttempts: engine.Int(2)}), before["shop/pay"], before["shop/web"], before["shop/old"])
	require.Equal(t, []policy.Clipped{
		{Scope: "shop/old", Field: engine.MaxAttempts, Before: engine.Int(9), After: engine.Int(2), By: engine.Origin{From: "shop"}},
		{Scope: "shop/pay", Field: engine.MaxAttempts, Before: engine.Int(3), After: engine.Int(2), By: engine.Origin{From: "shop"}},
	}, policy.NewlyClipped(before, after, []engine.Scope{"shop"}))
	require.Empty(t, policy.NewlyClipped(after, after, []engine.Scope{"shop"}))
}

func TestPath_and_Below_do_not_take_in_neighbours(t *testing.T) {
	set := setOf(doc("global", nil), doc("pay", nil), doc("payments", nil), doc("pay/a", nil), doc("pay/a/b", nil), doc("pay/ab", nil))
	require.Equal(t, []engine.Scope{"pay/a", "pay/a/b"}, policy.Below(set, "pay/a"))
	require.Equal(t, []engine.Scope{"pay/a", "pay/a/b", "payments"}, policy.Below(set, "payments", "pay/a", "pay/a/b"))
	var scopes []engine.Scope
	for _, d := range policy.Path(set, "pay/a/c") {
		scopes = append(scopes, d.Scope)
	}
	require.Equal(t, []engine.Scope{"global", "pay", "pay/a"}, scopes)
	require.Len(t, policy.Below(set, engine.Global), len(set))
}

func TestValidateSet_a_field_that_a_wider_document_gives_up_must_not_break_narrower_ones(t *testing.T) {
	before := setOf(doc("shop", settings{engine.BackoffBase: engine.Duration(time.Millisecond)}),
		doc("shop/pay", settings{engine.BackoffMax: engine.Duration(time.Millisecond)}))
	after := setOf(doc("shop", settings{engine.MaxAttempts: engine.Int(2)}), before["shop/pay"])
	found := policy.ValidateSet(before, after, []engine.Scope{"shop"})
	require.Len(t, found, 1)
	require.Equal(t, "shop/pay spec.backoff.max", found[0].Scope+" "+found[0].Path)
	require.Empty(t, policy.ValidateSet(after, after, []engine.Scope{"shop"}), "what was broken before does not stop an edit")
	require.Empty(t, policy.ValidateSet(before, setOf(before["shop/pay"]), []engine.Scope{"shop"}), "nor is a deletion stopped")
}

// Whatever is stored, a batch that was taken leaves no effective policy in breach.
func TestValidateSet_what_it_takes_merges_within_the_rules(t *testing.T) {
	scopes := []engine.Scope{"global", "shop", "shop/pay", "shop/pay/a"}
	ms := func(t *rapid.T, name string) engine.Value {
		return engine.Duration(time.Duration(rapid.IntRange(1, 4000).Draw(t, name)) * time.Millisecond)
	}
	rapid.Check(t, func(t *rapid.T) {
		set := policy.Set{}
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			at := rapid.SampledFrom(scopes).Draw(t, "scope")
			s := settings{}
			for _, set := range []struct {
				f engine.Field
				v engine.Value
			}{
				{engine.BackoffBase, ms(t, "base")},
				{engine.BackoffMax, ms(t, "max")},
				{engine.TimeoutsAttempt, ms(t, "attempt")},
				{engine.TimeoutsOverall, ms(t, "overall")},
				{engine.MaxAttempts, engine.Int(rapid.Int64Range(1, 10).Draw(t, "attempts"))},
				{engine.BreakerHalfOpenProbes, engine.Int(rapid.Int64Range(1, 5).Draw(t, "probes"))},
				{engine.BreakerHalfOpenCloseAfter, engine.Int(rapid.Int64Range(1, 5).Draw(t, "closeAfter"))},
			} {
				if rapid.Bool().Draw(t, set.f.Path()) {
					s[set.f] = set.v
				}
			}
			next := policy.Set{at: doc(at, s)}
			for scope, p := range set {
				if scope != at {
					next[scope] = p
				}
			}
			if len(policy.ValidateSet(set, next, []engine.Scope{at})) == 0 {
				set = next
			}
		}
		for _, at := range scopes {
			e := policy.Merge(set, at)
			require.Empty(t, engine.ValidateMerged(e))
			p := engine.Compile(e)
			require.LessOrEqual(t, p.Backoff.Base, p.Backoff.Max)
			require.True(t, p.Timeouts.Overall == 0 || p.Timeouts.Attempt <= p.Timeouts.Overall)
			require.Equal(t, e.Value(engine.BackoffBase).Duration(), p.Backoff.Base, "nothing had to be pulled")
		}
	})
}
