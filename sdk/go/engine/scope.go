// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
)

// Scope is a path: global, namespace, namespace/service or namespace/service/endpoint.
// Global contains every other scope.
type Scope string

// Global is the scope above all others.
const Global Scope = "global"

// Level is the depth of a scope, widest first.
type Level int

// Levels of a scope.
const (
	LevelGlobal Level = iota
	LevelNamespace
	LevelService
	LevelEndpoint
)

func (l Level) String() string {
	return [...]string{"global", "namespace", "service", "endpoint"}[l]
}

const maxSegment = 63

// ParseScope checks s against the rules of scope names. The error says which rule is broken.
func ParseScope(s string) (Scope, error) {
	if s == "" {
		return "", fmt.Errorf("scope is empty: use global, namespace, namespace/service or namespace/service/endpoint")
	}
	if s == string(Global) {
		return Global, nil
	}
	segments := strings.Split(s, "/")
	if len(segments) > 3 {
		return "", fmt.Errorf("scope %q has %d segments: at most 3 (namespace/service/endpoint)", clip(s), len(segments))
	}
	for _, seg := range segments {
		if err := checkSegment(seg); err != nil {
			return "", fmt.Errorf("scope %q: %w", clip(s), err)
		}
	}
	return Scope(s), nil
}

func checkSegment(seg string) error {
	switch {
	case seg == "":
		return fmt.Errorf("a segment is empty")
	case len(seg) > maxSegment:
		return fmt.Errorf("a segment has %d characters: at most %d", len(seg), maxSegment)
	case seg == string(Global):
		return fmt.Errorf("the segment %q is reserved", seg)
	}
	for i := 0; i < len(seg); i++ {
		c := seg[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("segment %q holds %q: only a-z, 0-9, '.', '_' and '-'", seg, c)
		}
		if !alnum && (i == 0 || i == len(seg)-1) {
			return fmt.Errorf("segment %q must start and end with a letter or digit", seg)
		}
	}
	return nil
}

// Level returns the depth of a valid scope.
func (s Scope) Level() Level {
	if s == Global {
		return LevelGlobal
	}
	return Level(1 + strings.Count(string(s), "/"))
}

// Parent returns the next wider scope; the parent of global is "".
func (s Scope) Parent() Scope {
	if s == Global || s == "" {
		return ""
	}
	if i := strings.LastIndexByte(string(s), '/'); i >= 0 {
		return s[:i]
	}
	return Global
}

// Path returns the scopes that apply at s, widest first, s itself last.
func (s Scope) Path() []Scope {
	n := int(s.Level()) + 1
	path := make([]Scope, n)
	for at := s; at != ""; at = at.Parent() {
		n--
		path[n] = at
	}
	return path
}

// Namespace returns the first segment, "" for global.
func (s Scope) Namespace() string {
	if s == Global {
		return ""
	}
	ns, _, _ := strings.Cut(string(s), "/")
	return ns
}

// Contains reports whether other is s or lies below it.
func (s Scope) Contains(other Scope) bool {
	return s == Global || s == other ||
		len(other) > len(s) && other[len(s)] == '/' && other[:len(s)] == s
}

// Overlaps reports whether one of the two contains the other.
func (s Scope) Overlaps(other Scope) bool {
	return s.Contains(other) || other.Contains(s)
}

// clip bounds what a message repeats of its input, and keeps it UTF-8.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
