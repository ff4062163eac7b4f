// SPDX-License-Identifier: Apache-2.0

package document

import (
	"slices"
	"strings"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/sdk/go/engine"
)

// FieldDoc describes a field or a block of documents.
type FieldDoc struct {
	// Path as operators type it: "policy.budget.ratio", "switch.factor".
	Path string `json:"path"`
	// Type is a word such as duration, ratio or block.
	Type    string   `json:"type"`
	Doc     string   `json:"doc,omitempty"`
	Default string   `json:"default,omitempty"`
	Min     string   `json:"min,omitempty"`
	Max     string   `json:"max,omitempty"`
	Words   []string `json:"words,omitempty"`
	// Scopes are the levels where the field may stand; empty: all.
	Scopes []string `json:"scopes,omitempty"`
	// Off: the block can be written as off.
	Off bool `json:"off,omitempty"`
	// Inherited is false for fields that say something of their own document only.
	Inherited bool       `json:"inherited"`
	Fields    []FieldDoc `json:"fields,omitempty"`
}

// Explain describes the field or block at a path, with everything below it. The empty path
// describes both kinds of documents. An unknown path is a fault of kind NotFound.
func Explain(path string) (FieldDoc, error) {
	trimmed := strings.TrimSuffix(path, ".")
	if trimmed == "" {
		return FieldDoc{Type: "kinds", Fields: []FieldDoc{explainPolicy(), explainSwitch()}}, nil
	}
	root, below, _ := strings.Cut(trimmed, ".")
	at, name := explainPolicy(), "policy"
	switch root {
	case "policy", KindPolicy, "retrypolicy":
	case "switch", KindSwitch, "killswitch":
		at, name = explainSwitch(), "switch"
	case "spec":
	default:
		below = trimmed
	}
	below = strings.TrimPrefix(below+".", "spec.")
	for _, key := range strings.Split(strings.TrimSuffix(below, "."), ".") {
		if key == "" {
			break
		}
		i := slices.IndexFunc(at.Fields, func(f FieldDoc) bool { return f.Path == at.Path+"."+key })
		if i < 0 {
			return FieldDoc{}, unknownField(path, name)
		}
		at = at.Fields[i]
	}
	return at, nil
}

func unknownField(path, kind string) error {
	err := fault.New(fault.NotFound, "unknown_field", "there is no field %q", path)
	candidates := FieldPaths()
	for _, prefix := range []string{"", kind + "."} {
		if near := Suggest(prefix+path, candidates); near != "" {
			return err.WithHint("Did you mean %s?", near)
		}
	}
	last := path[strings.LastIndexByte(path, '.')+1:]
	for _, c := range candidates {
		if strings.EqualFold(c[strings.LastIndexByte(c, '.')+1:], last) {
			return err.WithHint("Did you mean %s?", c)
		}
	}
	return err.WithHint("policyctl explain %s --recursive lists all.", kind)
}

// FieldPaths returns the path of every field and block that Explain knows.
func FieldPaths() []string {
	var paths []string
	var walk func(FieldDoc)
	walk = func(f FieldDoc) {
		paths = append(paths, f.Path)
		for _, inner := range f.Fields {
			walk(inner)
		}
	}
	walk(explainPolicy())
	walk(explainSwitch())
	return paths
}

func explainPolicy() FieldDoc {
	return explainBlock(schema())
}

func explainBlock(b *block) FieldDoc {
	d := FieldDoc{Path: "policy", Type: "block", Doc: blockDocs()[b.path], Off: b.off != 0, Inherited: true}
	if b.path != "" {
		d.Path += "." + b.path
	}
	for _, key := range b.keys {
		if inner, ok := b.blocks[key]; ok {
			d.Fields = append(d.Fields, explainBlock(inner))
		} else {
			d.Fields = append(d.Fields, explainField(b.fields[key]))
		}
	}
	return d
}

func explainField(f engine.Field) FieldDoc {
	s := f.Spec()
	d := FieldDoc{
		Path: "policy." + s.Path, Type: typeWord(s), Doc: s.Doc, Words: s.Words,
		Inherited: !s.Own,
	}
	if s.Default != nil {
		d.Default = s.Default.String()
	}
	if s.Bounded {
		d.Min = engine.Value{Kind: s.Kind, Int: s.Min}.String()
		d.Max = engine.Value{Kind: s.Kind, Int: s.Max}.String()
	}
	if s.From != engine.LevelGlobal || s.To != engine.LevelEndpoint {
		for l := s.From; l <= s.To; l++ {
			d.Scopes = append(d.Scopes, l.String())
		}
	}
	return d
}

func typeWord(s *engine.FieldSpec) string {
	switch s.Kind {
	case engine.KindBool:
		return "boolean"
	case engine.KindInt:
		return "integer"
	case engine.KindDecimal:
		if s.Bounded && s.Min >= 0 && s.Max == engine.Million {
			return "ratio"
		}
		return "number"
	case engine.KindDuration:
		return "duration"
	case engine.KindEnum:
		return "word"
	case engine.KindSet:
		return "list"
	case engine.KindText:
	}
	return "text"
}

func explainSwitch() FieldDoc {
	d := FieldDoc{Path: "switch", Type: "block", Doc: "A temporary override of the effective policy of a scope and all below it. It ends by itself."}
	for _, f := range switchFields() {
		d.Fields = append(d.Fields, FieldDoc{
			Path: "switch." + f.key, Type: f.kind, Doc: f.doc, Default: f.def,
		})
	}
	return d
}

func blockDocs() map[string]string {
	return map[string]string{
		"":                    "What calls under a scope may do. A field that is not set is inherited from the next wider scope.",
		"match":               "How SDKs recognise the calls of this scope.",
		"match.http":          "HTTP calls, by the pattern language of Go's net/http.ServeMux.",
		"match.grpc":          "gRPC calls.",
		"backoff":             "Wait before a retry: base × multiplier per retry, at most max, made random by jitter.",
		"timeouts":            "Bounds of time. The caller's deadline always wins if it is sooner.",
		"retryOn":             "Failures that are worth another attempt.",
		"retryAfter":          "What the server asks for: Retry-After, RateLimit, grpc-retry-pushback-ms.",
		"idempotency":         "Which calls may be repeated without harm.",
		"idempotency.key":     "A key makes a call repeatable: the service does the work once per key.",
		"budget":              "How many retries calls may cause. Ratio, tokens and success gate must all allow a retry.",
		"budget.tokens":       "Token bucket beside the ratio.",
		"budget.successGate":  "No retries while fewer than minSuccessRate of the last `window` calls of this endpoint on this instance succeeded. Checked before the budget.",
		"breaker":             "Stops calls to what is failing. Any rule may trip it; without a rule it never does.",
		"breaker.consecutive": "Trips on failed attempts in a row.",
		"breaker.ratio":       "Trips on the failed share of the attempts in a window.",
		"breaker.slow":        "Trips on the slow share of the attempts in a window.",
		"breaker.halfOpen":    "How an open breaker tries whether the service is back.",
		"breaker.reopen":      "How openFor grows when the service is not back yet.",
		"breaker.recover":     "How calls come back after the breaker closed.",
		"hedging":             "Sends again while the first attempt is slow.",
		"concurrency":         "Bounds the calls at once on one instance.",
		"fallback":            "What code with a fallback is told to do when a call fails.",
		"fallback.cached":     "The last good answer.",
		"fallback.static":     "A fixed answer.",
		"offlineQueue":        "Permits calls for which code asks to be kept on disk and sent later, within the budget.",
		"nested":              "Keeps retries from multiplying down a chain of services.",
		"ceilings":            "Bounds for this scope and all below it; narrower scopes may only be stricter.",
		"requirements":        "What narrower scopes may not switch off.",
	}
}
