// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is the type of a JSON value.
type kind uint8

const (
	null kind = iota
	boolean
	number
	text
	array
	object
)

// node is a JSON value with its place in the file.
type node struct {
	kind    kind
	text    string // of a scalar
	plain   bool   // a YAML word without quotes: a text as well, if its reader needs one
	at, end int
	members []member
	items   []*node
}

type member struct {
	key   string
	at    int
	value *node
}

// member returns the value of a key, nil if it is absent or n is no object.
func (n *node) member(key string) *node {
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// isText reports whether a value may be read as text.
func (n *node) isText() bool {
	return n.kind == text || n.plain && (n.kind == number || n.kind == boolean)
}

// what names a value in messages.
func (n *node) what() string {
	switch n.kind {
	case null:
		return "null"
	case array:
		return "a list"
	case object:
		return "a block"
	case text:
		return quote(n.text)
	default:
		return n.text
	}
}

const maxDepth = 16

// tree builds nodes from tokens. Unlike json.Unmarshal it keeps places and finds repeated
// keys.
type tree struct {
	data    []byte
	decoder *json.Decoder
}

var errDeep = errors.New("nested too deep")

func parseTree(data []byte) (*node, error) {
	if !utf8.Valid(data) {
		return nil, errorAt(data, validPrefix(data), "not UTF-8")
	}
	t := &tree{data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	t.decoder.UseNumber()
	root, err := t.value(0)
	if err == nil {
		at := t.next()
		if _, err = t.decoder.Token(); errors.Is(err, io.EOF) {
			return root, nil
		}
		if err == nil {
			return nil, errorAt(data, at, "something follows the document")
		}
	}
	var placed *Error
	switch {
	case errors.As(err, &placed):
		return nil, placed
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errorAt(data, len(data), "not valid JSON: it ends too early")
	default:
		return nil, errorAt(data, t.next(), "not valid JSON: "+err.Error())
	}
}

func validPrefix(data []byte) int {
	at := 0
	for at < len(data) {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	return at
}

// next returns the offset of the next token.
func (t *tree) next() int {
	at := int(t.decoder.InputOffset())
	for at < len(t.data) && strings.IndexByte(" \t\r\n,:", t.data[at]) >= 0 {
		at++
	}
	return at
}

func (t *tree) value(depth int) (*node, error) {
	n := &node{at: t.next()}
	token, err := t.decoder.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, errDeep
		}
		n.kind = array
		if v == '{' {
			n.kind = object
		}
		err = t.inside(n, depth)
	case string:
		n.kind, n.text = text, v
	case json.Number:
		n.kind, n.text = number, v.String()
	case bool:
		n.kind, n.text = boolean, strconv.FormatBool(v)
	}
	n.end = int(t.decoder.InputOffset())
	return n, err
}

// inside reads what an array or an object holds, its end included.
func (t *tree) inside(n *node, depth int) error {
	lines := map[string]int{}
	for t.decoder.More() {
		m := member{at: t.next()}
		if n.kind == object {
			token, err := t.decoder.Token()
			if err != nil {
				return err
			}
			m.key, _ = token.(string)
			if first, twice := lines[m.key]; twice {
				return errorAt(t.data, m.at, "duplicate field "+quote(m.key)+": it is on line "+strconv.Itoa(first)+" already")
			}
			lines[m.key] = lineOf(t.data, m.at)
		}
		value, err := t.value(depth + 1)
		if err != nil {
			return err
		}
		if n.kind == array {
			n.items = append(n.items, value)
			continue
		}
		m.value = value
		n.members = append(n.members, m)
	}
	_, err := t.decoder.Token()
	return err
}

func lineOf(data []byte, at int) int { return 1 + bytes.Count(data[:at], []byte{'\n'}) }

func errorAt(data []byte, at int, reason string) *Error {
	at = min(max(at, 0), len(data))
	return &Error{
		Line:   lineOf(data, at),
		Column: at - bytes.LastIndexByte(data[:at], '\n'),
		Reason: reason,
	}
}

// quote writes a text from the file into a message.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// meant is the tail of a message: a suggestion, else the choices if they are few.
func meant(word string, choices []string) string {
	best, least := "", 1+max(1, len(word)/3)
	if len(word) <= 64 {
		for _, c := range choices {
			if d := distance(strings.ToLower(word), strings.ToLower(c)); d < least {
				best, least = c, d
			}
		}
	}
	switch {
	case best != "":
		return " (did you mean " + strconv.Quote(best) + "?)"
	case len(choices) > 0 && len(choices) <= 12:
		return " (one of " + strings.Join(choices, ", ") + ")"
	}
	return ""
}

// distance counts insertions, deletions and replacements.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
