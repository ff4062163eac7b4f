// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/policyd/policyd/sdk/go/internal/pattern"
)

// Matcher finds the endpoint that a call belongs to. Immutable; safe for concurrent use.
//
// Patterns and their precedence are those of net/http.ServeMux. Two differences: a path
// with a bad percent-escape matches no endpoint, and equal URLs match alike whatever their
// spelling. A trailing slash counts: /a/b/ is not /a/b; /a//b is.
type Matcher struct {
	own   Scope
	hosts map[string]*node // by host; "" holds the patterns without one
	wider map[string]Scope // services and namespaces by host
	rpc   map[string]Scope // endpoints by full method, or by /pkg.Service/ for all of it
	rpcs  map[string]Scope // services likewise
}

// node is a position in the tree of path segments.
type node struct {
	children map[string]*node
	single   *node
	rest     *node
	leaves   []leaf
}

type leaf struct {
	method string
	scope  Scope
}

// Found is where a call belongs. Without Matched it is the widest scope that still fits:
// the service whose match.http.host is the call's, else the instance's own namespace, else
// global.
type Found struct {
	Scope   Scope
	Matched bool
}

// NewMatcher builds a matcher from the documents that an instance holds; namespace is the
// instance's own, "" if it has none. An endpoint without a host of its own belongs to the
// host of its service's document, if that has one. A pattern that does not parse, which
// validation would have refused, matches nothing. Where two patterns are the same, the own
// namespace comes first, then the smaller scope.
func NewMatcher(documents []Document, namespace string) *Matcher {
	m := &Matcher{
		own: Scope(namespace), hosts: map[string]*node{}, wider: map[string]Scope{},
		rpc: map[string]Scope{}, rpcs: map[string]Scope{},
	}
	for _, e := range patternsOf(documents) {
		m.add(e)
	}
	for i := range documents {
		d := &documents[i]
		if method := d.Settings[MatchGRPCMethod].Text; method != "" {
			table := m.rpcs
			if d.Scope.Level() == LevelEndpoint {
				table = m.rpc
			}
			m.keep(table, strings.TrimSuffix(method, "*"), d.Scope)
		}
		if host := d.Settings[MatchHTTPHost].Text; host != "" && d.Scope.Level() < LevelEndpoint {
			m.keep(m.wider, pattern.BareHost(host), d.Scope)
		}
	}
	return m
}

// HTTP finds where a request belongs. The path is the escaped one without the query, as
// from url.URL.EscapedPath; a port in host is ignored.
func (m *Matcher) HTTP(method, host, escapedPath string) Found {
	host = pattern.BareHost(host)
	if path, ok := pattern.Path(escapedPath); ok {
		if method == "" {
			method = "GET"
		}
		if l := m.hosts[host].find(path, method); l != nil {
			return Found{l.scope, true}
		}
		if host != "" {
			if l := m.hosts[""].find(path, method); l != nil {
				return Found{l.scope, true}
			}
		}
	}
	return m.fallback(host)
}

// GRPC finds where a call of a full method belongs; host is the authority, if known.
func (m *Matcher) GRPC(fullMethod, host string) Found {
	service := fullMethod[:strings.LastIndexByte(fullMethod, '/')+1]
	if scope, ok := lookUp(m.rpc, fullMethod, service); ok {
		return Found{scope, true}
	}
	if scope, ok := lookUp(m.rpcs, fullMethod, service); ok {
		return Found{Scope: scope}
	}
	return m.fallback(pattern.BareHost(host))
}

func lookUp(table map[string]Scope, method, service string) (Scope, bool) {
	scope, ok := table[method]
	if !ok {
		scope, ok = table[service]
	}
	return scope, ok
}

func (m *Matcher) fallback(host string) Found {
	if scope, ok := m.wider[host]; ok {
		return Found{Scope: scope}
	}
	if m.own != "" {
		return Found{Scope: m.own}
	}
	return Found{Scope: Global}
}

// find walks literals before wildcards. Each node is visited at most once.
func (n *node) find(path, method string) *leaf {
	if n == nil {
		return nil
	}
	if path == "" {
		return n.leaf(method)
	}
	seg, remaining := "/", ""
	if path != "/" {
		end := strings.IndexByte(path[1:], '/') + 1
		if end == 0 {
			end = len(path)
		}
		seg, remaining = path[1:end], path[end:]
	}
	if l := n.children[seg].find(remaining, method); l != nil {
		return l
	}
	if seg != "/" {
		if l := n.single.find(remaining, method); l != nil {
			return l
		}
	}
	if n.rest != nil {
		return n.rest.leaf(method)
	}
	return nil
}

// leaf returns the entry for a method: its own, GET for HEAD, else the one for any.
func (n *node) leaf(method string) *leaf {
	var best *leaf
	for i := range n.leaves {
		l := &n.leaves[i]
		switch {
		case l.method == method:
			return l
		case l.method == "GET" && method == "HEAD", l.method == "" && best == nil:
			best = l
		}
	}
	return best
}

func (m *Matcher) add(e endpointPattern) {
	n := m.hosts[e.Host]
	if n == nil {
		n = &node{}
		m.hosts[e.Host] = n
	}
	for _, s := range e.Segments {
		n = n.child(s)
	}
	for i := range n.leaves {
		if l := &n.leaves[i]; l.method == e.Method {
			l.scope = m.prefer(l.scope, e.scope)
			return
		}
	}
	n.leaves = append(n.leaves, leaf{e.Method, e.scope})
}

func (n *node) child(s pattern.Segment) *node {
	switch s.Kind {
	case pattern.Single:
		if n.single == nil {
			n.single = &node{}
		}
		return n.single
	case pattern.Rest:
		if n.rest == nil {
			n.rest = &node{}
		}
		return n.rest
	case pattern.Literal:
	}
	c := n.children[s.Text]
	if c == nil {
		c = &node{}
		if n.children == nil {
			n.children = map[string]*node{}
		}
		n.children[s.Text] = c
	}
	return c
}

func (m *Matcher) keep(table map[string]Scope, key string, scope Scope) {
	if have, ok := table[key]; ok {
		scope = m.prefer(have, scope)
	}
	table[key] = scope
}

// prefer settles who gets calls that two scopes claim with the same words.
func (m *Matcher) prefer(a, b Scope) Scope {
	if own := m.own != "" && m.own.Contains(a); m.own != "" && own != m.own.Contains(b) {
		if own {
			return a
		}
		return b
	}
	if c := cmp.Compare(b.Level(), a.Level()); c != 0 { // a service before its namespace
		if c < 0 {
			return a
		}
		return b
	}
	return min(a, b)
}

// endpointPattern is the pattern of an endpoint's document.
type endpointPattern struct {
	scope Scope
	pattern.Pattern
}

// patternsOf returns the patterns of the endpoints among documents, by scope.
func patternsOf(documents []Document) []endpointPattern {
	hosts := map[Scope]string{}
	for _, d := range documents {
		if d.Scope.Level() == LevelService {
			hosts[d.Scope] = d.Settings[MatchHTTPHost].Text
		}
	}
	var all []endpointPattern
	for _, d := range documents {
		method, hasMethod := d.Settings[MatchHTTPMethod]
		host, hasHost := d.Settings[MatchHTTPHost]
		path, hasPath := d.Settings[MatchHTTPPath]
		if d.Scope.Level() != LevelEndpoint || !hasMethod && !hasHost && !hasPath {
			continue
		}
		segments, err := pattern.ParsePath(path.Text)
		if err != nil {
			continue
		}
		if host.Text == "" {
			host.Text = hosts[d.Scope.Parent()]
		}
		all = append(all, endpointPattern{d.Scope, pattern.Pattern{Method: method.Text, Host: pattern.BareHost(host.Text), Segments: segments}})
	}
	slices.SortFunc(all, func(a, b endpointPattern) int { return cmp.Compare(a.scope, b.scope) })
	return all
}
