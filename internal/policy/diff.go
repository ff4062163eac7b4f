// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/policyd/policyd/sdk/go/engine"
)

// FieldChange is one difference between two documents, as written in YAML; empty: absent.
type FieldChange struct {
	// Path of a setting without "spec.", or one that starts with "metadata.".
	Path, Before, After string
}

// Diff returns what an operator changed between two documents of a scope, settings first,
// in document order. Nil stands for no document. What the server stamps does not count.
func Diff(before, after *Policy) []FieldChange {
	if before == nil {
		before = &Policy{}
	}
	if after == nil {
		after = &Policy{}
	}
	var changes []FieldChange
	for _, f := range engine.Fields() {
		b, had := before.Settings[f]
		a, has := after.Settings[f]
		if had == has && b.Equal(a) {
			continue
		}
		c := FieldChange{Path: f.Path()}
		if had {
			c.Before = yamlText(b)
		}
		if has {
			c.After = yamlText(a)
		}
		changes = append(changes, c)
	}
	text := func(path, b, a string) {
		if a != b {
			changes = append(changes, FieldChange{Path: "metadata." + path, Before: plainOrQuoted(b), After: plainOrQuoted(a)})
		}
	}
	text("owner", before.Metadata.Owner, after.Metadata.Owner)
	changes = append(changes, diffMap("metadata.labels.", before.Metadata.Labels, after.Metadata.Labels)...)
	changes = append(changes, diffMap("metadata.annotations.", before.Metadata.Annotations, after.Metadata.Annotations)...)
	text("managedBy", before.Metadata.ManagedBy, after.Metadata.ManagedBy)
	return changes
}

func diffMap(prefix string, before, after map[string]string) []FieldChange {
	keys := slices.Collect(maps.Keys(before))
	keys = slices.AppendSeq(keys, maps.Keys(after))
	slices.Sort(keys)
	var changes []FieldChange
	for _, key := range slices.Compact(keys) {
		b, had := before[key]
		a, has := after[key]
		if had == has && a == b {
			continue
		}
		c := FieldChange{Path: prefix + key}
		if had {
			c.Before = quotedIfUnclear(b)
		}
		if has {
			c.After = quotedIfUnclear(a)
		}
		changes = append(changes, c)
	}
	return changes
}

func yamlText(v engine.Value) string {
	if v.Kind == engine.KindText {
		return quotedIfUnclear(v.Text)
	}
	return v.String()
}

// plainOrQuoted leaves the empty text, which means absent, as it is.
func plainOrQuoted(s string) string {
	if s == "" {
		return ""
	}
	return quotedIfUnclear(s)
}

// quotedIfUnclear quotes text that would be read as nothing, as more than one line, or as
// something else.
func quotedIfUnclear(s string) string {
	if s == "" || strings.TrimSpace(s) != s || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}
