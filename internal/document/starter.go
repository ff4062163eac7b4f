// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"strings"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Inherited is what applies at a scope without a document of its own: the value as in YAML
// and where it comes from.
type Inherited func(engine.Field) (value, from string)

// BuiltIn is what applies where no document does.
func BuiltIn(f engine.Field) (value, from string) {
	if d := f.Spec().Default; d != nil {
		return d.String(), engine.BuiltIn
	}
	return "", ""
}

// Starter returns a commented document for a scope. Every setting that it would inherit is
// there as a comment, so that deleting a # is an edit; for global the recommended breakers
// are set.
func Starter(scope engine.Scope, inherited Inherited) []byte {
	b := &strings.Builder{}
	fmt.Fprintf(b, `# Policy of %s. A line that stays a comment is inherited; its value is what applies now.
# Reference: policyctl explain FIELD. Then: policyctl diff -f FILE, policyctl apply -f FILE.
apiVersion: %s
kind: %s
metadata:
  scope: %s
  # owner: team-name
  # labels: {criticality: standard}     # critical | standard | sheddable
spec:
`, scope, APIVersion, KindPolicy, scope)
	description := "What the calls under " + string(scope) + " are for."
	if scope == engine.Global {
		description = "Safe defaults for everything."
	}
	fmt.Fprintf(b, "  description: %s\n", description)
	starterMatch(b, scope.Level())
	root := schema()
	for _, key := range root.keys {
		if key == "match" {
			continue
		}
		if inner, ok := root.blocks[key]; ok {
			starterBlock(b, scope, inner, inherited)
		} else if f := root.fields[key]; f != engine.Description {
			starterField(b, scope, f, inherited)
		}
	}
	return []byte(b.String())
}

func starterMatch(b *strings.Builder, level engine.Level) {
	switch level {
	case engine.LevelEndpoint:
		b.WriteString("  # match:                              # how SDKs recognise the call\n" +
			"  #   http: {method: GET, host: example.internal, path: \"/v1/items/{id}\"}\n" +
			"  #   grpc: {method: /package.Service/Method}\n")
	case engine.LevelService:
		b.WriteString("  # match:                              # how SDKs recognise the service\n" +
			"  #   http: {host: example.internal}\n")
	case engine.LevelGlobal, engine.LevelNamespace:
	}
}

// wanted reports whether a starter shows f: what can be set there and works.
func wanted(f engine.Field, level engine.Level, inherited Inherited) bool {
	s := f.Spec()
	value, _ := inherited(f)
	return level >= s.From && level <= s.To && (value != "" || s.Default != nil || s.Kind == engine.KindDuration)
}

func starterBlock(b *strings.Builder, scope engine.Scope, at *block, inherited Inherited) {
	fields, on := 0, scope == engine.Global && at.path == "breaker"
	for _, f := range engine.Fields() {
		if strings.HasPrefix(f.Path(), at.path+".") && wanted(f, scope.Level(), inherited) {
			fields++
		}
	}
	if fields == 0 {
		return
	}
	indent := strings.Repeat("  ", strings.Count(at.path, ".")+1)
	key := at.path[strings.LastIndexByte(at.path, '.')+1:]
	if on {
		fmt.Fprintf(b, "%sbreaker:\n%s  consecutive: {failures: 5, openFor: 30s}\n"+
			"%s  ratio: {failures: 0.5, window: 10s, minCalls: 20, openFor: 10s}\n", indent, indent, indent)
	} else {
		fmt.Fprintf(b, "  # %s%s:\n", indent[2:], key)
	}
	for _, key := range at.keys {
		if inner, ok := at.blocks[key]; ok {
			if !on || key != "consecutive" && key != "ratio" {
				starterBlock(b, scope, inner, inherited)
			}
			continue
		}
		starterField(b, scope, at.fields[key], inherited)
	}
}

func starterField(b *strings.Builder, scope engine.Scope, f engine.Field, inherited Inherited) {
	if !wanted(f, scope.Level(), inherited) {
		return
	}
	value, from := inherited(f)
	if value == "" {
		value, from = "1s", "not set"
		if f == engine.TimeoutsOverall {
			value = "5s"
		}
	}
	path := f.Path()
	line := fmt.Sprintf("  # %s%s: %s", strings.Repeat("  ", strings.Count(path, ".")), path[strings.LastIndexByte(path, '.')+1:], value)
	fmt.Fprintf(b, "%-40s# %s\n", line+" ", from)
}
