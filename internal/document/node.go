// SPDX-License-Identifier: Apache-2.0

package document

// mark is a place in a file; both count from 1.
type mark struct{ line, col int }

type nodeKind uint8

const (
	nullNode nodeKind = iota
	scalarNode
	listNode
	mapNode
)

// node is a value as it was written, whatever the syntax.
type node struct {
	kind nodeKind
	text string // of a scalar
	// quoted is a text for sure; literal is a JSON number or boolean, so never a text.
	// Neither: a plain YAML scalar, which is what its reader needs it to be.
	quoted, literal bool
	at              mark
	entries         []entry
	items           []*node
}

type entry struct {
	key   string
	at    mark
	value *node
}

func (n *node) is() string {
	switch n.kind {
	case mapNode:
		return "a block"
	case listNode:
		return "a list"
	case nullNode:
		return "empty"
	default:
		return quoteShort(n.text)
	}
}

// kindWord returns the text under kind, "" where there is none.
func (n *node) kindWord() string {
	for _, e := range n.entries {
		if e.key == "kind" && e.value.kind == scalarNode {
			return e.value.text
		}
	}
	return ""
}
