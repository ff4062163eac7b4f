// SPDX-License-Identifier: Apache-2.0

package document_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/document"
)

func TestParseYAML_reads_every_way_of_writing_the_same(t *testing.T) {
	ways := map[string]string{
		"blocks": `
# a comment
apiVersion: policyd/v1   # another
kind: RetryPolicy
metadata:
  scope: shop/payments
  labels:
    criticality: critical
    tier: 1
spec:
  maxAttempts: 4
  backoff:
    base: 100ms
    jitter: equal
  retryOn:
    http:
    - 429
    - "5xx"
    network:
      - reset
  budget: {ratio: 5%, tokens: off}
`,
		"braces": `{apiVersion: policyd/v1, kind: RetryPolicy,
metadata: {scope: shop/payments, labels: {criticality: critical, tier: "1"}},
  spec: {maxAttempts: 4, backoff: {base: 100ms, jitter: equal,},
    retryOn: {http: [429, 5xx], network: [ reset ]}, # inside
    budget: {ratio: 0.05, tokens: false}}}`,
		"JSON": `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"shop/payments","labels":{"criticality":"critical","tier":"1"}},
"spec":{"maxAttempts":4,"backoff":{"base":"100ms","jitter":"equal"},"retryOn":{"http":[429,"5xx"],"network":["reset"]},"budget":{"ratio":5e-2,"tokens":"off"}}}`,
		"quotes":        "--- \n'apiVersion': 'policyd/v1'\n\"kind\" : \"Retry\\u0050olicy\"\nmetadata: {'scope':shop/payments, labels: {criticality: critical}}\nspec:\n  maxAttempts: 4\n  backoff: {base: 100ms, jitter: equal}\n  retryOn: {http: ['429', '5xx'], network: [reset]}\n  budget: {ratio: 0.050, tokens: {enabled: false}}\n...\n",
		"carriage ends": "apiVersion: policyd/v1\r\nkind: RetryPolicy\r\nmetadata:\r\n  scope: shop/payments\r\n  labels: {criticality: critical}\r\nspec:\r\n  maxAttempts: 4\r\n  backoff: {base: 100ms, jitter: equal}\r\n  retryOn: {http: [429, 5xx], network: [reset]}\r\n  budget: {ratio: 0.05, tokens: off}\r\n",
	}
	for name, text := range ways {
		t.Run(name, func(t *testing.T) {
			file, err := document.ParseYAML([]byte(text), now)
			if err != nil {
				t.Fatal(err)
			}
			if len(file.Documents) != 1 {
				t.Fatalf("%d documents", len(file.Documents))
			}
			d := file.Documents[0]
			want := engine.Settings{
				engine.MaxAttempts: engine.Int(4), engine.BackoffBase: engine.Duration(100 * time.Millisecond),
				engine.BackoffJitter: engine.Enum("equal"), engine.RetryOnHTTP: engine.Set("429", "5xx"),
				engine.RetryOnNetwork: engine.Set("reset"), engine.BudgetRatio: engine.Micro(50_000),
				engine.BudgetTokensEnabled: engine.Bool(false),
			}
			if d.Scope != "shop/payments" || d.Criticality != engine.Critical || len(d.Settings) != len(want) {
				t.Fatalf("got %+v", d)
			}
			for f, v := range want {
				if !d.Settings[f].Equal(v) {
					t.Errorf("%s is %v, want %v", f.Path(), d.Settings[f], v)
				}
			}
		})
	}
}

func TestParseYAML_reads_streams_and_texts_of_several_lines(t *testing.T) {
	file, err := document.ParseYAML([]byte(`---
# only a comment
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: global}
spec:
  description: |
    Two lines,
      kept: "as they are". # also this

    And a third.
  maxAttempts: 2
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop}
spec:
  description: >-
    one
    line
---
apiVersion: policyd/v1
kind: KillSwitch
metadata: {name: ks-1}
spec: {action: disable-retries, scope: shop, expiresIn: 30m, reason: test, incident: 2481}
`), now)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Documents) != 2 || len(file.Switches) != 1 {
		t.Fatalf("got %+v", file)
	}
	if got, want := file.Documents[0].Settings[engine.Description].Text, "Two lines,\n  kept: \"as they are\". # also this\n\nAnd a third.\n"; got != want {
		t.Errorf("kept text %q, want %q", got, want)
	}
	if got := file.Documents[1].Settings[engine.Description].Text; got != "one line" {
		t.Errorf("folded text %q", got)
	}
	if sw := file.Switches[0]; !sw.Ends.Equal(now.Add(30*time.Minute)) || sw.Incident != "2481" {
		t.Errorf("switch %+v", sw)
	}
	if file, err := document.ParseYAML(nil, now); err != nil || len(file.Documents) != 0 {
		t.Errorf("nothing: %+v, %v", file, err)
	}
}

func TestParseYAML_refuses_what_could_be_misunderstood(t *testing.T) {
	const head = "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop}\n"
	cases := []struct{ name, text, want string }{
		{"an unknown field", head + "spec: {maxAttemps: 3}", `line 4, column 8: unknown field "maxAttemps" in spec (did you mean "maxAttempts"?)`},
		{"a repeated field", head + "spec:\n  maxAttempts: 3\n  maxAttempts: 4", `line 6, column 3: duplicate field "maxAttempts": it is on line 5 already`},
		{"a repeated field in braces", head + "spec: {maxAttempts: 3, maxAttempts: 4}", "line 4, column 24: duplicate field"},
		{"a tab", head + "spec:\n\tmaxAttempts: 3", "line 5, column 1: tab in the indentation"},
		{"indentation below a value", head + "spec:\n  maxAttempts: 3\n    backoff: {base: 1s}", "line 6, column 5: bad indentation"},
		{"a dedent to nowhere", head + "spec:\n    maxAttempts: 3\n  backoff: {base: 1s}", "line 6, column 3: bad indentation"},
		{"an open brace", head + "spec: {maxAttempts: 3", "line 4, column 7: this brace is never closed"},
		{"a missing comma", head + "spec: {backoff: {base: 1s} maxAttempts: 3}", "line 4, column 28: a comma or \"}\" is due"},
		{"an open quote", head + "spec: {description: \"x}", "the quote is not closed on its line"},
		{"an unknown escape", head + `spec: {description: "\q"}`, "unknown escape"},
		{"an anchor", head + "spec: &a {maxAttempts: 3}", "anchors and aliases are not supported"},
		{"an alias", head + "spec: *a", "anchors and aliases are not supported"},
		{"a tag", head + "spec: !!map {}", "tags are not supported"},
		{"a second colon", head + "spec:\n  description: a: b", "line 5, column 16: a second colon"},
		{"a word after a quote", head + "spec:\n  description: \"a\" b", "a stray word"},
		{"a stray line", head + "spec: {maxAttempts: 3}\nnonsense", "line 5, column 1: a key with a colon is due"},
		{"a key without its space", head + "spec:\n  maxAttempts:3", "spec: a block is due, not \"maxAttempts:3\""},
		{"a word for a number", head + "spec: {maxAttempts: three}", "spec.maxAttempts: a whole number is due, not \"three\""},
		{"a quoted number", head + "spec: {maxAttempts: \"3\"}", "spec.maxAttempts: a whole number is due, not \"3\""},
		{"a number without a unit", head + "spec: {backoff: {base: 100}}", "spec.backoff.base: a duration with its unit"},
		{"a percentage of no share", head + "spec: {backoff: {multiplier: 200%}}", "spec.backoff.multiplier: a number is due"},
		{"an empty spec", head + "spec:", "spec: a block is due, not null"},
		{"an octal number", head + "spec: {maxAttempts: 0o3}", "a whole number is due"},
		{"a directive", "%YAML 1.2\n---\n" + head, "directives are not supported"},
		{"not UTF-8", head + "spec: {description: \"\xff\"}", "not UTF-8"},
		{"a deep nest", strings.Repeat("[", 100), "nested too deep"},
		{"a deep nest of lists", strings.Repeat("- ", 100) + "x", "nested too deep"},
		{"a switch without an end", "apiVersion: policyd/v1\nkind: KillSwitch\nmetadata: {name: a}\nspec: {action: disable-retries, scope: shop, reason: x}", "spec.expiresAt is missing"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := document.ParseYAML([]byte(c.text), now)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			var placed *document.Error
			if !errors.As(err, &placed) || placed.Line < 1 || placed.Column < 1 {
				t.Errorf("no place in %v", err)
			}
		})
	}
}

func TestParseFile_reads_JSON_and_YAML(t *testing.T) {
	const doc = "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop/payments}\nspec: {maxAttempts: 4}\n"
	for name, c := range map[string]struct {
		in, err   string
		documents int
	}{
		"YAML":                    {"# ours\n" + doc, "", 1},
		"a stream":                {doc + "---\n" + strings.ReplaceAll(doc, "payments", "search"), "", 2},
		"YAML in braces":          {"{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {maxAttempts: 4}}", "", 1},
		"JSON":                    {policy(`{"maxAttempts": 4}`), "", 1},
		"a List without items":    {"apiVersion: policyd/v1\nkind: List\nitems: []\n", "", 0},
		"JSON that is cut off":    {"{\n\"kind\": ", "not valid JSON: it ends too early", 0},
		"empty":                   {"", "there is no document", 0},
		"only a comment":          {"# soon\n---\n", "there is no document", 0},
		"a switch without an end": {"{apiVersion: policyd/v1, kind: KillSwitch, metadata: {name: ks-1}, spec: {action: disable-retries, scope: shop, expiresIn: 1h, reason: r}}", "set expiresAt", 0},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := document.ParseFile([]byte(c.in), now)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || len(file.Documents) != c.documents {
				t.Fatalf("%v, %+v", err, file)
			}
		})
	}
}

func FuzzParseYAML(f *testing.F) {
	f.Add("a: {b: [1, 'x', \"y\"]}\nc:\n- d: |\n    e\n- - f\n---\ng: >+\n  h\n\n")
	f.Add(exported)
	f.Add("apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop}\nspec: {maxAttempts: 3} # x\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := document.ParseYAML([]byte(text), now)
		if (file == nil) == (err == nil) {
			t.Fatalf("file %v, error %v", file, err)
		}
		// JSON that can be read as such reads the same as YAML.
		if want, err := document.Parse([]byte(text), now); err == nil && !strings.Contains(text, "\t") && !strings.Contains(text, `\u`) {
			if file == nil || len(file.Documents) != len(want.Documents) || len(file.Switches) != len(want.Switches) {
				t.Fatalf("as JSON %+v, as YAML %+v", want, file)
			}
		}
	})
}

func TestParseFile_a_YAML_list_gives_its_revision(t *testing.T) {
	const text = "apiVersion: policyd/v1\nkind: List\nrevision: 7\nitems:\n- {apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {maxAttempts: 4}}\n"
	file, err := document.ParseFile([]byte(text), now)
	if err != nil || len(file.Documents) != 1 || file.Documents[0].Revision != 7 {
		t.Errorf("%+v, %v", file, err)
	}
}
