// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
)

// MatchConflict names two endpoints whose patterns match a common call although neither is
// more specific. A is the smaller scope.
type MatchConflict struct {
	A, B Scope
	// Field whose patterns conflict: MatchHTTPPath or MatchGRPCMethod.
	Field Field
}

// MatchConflicts returns the conflicts among the endpoints of documents that involve one of
// changed, or all of them with changed nil. Endpoints of different namespaces conflict only
// over the same host: without one they are told apart by who calls.
func MatchConflicts(documents []Document, changed []Scope) []MatchConflict {
	set := make(map[Scope]bool, len(changed))
	for _, s := range changed {
		set[s] = true
	}
	concerned := func(s Scope) bool { return changed == nil || set[s] }
	found := httpConflicts(patternsOf(documents), concerned)
	found = append(found, grpcConflicts(documents, concerned)...)
	slices.SortFunc(found, func(a, b MatchConflict) int {
		return cmp.Or(cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B), cmp.Compare(a.Field, b.Field))
	})
	return found
}

// httpConflicts compares each concerned pattern with those that can have a call in common:
// patterns of one host whose first segments are not different literals.
func httpConflicts(all []endpointPattern, concerned func(Scope) bool) []MatchConflict {
	type place struct{ host, first string }
	byFirst, byHost := map[place][]int{}, map[string][]int{}
	for i := range all {
		at := place{all[i].Host, all[i].First()}
		byFirst[at] = append(byFirst[at], i)
		byHost[at.host] = append(byHost[at.host], i)
	}
	var found []MatchConflict
	for i := range all {
		e := &all[i]
		if !concerned(e.scope) {
			continue
		}
		near := byHost[e.Host]
		if first := e.First(); first != "" {
			near = slices.Concat(byFirst[place{e.Host, first}], byFirst[place{e.Host, ""}])
		}
		for _, j := range near {
			other := &all[j]
			if i == j || j < i && concerned(other.scope) { // the pair was seen from the other side
				continue
			}
			if e.Host == "" && e.scope.Namespace() != other.scope.Namespace() || !e.Conflicts(&other.Pattern) {
				continue
			}
			found = append(found, MatchConflict{min(e.scope, other.scope), max(e.scope, other.scope), MatchHTTPPath})
		}
	}
	return found
}

func grpcConflicts(documents []Document, concerned func(Scope) bool) []MatchConflict {
	type claim struct{ namespace, method string }
	claims := map[claim][]Scope{}
	for _, d := range documents {
		if method := d.Settings[MatchGRPCMethod].Text; method != "" && d.Scope.Level() == LevelEndpoint {
			c := claim{d.Scope.Namespace(), method}
			claims[c] = append(claims[c], d.Scope)
		}
	}
	var found []MatchConflict
	for _, scopes := range claims {
		for i, a := range scopes {
			for _, b := range scopes[i+1:] {
				if concerned(a) || concerned(b) {
					found = append(found, MatchConflict{min(a, b), max(a, b), MatchGRPCMethod})
				}
			}
		}
	}
	return found
}
