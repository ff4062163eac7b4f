// SPDX-License-Identifier: Apache-2.0

package engine

import "maps"

// Settings are the values that one document sets; what is absent is inherited.
type Settings map[Field]Value

// Clone returns a copy that shares no mutable state with s.
func (s Settings) Clone() Settings { return maps.Clone(s) }

// Document is what an engine needs to know of a policy.
type Document struct {
	Scope       Scope
	Revision    int64
	Settings    Settings
	Criticality Criticality
}

// Criticality says how much a call matters; the zero value is unspecified and counts as
// standard. A higher value matters more.
type Criticality uint8

// Criticalities, least first.
const (
	CriticalityUnspecified Criticality = iota
	Sheddable
	Standard
	Critical
)

func (c Criticality) String() string {
	return [...]string{"", "sheddable", "standard", "critical"}[c]
}

// ParseCriticality reads the value of the label "criticality".
func ParseCriticality(s string) (Criticality, bool) {
	for c := CriticalityUnspecified; c <= Critical; c++ {
		if c.String() == s {
			return c, true
		}
	}
	return 0, false
}
