// SPDX-License-Identifier: Apache-2.0

package document_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

const head = "apiVersion: policyd/v1\nkind: RetryPolicy\n"

// policyAt is a document with one policy; the spec starts on line 5.
func policyAt(scope, spec string) string {
	return head + "metadata: {scope: " + scope + "}\nspec:\n" + spec
}

func decode(t *testing.T, text string) []*document.Object {
	t.Helper()
	objects, err := document.Decode("f.yaml", []byte(text))
	require.NoError(t, err)
	return objects
}

// refused returns the errors of a stream that must not be accepted.
func refused(t *testing.T, file, text string) *document.StreamError {
	t.Helper()
	objects, err := document.Decode(file, []byte(text))
	require.Error(t, err)
	require.Empty(t, objects)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	var errs *document.StreamError
	require.ErrorAs(t, err, &errs)
	return errs
}

func TestO_CL_04_every_document_of_a_stream_is_read(t *testing.T) {
	one := func(scope string) string { return head + "metadata: {scope: " + scope + "}\nspec: {maxAttempts: 2}\n" }
	stream := one("a") + "--- # note\n" + one("b") + "---   \n" + one("c") + "---\n# nothing\n---\n...\n"
	objects := decode(t, stream)
	require.Len(t, objects, 3)
	for i, want := range []string{"a", "b", "c"} {
		require.Equal(t, want, objects[i].Name())
	}
	require.Equal(t, "f.yaml:13:1", objects[2].Position("metadata"), "lines count from the start of the stream")
	windows := decode(t, strings.ReplaceAll(stream, "\n", "\r\n"))
	require.Len(t, windows, 3)
	require.Len(t, decode(t, "--- {apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: a}, spec: {}}\n"+"---\n"+one("b")), 2)
	require.Empty(t, decode(t, "# only a comment\n---\n---\n"))
	require.Empty(t, decode(t, ""))
}

func TestO_CL_05_repeated_keys_are_named_with_both_lines(t *testing.T) {
	text := policyAt("shop", "  maxAttempts: 3\n  backoff: {base: 1s}\n  maxAttempts: 5\nspec: {}\n")
	errs := refused(t, "f.yaml", text)
	require.Equal(t, `f.yaml:7:3: duplicate field "maxAttempts" in spec: it is on line 5 already`, errs.List[0].Error())
	require.Equal(t, `f.yaml:8:1: duplicate field "spec" in the document: it is on line 4 already`, errs.List[1].Error())
	json := `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"a","scope":"b"},"spec":{}}`
	require.Contains(t, refused(t, "f.json", json).Error(), `f.json:1:73: duplicate field "scope"`)
}

func TestO_CL_06_durations_need_a_unit(t *testing.T) {
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "1h30m": 90 * time.Minute, `"30s"`: 30 * time.Second, "0": 0, "0s": 0, "800ms": 800 * time.Millisecond} {
		t.Run("accepts "+text, func(t *testing.T) {
			o := decode(t, policyAt("shop", "  breaker: {recover: {over: "+map[bool]string{true: text, false: "1s"}[want <= time.Minute]+"}}\n  retryAfter: {max: 20s}\n"))
			require.NotEmpty(t, o)
			d, err := document.ParseDuration(strings.Trim(text, `"`))
			require.NoError(t, err)
			require.Equal(t, want, d)
		})
	}
	for text, says := range map[string]string{
		"30": "missing or bad unit", `"30"`: "missing or bad unit", "1.5": "missing or bad unit", "-1s": "negative",
		"30 s": "missing or bad unit", "30S": "missing or bad unit", "1e3s": "missing or bad unit",
		".nan": "missing or bad unit", "+5s": "missing or bad unit", "-1": "negative", "99999999h": "missing or bad unit",
	} {
		t.Run("refuses "+text, func(t *testing.T) {
			e := refused(t, "f.yaml", policyAt("shop", "  backoff:\n    max: "+text+"\n")).List[0]
			require.Equal(t, "spec.backoff.max", e.Path)
			require.Equal(t, 6, e.Line)
			require.Equal(t, 10, e.Column)
			require.Contains(t, e.Message, says)
		})
	}
	json := `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"a"},"spec":{"backoff":{"max":30}}}`
	require.Contains(t, refused(t, "f.json", json).Error(), "missing or bad unit")
}

func TestO_CL_07_words_stay_the_text_that_was_written(t *testing.T) {
	text := head + "metadata:\n  scope: shop\n  labels: {NO: off, y: NO, on: 1.10, 1.10: on, Off: ~x}\nspec:\n  description: yes\n"
	objects := decode(t, text)
	want := map[string]string{"NO": "off", "y": "NO", "on": "1.10", "1.10": "on", "Off": "~x"}
	require.Equal(t, want, objects[0].Policy.Metadata.Labels)
	require.Equal(t, "yes", objects[0].Policy.Settings[engine.Description].Text)
	for _, scope := range []string{"no", "y", "on", "1.10"} {
		require.Equal(t, scope, decode(t, head+"metadata: {scope: "+scope+"}\nspec: {}\n")[0].Name())
	}

	out, err := document.YAML(objects...)
	require.NoError(t, err)
	for _, quoted := range []string{`"NO": "off"`, `"y": "NO"`, `"on": "1.10"`, `"1.10": "on"`, `description: "yes"`} {
		require.Contains(t, string(out), quoted)
	}
	require.Equal(t, objects[0].Policy, decode(t, string(out))[0].Policy)
}

func TestO_SE_01_a_bomb_of_aliases_is_refused_cheaply(t *testing.T) {
	bomb := &strings.Builder{}
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(bomb, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	deep := strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000)
	many := head + "metadata: {scope: a}\nspec: {}\nx: [" + strings.Repeat("a,", 30_000) + "a]\n"
	cases := map[string]struct{ file, text string }{
		"nested aliases":      {"f.yaml", bomb.String()},
		"an alias in itself":  {"f.yaml", "a: &a [*a]\n"},
		"deep nesting":        {"f.yaml", deep},
		"deep nesting, JSON":  {"f.json", deep},
		"deep maps, JSON":     {"f.json", strings.Repeat(`{"a":`, 100_000)},
		"a wide list":         {"f.yaml", many},
		"a merge key":         {"f.yaml", head + "metadata: {scope: a}\nspec:\n  <<: {maxAttempts: 3}\n"},
		"a document too long": {"f.yaml", policyAt("a", "  description: "+strings.Repeat("x", 65<<10)+"\n")},
		"too long, JSON":      {"f.json", `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"a"},"spec":{"description":"` + strings.Repeat("x", 65<<10) + `"}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			errs := refused(t, tc.file, tc.text)
			runtime.ReadMemStats(&after)
			require.Positive(t, errs.List[0].Line)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
		})
	}
}

func TestDecode_a_few_aliases_are_fine(t *testing.T) {
	o := decode(t, head+"metadata: {scope: a, owner: &o team, labels: {owner: *o}}\nspec: {}\n")
	require.Equal(t, "team", o[0].Policy.Metadata.Labels["owner"])
}

func TestDecode_errors_have_place_and_suggestion(t *testing.T) {
	cases := map[string]struct{ spec, want string }{
		"an unknown key":           {"  retryon: {http: [429]}\n", `f.yaml:5:3: unknown field "retryon" in spec (did you mean "retryOn"?)`},
		"an unknown key inside":    {"  backoff: {bse: 1s}\n", `f.yaml:5:13: unknown field "bse" in spec.backoff (did you mean "base"?)`},
		"a key of another block":   {"  capacity: 3\n", `f.yaml:5:3: unknown field "capacity" in spec (did you mean "spec.budget.tokens.capacity"?)`},
		"text for a number":        {"  maxAttempts: many\n", `f.yaml:5:16: spec.maxAttempts: "many": a whole number is due`},
		"a quoted number":          {"  maxAttempts: \"3\"\n", `f.yaml:5:16: spec.maxAttempts: "3": a whole number is due, not text: remove the quotes`},
		"a fraction for a count":   {"  maxAttempts: 2.5\n", `f.yaml:5:16: spec.maxAttempts: "2.5": a whole number is due`},
		"an octal number":          {"  maxAttempts: 010\n", `f.yaml:5:16: spec.maxAttempts: "010": a whole number is due`},
		"a list for a number":      {"  maxAttempts: [3]\n", `f.yaml:5:16: spec.maxAttempts: a whole number is due, not a list`},
		"no value":                 {"  maxAttempts:\n  backoff: {base: 1s}\n", `f.yaml:5:15: spec.maxAttempts is empty: delete the line to inherit it`},
		"an empty block":           {"  backoff: {}\n", `f.yaml:5:12: spec.backoff is empty: delete the line to inherit it`},
		"not a number":             {"  budget: {ratio: .nan}\n", `f.yaml:5:19: spec.budget.ratio: ".nan": a number is due`},
		"infinity":                 {"  budget: {ratio: .inf}\n", `f.yaml:5:19: spec.budget.ratio: ".inf": a number is due`},
		"too many digits":          {"  budget: {ratio: 0.00000001}\n", `f.yaml:5:19: spec.budget.ratio: "0.00000001": at most 6 digits after the point count`},
		"out of bounds":            {"  maxAttempts: 11\n", `f.yaml:5:3: spec.maxAttempts 11: 1 to 10 (use 10 or less)`},
		"an unknown word":          {"  backoff: {jitter: ful}\n", `f.yaml:5:21: spec.backoff.jitter: "ful": unknown word (did you mean "full"?)`},
		"yes for a boolean":        {"  observe: yes\n", `f.yaml:5:12: spec.observe: "yes": write true or false`},
		"on for a block":           {"  hedging: on\n", `f.yaml:5:12: spec.hedging: a block is due, not "on" (one of enabled, after, max)`},
		"off for a block without":  {"  backoff: off\n", `f.yaml:5:12: spec.backoff cannot be off (one of base, max, multiplier, jitter)`},
		"one word for a list":      {"  retryOn: {network: connect}\n", `f.yaml:5:22: spec.retryOn.network: a list is due: [connect]`},
		"an unknown list item":     {"  retryOn: {grpc: [unavailble]}\n", `f.yaml:5:20: spec.retryOn.grpc: unknown word "unavailble" (did you mean "unavailable"?)`},
		"a code that never helps":  {"  retryOn: {http: [404]}\n", `f.yaml:5:13: spec.retryOn.http 404: only 408, 425, 429 and 5xx may be retried (another attempt would get the same answer)`},
		"a tag":                    {"  maxAttempts: !!int 3\n", `f.yaml:5:16: tag "!!int" is not supported`},
		"a tab":                    {"\tmaxAttempts: 3\n", `f.yaml:5:1: tab in the indentation: YAML wants blanks`},
		"a field at another level": {"  public: true\n", `f.yaml:5:3: spec.public true: may only stand at endpoint scope (move it to such a document)`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, refused(t, "f.yaml", policyAt("shop", tc.spec)).List[0].Error())
		})
	}
}

func TestDecode_envelope_errors(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"no block":           {"just text\n", "a document must be a block"},
		"another version":    {"apiVersion: policyd/v2\nkind: RetryPolicy\nmetadata: {scope: a}\nspec: {}\n", `1:13: apiVersion is "policyd/v2": only policyd/v1 is known`},
		"another kind":       {"apiVersion: policyd/v1\nkind: RetryPolic\nmetadata: {scope: a}\nspec: {}\n", `2:7: unknown kind "RetryPolic" (did you mean "RetryPolicy"?)`},
		"no spec":            {head + "metadata: {scope: a}\n", "spec is missing"},
		"no scope":           {head + "metadata: {owner: x}\nspec: {}\n", "metadata.scope is missing"},
		"a bad scope":        {head + "metadata: {scope: Shop}\nspec: {}\n", `3:19: metadata.scope: scope "Shop": segment "Shop" holds 'S'`},
		"field out of place": {head + "metadata: {scope: a}\nspec: {}\nmaxAttempts: 3\n", `5:1: unknown field "maxAttempts" in the document (did you mean "spec.maxAttempts"?)`},
		"a bad criticality":  {head + "metadata: {scope: a, labels: {criticality: high}}\nspec: {}\n", "metadata.labels.criticality high: must be critical, standard or sheddable"},
		"broken YAML":        {head + "metadata: {scope: a\nspec: {}\n", "not valid YAML"},
		"invalid UTF-8":      {head + "metadata: {scope: \xff}\nspec: {}\n", "3:19: not UTF-8"},
		"UTF-16":             {"\xff\xfea\x00p\x00", "1:1: not UTF-8"},
		"a list in a list":   {"apiVersion: policyd/v1\nkind: List\nitems: [{apiVersion: policyd/v1, kind: List, items: []}]\n", "a list cannot hold a list"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, refused(t, "f.yaml", tc.text).Error(), tc.want)
		})
	}
	for name, tc := range map[string]struct{ text, want string }{
		"cut off":       {`{"apiVersion":"policyd/v1"`, "f.json:1:27: not valid JSON: it ends too early"},
		"a stray comma": {"{\n  \"a\": 1,,\n}", "f.json:2:9: not valid JSON"},
		"number due":    {`{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":1},"spec":{}}`, `1:69: metadata.scope: text is due, not "1"`},
	} {
		t.Run("JSON "+name, func(t *testing.T) {
			require.Contains(t, refused(t, "f.json", tc.text).Error(), tc.want)
		})
	}
}

func TestDecode_reports_all_errors_of_all_documents_up_to_twenty(t *testing.T) {
	bad := policyAt("a", "  maxAttempts: x\n  nope: 1\n")
	errs := refused(t, "f.yaml", bad+"---\n: :\n---\n"+bad)
	require.Len(t, errs.List, 5)
	require.Equal(t, []int{5, 6, 7, 14, 15}, []int{errs.List[0].Line, errs.List[1].Line, errs.List[2].Line, errs.List[3].Line, errs.List[4].Line})

	errs = refused(t, "f.yaml", strings.Repeat(bad+"---\n", 15))
	require.Len(t, errs.List, 20)
	require.Equal(t, 10, errs.More)
	require.Contains(t, errs.Error(), "and 10 more errors")
}

func TestDecode_off_and_false_switch_a_block_off(t *testing.T) {
	for _, off := range []string{"off", "false", `"off"`} {
		s := decode(t, policyAt("shop", "  hedging: "+off+"\n  budget: {successGate: "+off+"}\n  fallback: "+off+"\n  breaker: "+off+"\n"))[0].Policy.Settings
		require.Equal(t, engine.Settings{
			engine.HedgingEnabled: engine.Bool(false), engine.BudgetSuccessGateEnabled: engine.Bool(false),
			engine.FallbackMode: engine.Enum("none"), engine.BreakerEnabled: engine.Bool(false),
		}, s)
	}
}

func TestDecode_sets_have_no_order_and_empty_is_not_absent(t *testing.T) {
	s := decode(t, policyAt("shop", "  retryOn: {http: [503, 5xx, 503, \"429\"], grpc: []}\n"))[0].Policy.Settings
	require.Equal(t, []string{"429", "503", "5xx"}, s[engine.RetryOnHTTP].Set)
	require.Contains(t, s, engine.RetryOnGRPC)
	require.NotContains(t, s, engine.RetryOnNetwork)
}

func TestDecode_percentages_are_ratios(t *testing.T) {
	s := decode(t, policyAt("shop", "  breaker: {reopen: {multiplier: 2, max: 2m, jitter: 10%}}\n"))[0].Policy.Settings
	require.Equal(t, engine.Micro(100_000), s[engine.BreakerReopenJitter])
	require.Contains(t, refused(t, "f.yaml", policyAt("shop", "  backoff: {multiplier: 10%}\n")).Error(), "a number is due")
}

func TestDecode_ignores_what_the_server_sets(t *testing.T) {
	text := head + `metadata:
  scope: shop
  revision: 12
  createdAt: 2026-05-04T14:04:05Z
  createdBy: {name: alex, via: policyctl}
  updatedAt: 2026-05-04T14:04:05Z
  updatedBy: {name: alex}
spec: {maxAttempts: 2}
status: {instances: {target: 1}}
`
	p := decode(t, text)[0].Policy
	require.Zero(t, p.Revision)
	require.Zero(t, p.Metadata)
}

func TestDecode_switch(t *testing.T) {
	text := `apiVersion: policyd/v1
kind: KillSwitch
metadata: {name: inc-2481}
spec:
  action: tighten-budget
  factor: 0.25
  scope: shop/payments
  except: [shop/payments/refunds.create]
  expiresIn: 30m
  incident: INC-2481
  reason: vendor down
`
	sw := decode(t, text)[0].Switch
	require.Equal(t, "inc-2481", sw.ID)
	require.Equal(t, 30*time.Minute, sw.ExpiresIn)
	require.EqualValues(t, 250_000, sw.Factor)
	require.Equal(t, 100, sw.Percent)
	require.Equal(t, 2*time.Minute, sw.Restore)

	cases := map[string]struct{ from, to, want string }{
		"an unknown action": {"tighten-budget", "tighten", `5:11: spec.action: unknown word "tighten"`},
		"no end":            {"  expiresIn: 30m\n", "", "set one of spec.expiresIn and spec.expiresAt"},
		"two ends":          {"  incident: INC-2481\n", "  expiresAt: 2026-05-04T14:34:05Z\n", "set one of spec.expiresIn and spec.expiresAt"},
		"a bare number":     {"30m", "30", "9:14: spec.expiresIn: \"30\": missing or bad unit"},
		"too long":          {"30m", "25h", "spec.expiresIn"},
		"no time at all":    {"30m", "0", "must be above 0"},
		"no factor":         {"  factor: 0.25\n", "", "spec.factor is missing"},
		"factor above one":  {"0.25", "1.5", "spec.factor 1.5: 0 to 1"},
		"except elsewhere":  {"shop/payments/refunds.create", "media", "must lie below the scope"},
		"an unknown key":    {"incident", "insident", `unknown field "insident" in spec (did you mean "incident"?)`},
		"no reason":         {"  reason: vendor down\n", "", "spec.reason is missing"},
		"percent of text":   {"  incident: INC-2481\n", "  percent: all\n", "spec.percent: \"all\": a whole number is due"},
		"a bad name":        {"inc-2481}", "INC 1}", "metadata.name INC 1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, refused(t, "f.yaml", strings.Replace(text, tc.from, tc.to, 1)).Error(), tc.want)
		})
	}
}

func TestDecode_json_and_yaml_lists(t *testing.T) {
	item := `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"%s"},"spec":{"maxAttempts":2,"retryOn":{"http":[503,"5xx"]}}}`
	list := `{"apiVersion":"policyd/v1","kind":"List","revision":7,"items":[` + fmt.Sprintf(item, "a") + "," + fmt.Sprintf(item, "b") + "]}"
	for _, file := range []string{"f.json", "stdin", "f.yaml"} {
		objects, err := document.Decode(file, []byte(list))
		require.NoError(t, err, file)
		require.Len(t, objects, 2, file)
	}
	two := fmt.Sprintf(item, "a") + "\n\t" + fmt.Sprintf(item, "b")
	objects, err := document.Decode("stdin", []byte(two))
	require.NoError(t, err)
	require.Len(t, objects, 2)
	require.Equal(t, "stdin:2:2", objects[1].Position(""))
}

func TestDecode_bom(t *testing.T) {
	require.Len(t, decode(t, "\ufeff"+policyAt("a", "  maxAttempts: 2\n")), 1)
}

func TestJoin_collects_errors_of_files(t *testing.T) {
	_, a := document.Decode("a.yaml", []byte("x\n"))
	_, b := document.Decode("b.yaml", []byte("y\n"))
	err := document.Join(a, nil, b)
	require.ErrorContains(t, err, "a.yaml:1:1: ")
	require.ErrorContains(t, err, "\nb.yaml:1:1: ")
	require.NoError(t, document.Join(nil, nil))
	other := errors.New("disk")
	require.ErrorIs(t, document.Join(a, other), other)
}

func TestExplain(t *testing.T) {
	for _, path := range []string{"policy.budget.successGate", "spec.budget.successGate", "budget.successGate", "RetryPolicy.budget.successGate"} {
		d, err := document.Explain(path)
		require.NoError(t, err, path)
		require.Equal(t, "policy.budget.successGate", d.Path)
		require.True(t, d.Off)
		require.Len(t, d.Fields, 5)
	}
	d, err := document.Explain("switch.factor")
	require.NoError(t, err)
	require.Equal(t, "ratio", d.Type)
	_, err = document.Explain("budget.ratioo")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Contains(t, f.Hint, "policy.budget.ratio")
	for _, path := range document.FieldPaths() {
		d, err := document.Explain(path)
		require.NoError(t, err, path)
		require.NotEmpty(t, d.Doc, path)
	}
}

func TestStarter_is_a_document(t *testing.T) {
	for _, scope := range []engine.Scope{"global", "shop", "shop/payments", "shop/payments/charges.create"} {
		text := string(document.Starter(scope, document.BuiltIn))
		o := decode(t, text)
		require.Equal(t, scope, o[0].Policy.Scope)
		// Each comment under spec is a line that can be used as it is.
		before, spec, ok := strings.Cut(text, "spec:\n")
		require.True(t, ok)
		var lines []string
		for line := range strings.Lines(spec) {
			lines = append(lines, strings.Replace(line, "  # ", "  ", 1))
		}
		full, err := document.Decode("f.yaml", []byte(before+"spec:\n"+strings.Join(lines, "")))
		require.NoError(t, err, scope)
		require.Greater(t, len(full[0].Policy.Settings), 40)
	}
	global := decode(t, string(document.Starter(engine.Global, document.BuiltIn)))[0].Policy.Settings
	require.Equal(t, engine.Int(5), global[engine.BreakerConsecutiveFailures])
	require.Equal(t, engine.Micro(500_000), global[engine.BreakerRatioFailures])
}

func TestDecode_tells_the_revision_that_a_policy_states(t *testing.T) {
	text := "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop%s}\nspec: {maxAttempts: 2}\n"
	for written, want := range map[string]policy.Revision{"": 0, ", revision: 23": 23} {
		objects, err := document.Decode("f.yaml", []byte(fmt.Sprintf(text, written)))
		require.NoError(t, err)
		require.Equal(t, want, objects[0].Revision)
	}
	require.Contains(t, refused(t, "f.yaml", fmt.Sprintf(text, ", revision: newest")).Error(), `f.yaml:3:35: metadata.revision: "newest": a whole number is due`)
}
