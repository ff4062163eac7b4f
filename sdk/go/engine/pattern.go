// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

const maxPatternBytes = 1024

// pattern is a parsed match.http: the language of net/http.ServeMux in parts.
type pattern struct {
	method   string // empty: any
	host     string // empty: any
	segments []segment
}

// segment is one part of a path pattern.
type segment struct {
	text string // canonical literal; "/" for {$}, which no literal can be
	kind segmentKind
}

type segmentKind uint8

const (
	literal segmentKind = iota
	single              // {name}: one segment, not empty
	rest                // {name...} or a trailing slash: everything from here
)

// parsePath reads the path of a pattern. An empty path stands for every path.
func parsePath(path string) ([]segment, error) {
	switch {
	case path == "":
		return []segment{{kind: rest}}, nil
	case len(path) > maxPatternBytes:
		return nil, fmt.Errorf("longer than %d bytes", maxPatternBytes)
	case path[0] != '/':
		return nil, errors.New("must start with /")
	case strings.ContainsAny(path, "?#"):
		return nil, errors.New("query and fragment are no part of it")
	case path != cleanPath(path):
		return nil, fmt.Errorf("can never match, since calls are cleaned first; write %s", cleanPath(path))
	}
	var segments []segment
	var names []string
	for remaining := path[1:]; ; {
		part, after, more := strings.Cut(remaining, "/")
		if part == "" { // only the last one can be, in a clean path
			return append(segments, segment{kind: rest}), nil
		}
		s, name, err := parseSegment(part)
		if err != nil {
			return nil, err
		}
		if more && (s.kind == rest || s.text == "/") {
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
func parseSegment(part string) (segment, string, error) {
	if !strings.ContainsAny(part, "{}") {
		text, ok := canonicalPath(part)
		if !ok {
			return segment{}, "", fmt.Errorf("bad percent-escape in %q", part)
		}
		return segment{text: text}, "", nil
	}
	if part[0] != '{' || part[len(part)-1] != '}' || strings.Count(part, "{") != 1 || strings.Count(part, "}") != 1 {
		return segment{}, "", fmt.Errorf("a wildcard is a whole segment, as in /{name}/, not %q", part)
	}
	name := part[1 : len(part)-1]
	if name == "$" {
		return segment{text: "/"}, "", nil
	}
	kind := single
	if cut, ok := strings.CutSuffix(name, "..."); ok {
		name, kind = cut, rest
	}
	if !validWildcard(name) {
		return segment{}, "", fmt.Errorf("the name of wildcard %q must be a letter or _ followed by letters, digits or _", part)
	}
	return segment{kind: kind}, name, nil
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

// conflicts reports whether some calls match both while neither pattern is more specific.
// A host always beats no host.
func (p *pattern) conflicts(q *pattern) bool {
	if p.host != q.host {
		return false
	}
	r := relateMethods(p.method, q.method) | relatePaths(p.segments, q.segments)
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

func relatePaths(a, b []segment) relation {
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
		case s.kind == rest && t.kind == rest:
			return r
		case s.kind == rest:
			return r | firstMore
		case t.kind == rest:
			return r | otherMore
		case s.kind == t.kind:
			if s.text != t.text {
				return disjoint
			}
		case s.text == "/" || t.text == "/": // {$} against {name}
			return disjoint
		case s.kind == single:
			r |= firstMore
		default:
			r |= otherMore
		}
	}
}
