// SPDX-License-Identifier: Apache-2.0

package document_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/document"
)

var now = time.Date(2026, 5, 4, 14, 0, 0, 0, time.UTC)

const exported = `{
  "apiVersion": "policyd/v1",
  "kind": "List",
  "revision": 1843,
  "items": [
    {
      "apiVersion": "policyd/v1",
      "kind": "RetryPolicy",
      "metadata": {
        "scope": "shop/payments", "owner": "team-payments", "labels": {"criticality": "critical", "tier": "1"},
        "annotations": {"runbook": "https://wiki.example"}, "managedBy": "ci", "revision": 1790,
        "createdAt": "2026-05-01T00:00:00Z", "createdBy": {"name": "alex", "via": "policyctl"},
        "updatedAt": "2026-05-01T00:00:00Z", "updatedBy": {"name": "alex", "via": "policyctl"}
      },
      "spec": {
        "maxAttempts": 4,
        "backoff": {"base": "100ms", "max": "2s", "multiplier": 1.5, "jitter": "equal"},
        "retryOn": {"http": [429, "5xx"], "network": ["reset"]},
        "budget": {"ratio": 0.05, "tokens": "off"},
        "breaker": {"consecutive": false, "recover": {"over": 0}},
        "fallback": "off"
      },
      "status": {"anything": [1, null]}
    },
    {
      "apiVersion": "policyd/v1",
      "kind": "KillSwitch",
      "metadata": {"name": "inc-2481", "revision": 1843},
      "spec": {
        "action": "tighten-budget", "factor": 0.25, "scope": "shop", "except": ["shop/refunds"], "percent": 50,
        "criticality": "standard", "expiresAt": "2026-05-04T14:34:05Z", "incident": "INC-2481", "reason": "brown-out",
        "restore": {"over": "5m"}, "drill": false
      }
    }
  ]
}`

func TestParse_reads_what_policyctl_exports(t *testing.T) {
	file, err := document.Parse([]byte(exported), now)
	if err != nil {
		t.Fatal(err)
	}
	if file.Revision != 1843 || len(file.Documents) != 1 || len(file.Switches) != 1 {
		t.Fatalf("file %+v", file)
	}
	d := file.Documents[0]
	if d.Scope != "shop/payments" || d.Revision != 1790 || d.Criticality != engine.Critical {
		t.Errorf("document %+v", d)
	}
	for f, want := range map[engine.Field]engine.Value{
		engine.MaxAttempts:               engine.Int(4),
		engine.BackoffBase:               engine.Duration(100 * time.Millisecond),
		engine.BackoffMultiplier:         engine.Micro(1_500_000),
		engine.BackoffJitter:             engine.Enum("equal"),
		engine.RetryOnHTTP:               engine.Set("429", "5xx"),
		engine.BudgetRatio:               engine.Micro(50_000),
		engine.BudgetTokensEnabled:       engine.Bool(false),
		engine.BreakerConsecutiveEnabled: engine.Bool(false),
		engine.BreakerRecoverOver:        engine.Duration(0),
		engine.FallbackMode:              engine.Enum("none"),
	} {
		if got, ok := d.Settings[f]; !ok || !got.Equal(want) {
			t.Errorf("%s = %v, want %v", f, got, want)
		}
	}
	if got := len(d.Settings); got != 12 {
		t.Errorf("%d settings, want 12: %v", got, d.Settings)
	}
	sw := file.Switches[0]
	if sw.ID != "inc-2481" || sw.Factor != 250_000 || sw.Percent != 50 || sw.Criticality != engine.Standard ||
		!sw.Ends.Equal(time.Date(2026, 5, 4, 14, 34, 5, 0, time.UTC)) || sw.Restore != 5*time.Minute || len(sw.Except) != 1 {
		t.Errorf("switch %+v", sw)
	}
}

func TestParse_reads_a_single_document(t *testing.T) {
	file, err := document.Parse([]byte(policy(`{"maxAttempts": 2}`)), now)
	if err != nil || len(file.Documents) != 1 || file.Documents[0].Settings[engine.MaxAttempts].Int != 2 {
		t.Fatalf("file %+v, error %v", file, err)
	}
}

func TestParse_leaves_out_switches_that_are_over(t *testing.T) {
	file, err := document.Parse([]byte(exported), now.Add(time.Hour))
	if err != nil || len(file.Switches) != 0 {
		t.Fatalf("switches %+v, error %v", file.Switches, err)
	}
}

func policy(spec string) string {
	return "{\n \"apiVersion\": \"policyd/v1\",\n \"kind\": \"RetryPolicy\",\n \"metadata\": {\"scope\": \"shop\"},\n \"spec\": " + spec + "\n}"
}

func killSwitch(spec string) string {
	return `{"apiVersion":"policyd/v1","kind":"KillSwitch","metadata":{"name":"ks-1"},"spec":` + spec + `}`
}

func TestParse_says_what_is_wrong_and_where(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":                  {"", "line 1, column 1: not valid JSON: it ends too early"},
		"cut off":                {"{\n\"kind\": ", "line 2, column 9: not valid JSON: it ends too early"},
		"not JSON":               {"{\n  kind: x}", "line 2, column 3: not valid JSON: invalid character 'k'"},
		"not UTF-8":              {"{\n\"\xff\": 1}", "line 2, column 2: not UTF-8"},
		"two documents":          {policy(`{}`) + "\n{}", "line 7, column 1: something follows the document"},
		"no document":            {`[]`, "line 1, column 1: a document is due, with apiVersion, kind, metadata and spec, not a list"},
		"another version":        {`{"apiVersion": "policyd/v2"}`, `line 1, column 16: apiVersion is "policyd/v2": only "policyd/v1" is known`},
		"no kind":                {`{"apiVersion": "policyd/v1"}`, "kind is missing: RetryPolicy or KillSwitch"},
		"a kind misspelt":        {`{"kind": "RetryPolcy"}`, `unknown kind "RetryPolcy" (did you mean "RetryPolicy"?)`},
		"a key misspelt":         {policy("{\n  \"maxAttempt\": 2}"), `line 6, column 3: unknown field "maxAttempt" in spec (did you mean "maxAttempts"?)`},
		"a key of a block":       {policy(`{"backoff": {"bas": "1s"}}`), `unknown field "bas" in spec.backoff (did you mean "base"?)`},
		"a key twice":            {policy("{\n  \"maxAttempts\": 2,\n  \"maxAttempts\": 3}"), `line 7, column 3: duplicate field "maxAttempts": it is on line 6 already`},
		"text for a number":      {policy(`{"maxAttempts": "2"}`), `line 5, column 26: spec.maxAttempts: a whole number is due, not "2"`},
		"a fraction":             {policy(`{"maxAttempts": 2.5}`), "spec.maxAttempts: a whole number is due, not 2.5"},
		"a bare duration":        {policy(`{"backoff": {"base": 100}}`), "spec.backoff.base: a duration with its unit, such as 800ms, is due, not 100"},
		"a duration of no unit":  {policy(`{"backoff": {"base": "100"}}`), "spec.backoff.base: a duration with its unit"},
		"a negative duration":    {policy(`{"backoff": {"base": "-1s"}}`), "spec.backoff.base: a duration with its unit"},
		"too many digits":        {policy(`{"budget": {"ratio": 0.12345678}}`), "spec.budget.ratio: a number with at most 6 digits after the point is due"},
		"an unknown word":        {policy(`{"backoff": {"jitter": "ful"}}`), `spec.backoff.jitter: unknown word "ful" (did you mean "full"?)`},
		"null":                   {policy(`{"maxAttempts": null}`), "spec.maxAttempts: a whole number is due, not null"},
		"a block that is a word": {policy(`{"breaker": "on"}`), `spec.breaker: a block is due, not "on"`},
		"a block never off":      {policy(`{"backoff": "off"}`), "spec.backoff cannot be off"},
		"a word for a list":      {policy(`{"retryOn": {"http": 503}}`), "spec.retryOn.http: a list is due, not 503"},
		"a bound":                {policy("{\n\"budget\": {\n  \"ratio\": 7}}"), "line 7, column 12: spec.budget.ratio 7: "},
		"a bad scope":            {strings.Replace(policy(`{}`), `"shop"`, `"Shop"`, 1), `line 4, column 24: metadata.scope: scope "Shop"`},
		"no scope":               {strings.Replace(policy(`{}`), `"scope": "shop"`, ``, 1), "metadata.scope is missing"},
		"no spec":                {`{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"shop"}}`, "spec is missing"},
		"a bad criticality":      {strings.Replace(policy(`{}`), `"scope"`, `"labels": {"criticality": "high"}, "scope"`, 1), `metadata.labels.criticality: "high"`},
		"nested too deep":        {strings.Repeat("[", 20), "nested too deep"},
		"a scope twice":          {list(policy(`{}`), policy(`{}`)), "a second policy for shop"},
		"a list in a list":       {list(list()), `unknown kind "List"`},
		"a key of a list":        {`{"kind": "List", "item": []}`, `unknown field "item" in the document (did you mean "items"?)`},
		"a switch without end":   {killSwitch(`{"action":"disable-retries","scope":"shop","reason":"x"}`), "spec.expiresAt is missing"},
		"a switch from now on":   {killSwitch(`{"expiresIn":"30m"}`), "spec.expiresIn counts from a moment that a file does not have"},
		"a switch for too long":  {killSwitch(`{"action":"disable-retries","scope":"shop","reason":"x","expiresAt":"2027-01-01T00:00:00Z"}`), "expiresAt"},
		"a switch of no kind":    {killSwitch(`{"action":"disable","scope":"shop","reason":"x","expiresAt":"2026-05-04T15:00:00Z"}`), "spec.action disable: must be one of"},
		"a time of no form":      {killSwitch(`{"expiresAt":"tomorrow"}`), `spec.expiresAt: a time such as 2026-05-04T14:34:05Z is due, not "tomorrow"`},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := document.Parse([]byte(c.in), now)
			var located *document.Error
			if file != nil || !errors.As(err, &located) {
				t.Fatalf("file %+v, error %v", file, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %q\n want %q", err, c.want)
			}
		})
	}
}

func list(items ...string) string {
	return fmt.Sprintf(`{"apiVersion":"policyd/v1","kind":"List","items":[%s]}`, strings.Join(items, ","))
}

func TestParse_refuses_documents_over_the_limits(t *testing.T) {
	long := policy(`{"description": "` + strings.Repeat("x", engine.MaxDocumentBytes) + `"}`)
	if _, err := document.Parse([]byte(long), now); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("error %v", err)
	}
	many := policy(`{"idempotency": {"methods": [` + strings.Repeat(`"GET",`, engine.MaxListItems) + `"GET"]}}`)
	if _, err := document.Parse([]byte(many), now); err == nil || !strings.Contains(err.Error(), "at most 500") {
		t.Errorf("error %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(exported))
	f.Add([]byte(policy(`{"maxAttempts": 2}`)))
	f.Add([]byte(list(killSwitch(`{"action":"force-open","admit":0.1,"scope":"shop","reason":"x","expiresAt":"2026-05-04T15:00:00Z"}`))))
	f.Add([]byte(`{"a":[{}, [], "\ud800", 1e999, true, null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := document.Parse(data, now)
		if err != nil {
			var located *document.Error
			if !errors.As(err, &located) || located.Line < 1 || located.Column < 1 {
				t.Fatalf("error without a place: %v", err)
			}
			return
		}
		for _, d := range file.Documents {
			if v := engine.Validate(d.Scope, d.Settings); len(v) > 0 {
				t.Fatalf("took a document that breaks %+v", v)
			}
		}
	})
}
