// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Limits on metadata.
const (
	MaxNames           = 64 // labels, and again annotations
	MaxNameBytes       = 63
	MaxLabelBytes      = 253
	MaxAnnotationBytes = 4 << 10
	MaxOwnerBytes      = 128
)

// Validate returns the rules that a document breaks by itself, metadata first.
func Validate(p *Policy) []fault.Violation {
	c := checker{scope: string(p.Scope)}
	if _, err := engine.ParseScope(string(p.Scope)); err != nil {
		c.add("metadata.scope", string(p.Scope), err.Error(), "")
		return c.found
	}
	if size := Size(p); size > engine.MaxDocumentBytes {
		c.add("", strconv.Itoa(size)+" bytes", fmt.Sprintf("a document has at most %d bytes", engine.MaxDocumentBytes), "shorten its texts and lists")
		return c.found
	}
	c.metadata(&p.Metadata)
	for _, v := range engine.Validate(p.Scope, p.Settings) {
		c.found = append(c.found, violation(v))
	}
	return c.found
}

// ValidateSet returns the rules that set breaks because of the documents at changed, which
// are new or differ from those of before: their own rules, those against wider documents, those that
// narrower ones would break because of them, matching conflicts, and the number of policies
// of a namespace. A ceiling that narrower documents pass is no violation: it clips them.
// Nor is a deletion: what narrower documents then inherit may pull their values.
func ValidateSet(before, set Set, changed []engine.Scope) []fault.Violation {
	var found []fault.Violation
	for _, at := range changed {
		if p, ok := set[at]; ok {
			found = append(found, Validate(p)...)
		}
	}
	if len(found) > 0 {
		return found // the rest would only repeat them
	}
	isChanged := make(map[engine.Scope]bool, len(changed))
	for _, at := range changed {
		isChanged[at] = true
	}
	seen := map[engine.Violation]bool{}
	add := func(violations []engine.Violation) {
		for _, v := range violations {
			if !seen[v] {
				seen[v] = true
				found = append(found, violation(v))
			}
		}
	}
	caused := func(v engine.Violation) bool { return isChanged[v.Scope] || isChanged[v.Other] }
	for _, at := range Below(set, changed...) {
		path := Path(set, at)
		if isChanged[at] {
			own := engine.ValidateEffective(path)
			add(slices.DeleteFunc(own, func(v engine.Violation) bool { return v.Scope != at && v.Other != at || !caused(v) }))
		} else {
			broken := engine.ValidateMerged(engine.Merge(at, path))
			add(slices.DeleteFunc(slices.Clone(broken), func(v engine.Violation) bool { return !caused(v) }))
			if edited(set, changed, at) {
				// What a wider document no longer sets is inherited from where nothing changed.
				add(news(broken, before, at))
			}
		}
	}
	return append(append(found, conflicts(set, changed)...), crowded(set, changed)...)
}

// edited reports whether a document that changed, and is still there, stands above at.
func edited(set Set, changed []engine.Scope, at engine.Scope) bool {
	return slices.ContainsFunc(changed, func(wider engine.Scope) bool {
		_, ok := set[wider]
		return ok && wider.Contains(at)
	})
}

// news returns the violations at a scope that were not there before.
func news(broken []engine.Violation, before Set, at engine.Scope) []engine.Violation {
	if len(broken) == 0 {
		return nil
	}
	had := engine.ValidateMerged(engine.Merge(at, Path(before, at)))
	return slices.DeleteFunc(broken, func(v engine.Violation) bool { return slices.Contains(had, v) })
}

func conflicts(set Set, changed []engine.Scope) []fault.Violation {
	var touched []engine.Scope
	for _, at := range changed {
		switch at.Level() {
		case engine.LevelEndpoint:
			touched = append(touched, at)
		case engine.LevelService: // its host is part of its endpoints' patterns
			touched = append(touched, Below(set, at)...)
		case engine.LevelGlobal, engine.LevelNamespace:
		}
	}
	if len(touched) == 0 {
		return nil
	}
	documents := make([]engine.Document, 0, len(set))
	for _, at := range slices.Sorted(maps.Keys(set)) {
		documents = append(documents, set[at].Document())
	}
	var found []fault.Violation
	for _, c := range engine.MatchConflicts(documents, touched) {
		at, other := c.A, c.B
		if !slices.Contains(changed, at) && slices.Contains(changed, other) {
			at, other = other, at
		}
		found = append(found, fault.Violation{
			Scope: string(at), Path: "spec." + c.Field.Path(), Value: set[at].Settings[c.Field].String(),
			Rule: fmt.Sprintf("conflicts with %s: some calls match both and neither pattern is more specific", other),
			Fix:  "make one of the two more specific, or give them different hosts or methods",
		})
	}
	return found
}

// crowded reports namespaces that hold too many policies and got a new one.
func crowded(set Set, changed []engine.Scope) []fault.Violation {
	count := map[string]int{}
	for at := range set {
		count[at.Namespace()]++
	}
	var found []fault.Violation
	for _, at := range changed {
		ns := at.Namespace()
		if ns == "" || count[ns] <= engine.MaxPoliciesPerNS {
			continue
		}
		found = append(found, fault.Violation{
			Scope: string(at), Path: "metadata.scope", Value: strconv.Itoa(count[ns]),
			Rule: fmt.Sprintf("a namespace holds at most %d policies", engine.MaxPoliciesPerNS), Fix: "delete policies that are no longer needed",
		})
		delete(count, ns) // once
	}
	return found
}

func violation(v engine.Violation) fault.Violation {
	return fault.Violation{Scope: string(v.Scope), Path: v.Path, Value: v.Value, Rule: v.Rule, Fix: v.Fix}
}

type checker struct {
	scope string
	found []fault.Violation
}

func (c *checker) add(path, value, rule, fix string) {
	const most = 120
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	c.found = append(c.found, fault.Violation{Scope: c.scope, Path: path, Value: value, Rule: rule, Fix: fix})
}

func (c *checker) metadata(m *Metadata) {
	c.text("metadata.owner", m.Owner, MaxOwnerBytes)
	c.text("metadata.managedBy", m.ManagedBy, MaxOwnerBytes)
	c.names("metadata.labels", m.Labels, MaxLabelBytes)
	c.names("metadata.annotations", m.Annotations, MaxAnnotationBytes)
	if word, ok := m.Labels[LabelCriticality]; ok {
		if crit, known := engine.ParseCriticality(word); !known || crit == engine.CriticalityUnspecified {
			c.add("metadata.labels."+LabelCriticality, word, "must be critical, standard or sheddable", "")
		}
	}
}

func (c *checker) names(path string, m map[string]string, most int) {
	if len(m) > MaxNames {
		c.add(path, strconv.Itoa(len(m)), fmt.Sprintf("at most %d", MaxNames), "")
		return
	}
	for _, key := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		if !validName(key) {
			c.add(path, strconv.Quote(key), fmt.Sprintf("names are 1 to %d of A-Z, a-z, 0-9, '.', '_', '-' and '/'", MaxNameBytes), "")
			continue
		}
		c.text(path+"."+key, m[key], most)
	}
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && c != '.' && c != '_' && c != '-' && c != '/' {
			return false
		}
	}
	return s != "" && len(s) <= MaxNameBytes
}

func (c *checker) text(path, s string, most int) {
	switch {
	case len(s) > most:
		c.add(path, strconv.Itoa(len(s))+" bytes", fmt.Sprintf("at most %d bytes", most), "")
	case !utf8.ValidString(s) || engine.HasControl(s, false):
		c.add(path, strconv.Quote(s), "must be text without control characters", "")
	}
}

// Size returns an upper bound of the encoded size of a document, close to it for documents
// that are large by their texts and lists.
func Size(p *Policy) int {
	const (
		perField = 24 // tags and lengths of the blocks around a value, and a number
		perItem  = 4
	)
	size := perField + len(p.Scope)
	for _, v := range p.Settings {
		size += perField + len(v.Text)
		for _, item := range v.Set {
			size += perItem + len(item)
		}
	}
	m := &p.Metadata
	size += 4*perField + len(m.Owner) + len(m.ManagedBy) + 2*perField
	for _, a := range []Actor{m.CreatedBy, m.UpdatedBy} {
		size += 2*perItem + len(a.Name) + len(a.Via)
	}
	for _, names := range []map[string]string{m.Labels, m.Annotations} {
		for key, value := range names {
			size += 3*perItem + len(key) + len(value)
		}
	}
	return size
}
