// SPDX-License-Identifier: Apache-2.0

package document_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// texts are what makes quoting hard.
var texts = rapid.OneOf(
	rapid.SampledFrom([]string{"", "off", "NO", "y", "1.10", "~", "null", "a: b", "a #b", "#a", " a", "a ", "- a", "*a", "&a", "!a", "'", `"`, "<<", "=", "1:30", "0x1F", "1e3", "2026-05-04", "---", "...", "a\nb\n", "a\n\nb", "\n", "  a\n b\n", "a\tb", "🙂", "%x", "@x", "{a}", "[a]", "a,b", "?", ": ", "|", ">"}),
	rapid.StringOf(rapid.RuneFrom([]rune("ab:#-'\"\n \t{}[],&*!|>%@`0.~\\é🙂\u2028\ufeff"))),
)

func anyValue(t *rapid.T, f engine.Field) engine.Value {
	spec := f.Spec()
	switch spec.Kind {
	case engine.KindBool:
		return engine.Bool(rapid.Bool().Draw(t, "bool"))
	case engine.KindInt, engine.KindDecimal, engine.KindDuration:
		return engine.Value{Kind: spec.Kind, Int: rapid.Int64Range(spec.Min, spec.Max).Draw(t, "number")}
	case engine.KindEnum:
		return engine.Enum(rapid.SampledFrom(spec.Words).Draw(t, "word"))
	case engine.KindSet:
		words := spec.Words
		if f == engine.RetryOnHTTP {
			words = []string{"429", "503", "504", "5xx"}
		}
		if f == engine.IdempotencyMethods {
			words = []string{"GET", "PUT", "QUERY"}
		}
		return engine.Set(rapid.SliceOf(rapid.SampledFrom(words)).Draw(t, "set")...)
	case engine.KindText:
	}
	if f == engine.HedgingAfter {
		return engine.Text(rapid.SampledFrom([]string{"p95", "300ms"}).Draw(t, "after"))
	}
	return engine.Text(texts.Draw(t, "text"))
}

func anyPolicy(t *rapid.T) *policy.Policy {
	scopes := []engine.Scope{"global", "shop", "no/on", "1.10/y/off"}
	p := &policy.Policy{Scope: rapid.SampledFrom(scopes).Draw(t, "scope"), Settings: engine.Settings{}}
	p.Metadata.Owner = texts.Draw(t, "owner")
	p.Metadata.ManagedBy = texts.Draw(t, "managed by")
	for _, m := range []*map[string]string{&p.Metadata.Labels, &p.Metadata.Annotations} {
		keys := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"on", "NO", "1.10", "a/b", "null", "a.b-c_d"}), 0, 3, rapid.ID).Draw(t, "keys")
		for _, k := range keys {
			if *m == nil {
				*m = map[string]string{}
			}
			(*m)[k] = texts.Draw(t, "value")
		}
	}
	for _, f := range engine.Fields() {
		if rapid.Bool().Draw(t, "has "+f.Path()) {
			p.Settings[f] = anyValue(t, f)
		}
	}
	// What breaks a rule is taken out, so that nearly every draw is a document.
	for range 5 {
		for _, v := range policy.Validate(p) {
			switch path := strings.TrimPrefix(v.Path, "spec."); {
			case path != v.Path:
				f, _ := engine.FieldByPath(path)
				delete(p.Settings, f)
			case v.Path == "metadata.owner":
				p.Metadata.Owner = ""
			case v.Path == "metadata.managedBy":
				p.Metadata.ManagedBy = ""
			default:
				p.Metadata.Labels, p.Metadata.Annotations = nil, nil
			}
		}
	}
	return p
}

// What is written can be read again and is the same, in both syntaxes.
func TestEncode_then_decode_is_the_same(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := anyPolicy(rt)
		if len(policy.Validate(p)) > 0 {
			rt.Skip("breaks a rule")
		}
		o := &document.Object{Policy: p}
		text, err := document.YAML(o)
		require.NoError(rt, err)
		back, err := document.Decode("f.yaml", text)
		require.NoError(rt, err, "%s", text)
		require.Equal(rt, p, back[0].Policy, "%s", text)
		again, err := document.YAML(back...)
		require.NoError(rt, err)
		require.Equal(rt, string(text), string(again))

		text, err = json.Marshal(o)
		require.NoError(rt, err)
		back, err = document.Decode("f.json", text)
		require.NoError(rt, err, "%s", text)
		require.Equal(rt, p, back[0].Policy, "%s", text)
	})
}

// The rules of text fields exclude most of what is hard, so the texts of descriptions get a
// property of their own.
func TestEncode_any_text_survives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := texts.Draw(rt, "text")
		p := &policy.Policy{Scope: "shop", Settings: engine.Settings{engine.Description: engine.Text(text)}}
		p.Metadata.Labels = map[string]string{"a": "b"}
		if len(policy.Validate(p)) > 0 {
			rt.Skip("breaks a rule")
		}
		out, err := document.YAML(&document.Object{Policy: p})
		require.NoError(rt, err)
		back, err := document.Decode("f.yaml", out)
		require.NoError(rt, err, "%s", out)
		require.Equal(rt, p, back[0].Policy, "%s", out)
	})
}

func TestEncode_policy_golden(t *testing.T) {
	at := time.Date(2026, 5, 4, 14, 4, 5, 0, time.UTC)
	p := &policy.Policy{
		Scope: "shop/payments", Revision: 1843,
		Metadata: policy.Metadata{
			Owner: "team-payments", Labels: map[string]string{"tier": "1"},
			CreatedBy: policy.Actor{Name: "alex", Via: "policyctl"}, CreatedAt: at,
		},
		Settings: engine.Settings{
			engine.MaxAttempts: engine.Int(3), engine.RetryOnHTTP: engine.Set("503", "5xx"),
			engine.HedgingEnabled: engine.Bool(false), engine.BudgetRatio: engine.Micro(100_000),
			engine.BreakerConsecutiveEnabled: engine.Bool(false), engine.BackoffBase: engine.Duration(100 * time.Millisecond),
		},
	}
	o := &document.Object{Policy: p, Status: &document.Status{Instances: &document.Instances{Target: 4, InForce: 3, Stale: 1}}}
	text, err := document.YAML(o)
	require.NoError(t, err)
	require.Equal(t, `apiVersion: policyd/v1
kind: RetryPolicy
metadata:
  scope: shop/payments
  owner: team-payments
  labels:
    tier: "1"
  revision: 1843
  createdAt: 2026-05-04T14:04:05Z
  createdBy: {name: alex, via: policyctl}
spec:
  maxAttempts: 3
  backoff:
    base: 100ms
  retryOn:
    http: [503, 5xx]
  budget:
    ratio: 0.1
  breaker:
    consecutive: off
  hedging: off
status:
  instances: {target: 4, inForce: 3, behind: 0, rejected: 0, stale: 1}
`, string(text))
	text, err = json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"policyd/v1","kind":"RetryPolicy",
		"metadata":{"scope":"shop/payments","owner":"team-payments","labels":{"tier":"1"},"revision":1843,
			"createdAt":"2026-05-04T14:04:05Z","createdBy":{"name":"alex","via":"policyctl"}},
		"spec":{"maxAttempts":3,"backoff":{"base":"100ms"},"retryOn":{"http":[503,"5xx"]},"budget":{"ratio":0.1},
			"breaker":{"consecutive":{"enabled":false}},"hedging":{"enabled":false}},
		"status":{"instances":{"target":4,"inForce":3,"behind":0,"rejected":0,"stale":1}}}`, string(text))
}

func TestEncode_switch_can_be_read_again(t *testing.T) {
	sw := &document.Switch{Revision: 9}
	sw.ID, sw.Action, sw.Scope = "inc-1", engine.ForceOpen, "shop"
	sw.Except, sw.Percent, sw.Admit = []engine.Scope{"shop/a"}, 50, 200_000
	sw.Criticality, sw.Reason, sw.Incident = engine.Standard, "off", "INC-1"
	sw.Restore, sw.Drill = 0, true
	sw.Ends = time.Date(2026, 5, 4, 14, 34, 5, 123, time.UTC)
	sw.Phase = policy.PhaseActive
	text, err := document.YAML(&document.Object{Switch: sw, Status: &document.Status{Phase: sw.Phase}})
	require.NoError(t, err)
	back := decode(t, string(text))[0].Switch
	want := *sw
	want.Phase, want.Revision = "", 0
	require.Equal(t, &want, back)
}

func TestAnyYAML_keeps_order_and_types(t *testing.T) {
	text, err := document.AnyYAML(struct {
		B string  `json:"b"`
		A int     `json:"a"`
		R float64 `json:"r"`
		L []any   `json:"l"`
		N *int    `json:"none"`
	}{"off", 3, 0.5, []any{"x", true}, nil})
	require.NoError(t, err)
	require.Equal(t, "b: \"off\"\na: 3\nr: 0.5\nl:\n  - x\n  - true\nnone: null\n", string(text))
}

func FuzzDecode(f *testing.F) {
	demo, err := os.ReadFile("../demo/policies.yaml")
	require.NoError(f, err)
	f.Add(string(demo), false)
	f.Add(policyAt("shop", "  hedging: off\n  retryOn: {http: [5xx, 503]}\n"), false)
	f.Add("--- # note\n\n...\n%YAML 1.2\n---\n", false)
	f.Add("a: &a [*a]\n", false)
	f.Add("? [a]\n: b\n", false)
	f.Add(`{"apiVersion":"policyd/v1","kind":"List","items":[{"kind":"RetryPolicy"}]}`, true)
	f.Add("apiVersion: policyd/v1\nkind: KillSwitch\nmetadata: {name: a}\nspec: {action: force-open, scope: a, expiresIn: 1h, reason: x}\n", false)
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		file := "f.yaml"
		if isJSON {
			file = "f.json"
		}
		objects, err := document.Decode(file, []byte(text))
		if err != nil {
			if !strings.Contains(err.Error(), file+":") {
				t.Fatalf("no place in %q", err)
			}
			return
		}
		out, err := document.YAML(objects...)
		if err != nil {
			t.Fatal(err)
		}
		back, err := document.Decode("f.yaml", out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		again, err := document.YAML(back...)
		if err != nil || string(again) != string(out) {
			t.Fatalf("not stable: %v\n%s\n%s", err, out, again)
		}
	})
}
