// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strings"

	"github.com/policyd/policyd/sdk/go/engine"
)

// readJSON parses one JSON value after the other. Unlike json.Unmarshal it keeps places and
// repeated keys.
func (r *reader) readJSON(data []byte) []*node {
	j := &jsonReader{reader: r, data: data, decoder: json.NewDecoder(bytes.NewReader(data)), lines: lineStarts(data)}
	j.decoder.UseNumber()
	var roots []*node
	for {
		at := j.next()
		token, err := j.decoder.Token()
		if errors.Is(err, io.EOF) {
			return roots
		}
		var n *node
		if err == nil {
			n, err = j.value(token, at, 0)
		}
		if err != nil {
			r.fail(j.place(err), "", "not valid JSON: %s", jsonMessage(err))
			return roots
		}
		isList := n.kind == mapNode && strings.HasSuffix(n.kindWord(), KindList)
		if size := int(j.decoder.InputOffset()) - at; size > engine.MaxDocumentBytes && !isList {
			r.fail(j.mark(at), "", "the document has %d bytes: at most %d", size, engine.MaxDocumentBytes)
			continue
		}
		roots = append(roots, n)
	}
}

type jsonReader struct {
	*reader
	data    []byte
	decoder *json.Decoder
	lines   []int // offset of each line's start
}

var (
	errDeep    = errors.New("nested too deep")
	errTooMany = errors.New("too many values")
)

// next returns the offset of the next token.
func (j *jsonReader) next() int {
	at := int(j.decoder.InputOffset())
	for at < len(j.data) && strings.IndexByte(" \t\r\n,:", j.data[at]) >= 0 {
		at++
	}
	return at
}

func (j *jsonReader) mark(offset int) mark {
	line := sort.SearchInts(j.lines, offset+1)
	return mark{line, offset - j.lines[line-1] + 1}
}

func (j *jsonReader) place(err error) mark {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return j.mark(min(max(int(syntax.Offset)-1, 0), len(j.data)))
	}
	return j.mark(min(j.next(), len(j.data)))
}

func jsonMessage(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends too early"
	}
	return err.Error()
}

func (j *jsonReader) value(token json.Token, at, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	if j.nodes++; j.nodes > maxNodes {
		return nil, errTooMany
	}
	n := &node{at: j.mark(at)}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			n.kind = mapNode
			return n, j.object(n, depth)
		}
		n.kind = listNode
		return n, j.array(n, depth)
	case string:
		n.kind, n.text, n.quoted = scalarNode, t, true
	case json.Number:
		n.kind, n.text, n.literal = scalarNode, t.String(), true
	case bool:
		n.kind, n.text, n.literal = scalarNode, "false", true
		if t {
			n.text = "true"
		}
	}
	return n, nil
}

func (j *jsonReader) object(n *node, depth int) error {
	for j.decoder.More() {
		keyAt := j.next()
		key, err := j.token()
		if err != nil {
			return err
		}
		at := j.next()
		token, err := j.token()
		if err != nil {
			return err
		}
		value, err := j.value(token, at, depth+1)
		if err != nil {
			return err
		}
		name, _ := key.(string)
		n.entries = append(n.entries, entry{key: name, at: j.mark(keyAt), value: value})
	}
	_, err := j.token()
	return err
}

func (j *jsonReader) array(n *node, depth int) error {
	for j.decoder.More() {
		at := j.next()
		token, err := j.token()
		if err != nil {
			return err
		}
		item, err := j.value(token, at, depth+1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := j.token()
	return err
}

// token reads a token inside a value, where the end of input is an error.
func (j *jsonReader) token() (json.Token, error) {
	t, err := j.decoder.Token()
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	return t, err
}

func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, b := range data {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}
