// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/policyd/policyd/sdk/go/engine"
)

var (
	yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s).*)$`)
	listKind      = regexp.MustCompile(`(?m)^kind:[ \t]*["']?[A-Za-z]*List["']?[ \t\r]*(#.*)?$`)
)

// readYAML parses the documents of a stream; what cannot be parsed is reported and left out.
func (r *reader) readYAML(data []byte) []*node {
	var roots []*node
	for _, c := range split(data) {
		if n := r.readChunk(c); n != nil {
			roots = append(roots, n)
		}
	}
	return roots
}

func (r *reader) readChunk(c chunk) *node {
	limit, what := engine.MaxDocumentBytes, "the document"
	if listKind.Match(c.text) {
		limit, what = maxListBytes, "the list"
	}
	if len(c.text) > limit {
		r.fail(mark{c.line, 1}, "", "%s has %d bytes: at most %d", what, len(c.text), limit)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(c.text))
	var root yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if !errors.Is(err, io.EOF) {
			r.failYAML(c, err)
		}
		return nil
	}
	if err := decoder.Decode(new(yaml.Node)); err == nil {
		r.fail(mark{c.line, 1}, "", "there is text after the end of the document")
		return nil
	} else if !errors.Is(err, io.EOF) {
		r.failYAML(c, err)
		return nil
	}
	t := translator{reader: r, line: c.line - 1}
	return t.node(&root, 0)
}

// failYAML reports a syntax error; the parser knows the line only.
func (r *reader) failYAML(c chunk, err error) {
	m := yamlErrorLine.FindStringSubmatch(err.Error())
	if m == nil {
		r.fail(mark{c.line, 1}, "", "%s", err)
		return
	}
	line, _ := strconv.Atoi(m[1])
	line = max(line, 1)
	at := mark{c.line + line - 1, 1}
	message := strings.TrimSpace(m[2])
	for n, text := range bytes.Split(c.text, []byte("\n")) {
		indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
		if n == line-1 {
			at.col = len(indent) + 1
		}
		if i := bytes.IndexByte(indent, '\t'); i >= 0 && n >= line-2 && n <= line {
			r.fail(mark{c.line + n, i + 1}, "", "tab in the indentation: YAML wants blanks")
			return
		}
	}
	r.fail(at, "", "not valid YAML: %s", message)
}

// translator turns the nodes of one YAML document into ours, aliases unfolded within limits.
type translator struct {
	*reader
	line    int // of the stream before the document
	aliases int
	stopped bool
}

func (t *translator) mark(n *yaml.Node) mark {
	return mark{t.line + max(n.Line, 1), max(n.Column, 1)}
}

// stop reports what makes the rest of the document not worth reading.
func (t *translator) stop(n *yaml.Node, format string, args ...any) *node {
	if !t.stopped {
		t.fail(t.mark(n), "", format, args...)
	}
	t.stopped = true
	return nil
}

func (t *translator) node(n *yaml.Node, depth int) *node {
	t.nodes++
	switch {
	case t.stopped:
		return nil
	case depth > maxDepth:
		return t.stop(n, "nested deeper than %d levels", maxDepth)
	case t.nodes > maxNodes:
		return t.stop(n, "more than %d values", maxNodes)
	}
	if n.Style&yaml.TaggedStyle != 0 && n.Tag != "!!str" {
		t.fail(t.mark(n), "", "tag %s is not supported", quoteShort(n.Tag))
	}
	out := &node{at: t.mark(n)}
	switch n.Kind {
	case yaml.DocumentNode:
		return t.node(n.Content[0], depth)
	case yaml.AliasNode:
		if t.aliases++; t.aliases > maxAliases {
			return t.stop(n, "more than %d aliases in one document", maxAliases)
		}
		unfolded := t.node(n.Alias, depth+1)
		if unfolded != nil {
			unfolded.at = out.at
		}
		return unfolded
	case yaml.MappingNode:
		out.kind = mapNode
		return t.mapping(out, n, depth)
	case yaml.SequenceNode:
		out.kind = listNode
		for _, item := range n.Content {
			child := t.node(item, depth+1)
			if child == nil {
				return nil
			}
			out.items = append(out.items, child)
		}
		return out
	default:
		return scalar(out, n)
	}
}

func (t *translator) mapping(out *node, n *yaml.Node, depth int) *node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return t.stop(key, "a key must be a word")
		}
		if key.Tag == "!!merge" {
			return t.stop(key, "merge keys (<<) are not supported: write the fields out")
		}
		child := t.node(value, depth+1)
		if child == nil {
			return nil
		}
		out.entries = append(out.entries, entry{key: key.Value, at: t.mark(key), value: child})
	}
	return out
}

func scalar(out *node, n *yaml.Node) *node {
	const quotes = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	out.kind, out.text = scalarNode, n.Value
	out.quoted = n.Style&(quotes|yaml.TaggedStyle) != 0
	if !out.quoted && n.Tag == "!!null" {
		out.kind = nullNode
	}
	return out
}
