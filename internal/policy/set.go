// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Set is every policy by scope.
type Set = map[engine.Scope]*Policy

// Document returns what the engine needs of a policy.
func (p *Policy) Document() engine.Document {
	crit, _ := engine.ParseCriticality(p.Metadata.Labels[LabelCriticality])
	return engine.Document{Scope: p.Scope, Revision: int64(p.Revision), Settings: p.Settings, Criticality: crit}
}

// Path returns the documents that apply at scope, widest first.
func Path(set Set, scope engine.Scope) []engine.Document {
	documents := make([]engine.Document, 0, 4)
	for _, at := range scope.Path() {
		if p, ok := set[at]; ok {
			documents = append(documents, p.Document())
		}
	}
	return documents
}

// Merge returns the effective policy at scope, before kill switches.
func Merge(set Set, scope engine.Scope) engine.Effective {
	return engine.Merge(scope, Path(set, scope))
}

// Below returns, sorted, the scopes of set that are one of scopes or lie below one.
func Below(set Set, scopes ...engine.Scope) []engine.Scope {
	var found []engine.Scope
	for at := range set {
		if slices.ContainsFunc(scopes, func(s engine.Scope) bool { return s.Contains(at) }) {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return found
}

// Affected returns, sorted, those of endpoints whose effective policy differs between two
// sets. Endpoints need no document of their own.
func Affected(before, after Set, endpoints []engine.Scope) []engine.Scope {
	var found []engine.Scope
	for _, at := range endpoints {
		if !Merge(before, at).Equal(Merge(after, at)) {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Clipped is a value that a ceiling or requirement of a wider scope changes.
type Clipped struct {
	Scope         engine.Scope // of the document that sets the value
	Field         engine.Field
	Before, After engine.Value
	By            engine.Origin
}

// NewlyClipped returns what documents of after ask for and, other than in before, do not
// get: whom a tightened ceiling hits.
func NewlyClipped(before, after Set, changed []engine.Scope) []Clipped {
	var found []Clipped
	for _, at := range Below(after, changed...) {
		old, now := Merge(before, at), Merge(after, at)
		for _, f := range engine.Fields() {
			r := now.At(f)
			if _, asked := after[at].Settings[f]; !asked || r.Clipped == nil || old.At(f).Value.Equal(r.Value) {
				continue
			}
			found = append(found, Clipped{Scope: at, Field: f, Before: *r.Clipped, After: r.Value, By: r.Ceiling})
		}
	}
	return found
}
