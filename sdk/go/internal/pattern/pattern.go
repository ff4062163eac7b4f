// SPDX-License-Identifier: Apache-2.0

// Package pattern is the language of match.http, that of net/http.ServeMux: how patterns are
// read, how two of them compare, and the one spelling that paths and hosts have.
package pattern

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// MaxBytes is how long a pattern may be.
const MaxBytes = 1024

// Pattern is a parsed match.http: the language of net/http.ServeMux in parts.
type Pattern struct {
	Method   string // empty: any
	Host     string // empty: any
	Segments []Segment
}

// Segment is one part of a path pattern.
type Segment struct {
	Text string // canonical literal; "/" for {$}, which no literal can be
	Kind Kind
}

// Kind is what a segment matches.
type Kind uint8

// Kinds of segments.
const (
	Literal Kind = iota // its text
	Single              // {name}: one segment, not empty
	Rest                // {name...} or a trailing slash: everything from here
)

// ParsePath reads the path of a pattern. An empty path stands for every path.
func ParsePath(path string) ([]Segment, error) {
	switch {
	case path == "":
		return []Segment{{Kind: Rest}}, nil
	case len(path) > MaxBytes:
		return nil, fmt.Errorf("longer than %d bytes", MaxBytes)
	case path[0] != '/':
		return nil, errors.New("must start with /")
	case strings.ContainsAny(path, "?#"):
		return nil, errors.New("query and fragment are no part of it")
	case path != Clean(path):
		return nil, fmt.Errorf("can never match, since calls are cleaned first; write %s", Clean(path))
	}
	var segments []Segment
	var names []string
	for remaining := path[1:]; ; {
		part, after, more := strings.Cut(remaining, "/")
		if part == "" { // only the last one can be, in a clean path
			return append(segments, Segment{Kind: Rest}), nil
		}
		s, name, err := parseSegment(part)
		if err != nil {
			return nil, err
		}
		if more && (s.Kind == Rest || s.Text == "/") {
			return nil, fmt.Errorf("%s must be at the end", part)
		}
		for _, seen := range names {
			if name == seen {
				return nil, fmt.Errorf("the name %q appears twice", name)
			}
		}
		if name != "" {
			names = append(names, name)
		}
		segments = append(segments, s)
		if !more {
			return segments, nil
		}
		remaining = after
	}
}

// parseSegment reads one segment, and the name of a wildcard.
func parseSegment(part string) (Segment, string, error) {
	if !strings.ContainsAny(part, "{}") {
		text, ok := Canonical(part)
		if !ok {
			return Segment{}, "", fmt.Errorf("bad percent-escape in %q", part)
		}
		return Segment{Text: text}, "", nil
	}
	if part[0] != '{' || part[len(part)-1] != '}' || strings.Count(part, "{") != 1 || strings.Count(part, "}") != 1 {
		return Segment{}, "", fmt.Errorf("a wildcard is a whole segment, as in /{name}/, not %q", part)
	}
	name := part[1 : len(part)-1]
	if name == "$" {
		return Segment{Text: "/"}, "", nil
	}
	kind := Single
	if cut, ok := strings.CutSuffix(name, "..."); ok {
		name, kind = cut, Rest
	}
	if !validWildcard(name) {
		return Segment{}, "", fmt.Errorf("the name of wildcard %q must be a letter or _ followed by letters, digits or _", part)
	}
	return Segment{Kind: kind}, name, nil
}

func validWildcard(name string) bool {
	for i, c := range name {
		if !unicode.IsLetter(c) && c != '_' && (i == 0 || !unicode.IsDigit(c)) {
			return false
		}
	}
	return name != ""
}

// relation compares the calls that two patterns match.
type relation uint8

const (
	equal     relation = 0
	firstMore relation = 1 << 0 // the first matches calls that the second does not
	otherMore relation = 1 << 1
	disjoint  relation = 1 << 2
)

// Conflicts reports whether some calls match both while neither pattern is more specific.
// A host always beats no host.
func (p *Pattern) Conflicts(q *Pattern) bool {
	if p.Host != q.Host {
		return false
	}
	r := relateMethods(p.Method, q.Method) | relatePaths(p.Segments, q.Segments)
	return r&disjoint == 0 && (r == equal || r == firstMore|otherMore)
}

func relateMethods(a, b string) relation {
	switch {
	case a == b:
		return equal
	case a == "", a == "GET" && b == "HEAD":
		return firstMore
	case b == "", b == "GET" && a == "HEAD":
		return otherMore
	}
	return disjoint
}

func relatePaths(a, b []Segment) relation {
	r := equal
	for i := 0; ; i++ {
		switch {
		case i == len(a) && i == len(b):
			return r
		case i == len(a) || i == len(b):
			return disjoint // a longer path, unless rest ended the loop below
		}
		s, t := a[i], b[i]
		switch {
		case s.Kind == Rest && t.Kind == Rest:
			return r
		case s.Kind == Rest:
			return r | firstMore
		case t.Kind == Rest:
			return r | otherMore
		case s.Kind == t.Kind:
			if s.Text != t.Text {
				return disjoint
			}
		case s.Text == "/" || t.Text == "/": // {$} against {name}
			return disjoint
		case s.Kind == Single:
			r |= firstMore
		default:
			r |= otherMore
		}
	}
}

// First returns the literal that a pattern starts with, "" for a wildcard.
func (p *Pattern) First() string { return p.Segments[0].Text }
