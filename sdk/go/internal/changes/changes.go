// SPDX-License-Identifier: Apache-2.0

// Package changes tells where what is in force differs from what was in force before.
package changes

import "github.com/policyd/policyd/sdk/go/engine"

// Covered reports whether a scope on the way to at is among scopes.
func Covered(at engine.Scope, scopes map[engine.Scope]bool) bool {
	for ; at != ""; at = at.Parent() {
		if scopes[at] {
			return true
		}
	}
	return false
}

// Documents returns the scopes whose document differs, and whether one of them has to
// do with matching.
func Documents(old, next map[engine.Scope]*engine.Document) (scopes map[engine.Scope]bool, matching bool) {
	scopes = map[engine.Scope]bool{}
	note := func(scope engine.Scope, docs ...*engine.Document) {
		scopes[scope] = true
		for _, d := range docs {
			matching = matching || d != nil && matches(d)
		}
	}
	for scope, d := range next {
		if before := old[scope]; before != d {
			note(scope, before, d)
		}
	}
	for scope, d := range old {
		if next[scope] == nil {
			note(scope, d)
		}
	}
	return scopes, matching
}

func matches(d *engine.Document) bool {
	for _, f := range [...]engine.Field{engine.MatchHTTPMethod, engine.MatchHTTPHost, engine.MatchHTTPPath, engine.MatchGRPCMethod} {
		if _, ok := d.Settings[f]; ok {
			return true
		}
	}
	return false
}

// Switches returns the scopes under which switches came, went or moved. Both lists
// are sorted by id.
func Switches(old, next []engine.Switch) []engine.Scope {
	var scopes []engine.Scope
	for len(old) > 0 || len(next) > 0 {
		switch {
		case len(next) == 0 || len(old) > 0 && old[0].ID < next[0].ID:
			scopes = append(scopes, old[0].Scope)
			old = old[1:]
		case len(old) == 0 || next[0].ID < old[0].ID:
			scopes = append(scopes, next[0].Scope)
			next = next[1:]
		default:
			if a, b := old[0], next[0]; a.Revision != b.Revision || !a.Ends.Equal(b.Ends) {
				scopes = append(scopes, a.Scope, b.Scope)
			}
			old, next = old[1:], next[1:]
		}
	}
	return scopes
}
