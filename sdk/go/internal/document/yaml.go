// SPDX-License-Identifier: Apache-2.0

package document

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ParseYAML is [Parse] for a stream of YAML documents, for the tests of applications. A
// switch may end by expiresIn, counted from now.
//
// It reads the YAML in which policies are written, JSON among it: blocks and lists, with
// indentation or in braces, words with or without quotes, texts of several lines with | and
// >, comments. Tabs in the indentation, repeated keys, tags, anchors and aliases are errors.
func ParseYAML(data []byte, now time.Time) (*File, error) {
	file, _, err := parseYAML(data, now, true)
	return file, err
}

// parseYAML also returns how many documents the stream has.
func parseYAML(data []byte, now time.Time, relative bool) (file *File, roots int, err error) {
	if !utf8.Valid(data) {
		return nil, 0, errorAt(data, validPrefix(data), "not UTF-8")
	}
	y := &yaml{src: string(data)}
	r := &reader{data: data, file: &File{}, now: now, seen: map[string]bool{}, relative: relative}
	for {
		root, err := y.document()
		if err != nil {
			return nil, 0, err
		}
		if root == nil {
			return r.file, roots, nil
		}
		if err := r.root(root); err != nil {
			return nil, 0, err
		}
		roots++
	}
}

// yaml reads nodes from a stream.
type yaml struct {
	src string
	pos int
}

func (y *yaml) fail(at int, reason string) error { return errorAt([]byte(y.src), at, reason) }

// document returns the next document that is not empty, nil at the end.
func (y *yaml) document() (*node, error) {
	for {
		col, err := y.skip()
		if err != nil {
			return nil, err
		}
		switch {
		case y.pos == len(y.src):
			return nil, nil //nolint:nilnil // the end of the stream is no error
		case col < 0: // --- or ...
			y.pos += 3
		case y.src[y.pos] == '%':
			return nil, y.fail(y.pos, "directives are not supported")
		default:
			n, err := y.block(col, 0)
			if err != nil {
				return nil, err
			}
			if col, err := y.skip(); err != nil {
				return nil, err
			} else if col >= 0 && y.pos < len(y.src) {
				return nil, y.fail(y.pos, "bad indentation, or a stray word")
			}
			return n, nil
		}
	}
}

// skip goes to the next word that is no comment and returns its column, -1 at the mark of a
// document or at the end.
func (y *yaml) skip() (col int, err error) {
	for y.pos < len(y.src) {
		start := y.lineStart()
		switch c := y.src[y.pos]; c {
		case ' ', '\n', '\r':
			y.pos++
		case '\t':
			if strings.TrimLeft(y.src[start:y.pos], " ") == "" && !y.blankLine() {
				return 0, y.fail(y.pos, "tab in the indentation: YAML wants blanks")
			}
			y.pos++
		case '#':
			y.endLine()
		default:
			if y.pos == start && y.marker() {
				return -1, nil
			}
			return y.pos - start, nil
		}
	}
	return -1, nil
}

func (y *yaml) lineStart() int { return 1 + strings.LastIndexByte(y.src[:y.pos], '\n') }

// blankLine reports whether the rest of the line is empty or a comment.
func (y *yaml) blankLine() bool {
	rest := strings.TrimLeft(y.line(), " \t\r")
	return rest == "" || rest[0] == '#'
}

// line is the rest of the line.
func (y *yaml) line() string {
	line, _, _ := strings.Cut(y.src[y.pos:], "\n")
	return line
}

func (y *yaml) endLine() { y.pos += len(y.line()) }

// marker reports whether the line starts with --- or ... alone.
func (y *yaml) marker() bool {
	line := y.line()
	if !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "...") {
		return false
	}
	return len(line) == 3 || strings.IndexByte(" \t\r", line[3]) >= 0
}

// block reads the value that starts here, at column col.
func (y *yaml) block(col, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, y.fail(y.pos, errDeep.Error())
	}
	switch {
	case y.dash():
		return y.list(col, depth)
	case y.key() != nil:
		return y.mapping(col, depth)
	}
	n, err := y.inline(col-1, depth)
	if err != nil {
		return nil, err
	}
	return n, y.restOfLine()
}

// dash reports whether an item of a list starts here.
func (y *yaml) dash() bool {
	line := y.line()
	return line != "" && line[0] == '-' && (len(line) == 1 || strings.IndexByte(" \t\r", line[1]) >= 0)
}

// yamlKey is a key of a mapping; next is where its value may start.
type yamlKey struct {
	text string
	next int
}

// key returns the key that starts here, nil if none does.
func (y *yaml) key() *yamlKey {
	line := y.line()
	if line == "" {
		return nil
	}
	if line[0] == '"' || line[0] == '\'' {
		word, length, err := quotedWord(line)
		if err != nil {
			return nil
		}
		rest := strings.TrimLeft(line[length:], " \t")
		if !startsColon(rest) {
			return nil
		}
		return &yamlKey{word, y.pos + len(line) - len(rest) + 1}
	}
	if strings.IndexByte("{[&*!|>%@`#,]}", line[0]) >= 0 {
		return nil
	}
	for i := range len(line) {
		switch {
		case line[i] == '#' && i > 0 && line[i-1] == ' ':
			return nil
		case line[i] == ':' && startsColon(line[i:]):
			return &yamlKey{strings.TrimRight(line[:i], " \t"), y.pos + i + 1}
		}
	}
	return nil
}

func startsColon(s string) bool {
	return s != "" && s[0] == ':' && (len(s) == 1 || strings.IndexByte(" \t\r", s[1]) >= 0)
}

func (y *yaml) mapping(col, depth int) (*node, error) {
	n := &node{kind: object, at: y.pos}
	lines := map[string]int{}
	for {
		key := y.key()
		if key == nil {
			return nil, y.fail(y.pos, "a key with a colon is due")
		}
		m := member{key: key.text, at: y.pos}
		if err := y.once(lines, m); err != nil {
			return nil, err
		}
		y.pos = key.next
		var err error
		if m.value, err = y.value(col, depth, true); err != nil {
			return nil, err
		}
		n.members, n.end = append(n.members, m), y.pos
		if more, err := y.more(col); err != nil || !more {
			return n, err
		}
	}
}

// once refuses a key that was there before.
func (y *yaml) once(lines map[string]int, m member) error {
	if first, twice := lines[m.key]; twice {
		return y.fail(m.at, "duplicate field "+quote(m.key)+": it is on line "+strconv.Itoa(first)+" already")
	}
	lines[m.key] = lineOf([]byte(y.src), m.at)
	return nil
}

func (y *yaml) list(col, depth int) (*node, error) {
	n := &node{kind: array, at: y.pos}
	for {
		if !y.dash() {
			return n, nil // the next key of a mapping, at the same column
		}
		y.pos++
		item, err := y.value(col, depth, false)
		if err != nil {
			return nil, err
		}
		n.items, n.end = append(n.items, item), y.pos
		if more, err := y.more(col); err != nil || !more {
			return n, err
		}
	}
}

// more goes to the next member of a block at column col and reports whether there is one.
func (y *yaml) more(col int) (bool, error) {
	next, err := y.skip()
	if err == nil && next > col {
		err = y.fail(y.pos, "bad indentation: nothing may be indented here")
	}
	return next == col, err
}

// value reads what follows a key or a dash of a block at column col. keyed: a list may then
// be at the same column.
func (y *yaml) value(col, depth int, keyed bool) (*node, error) {
	line := y.line()
	if rest := strings.TrimLeft(line, " \t\r"); rest != "" && rest[0] != '#' {
		y.pos += len(line) - len(rest)
		if !keyed && (y.dash() || y.key() != nil) {
			return y.block(y.pos-y.lineStart(), depth+1)
		}
		n, err := y.inline(col, depth+1)
		if err != nil {
			return nil, err
		}
		return n, y.restOfLine()
	}
	empty := &node{kind: null, at: y.pos, end: y.pos}
	next, err := y.skip()
	switch {
	case err != nil:
		return nil, err
	case next > col, keyed && next == col && y.dash():
		return y.block(next, depth+1)
	}
	return empty, nil
}

// restOfLine wants nothing but a comment.
func (y *yaml) restOfLine() error {
	line := y.line()
	rest := strings.TrimLeft(line, " \t\r")
	switch {
	case rest == "" || rest[0] == '#' && (len(rest) < len(line) || y.pos == y.lineStart()):
		y.endLine()
		return nil
	default:
		return y.fail(y.pos+len(line)-len(rest), "a stray word: quote texts with special characters")
	}
}

// inline reads a value in braces, or a word; col is that of the block around it.
func (y *yaml) inline(col, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, y.fail(y.pos, errDeep.Error())
	}
	switch y.src[y.pos] {
	case '{', '[':
		return y.flow(depth)
	case '"', '\'':
		return y.quoted()
	case '|', '>':
		return y.lines(col)
	}
	line := y.line()
	if i := strings.Index(line, " #"); i >= 0 {
		line = line[:i]
	}
	colon := strings.Contains(line, ": ") || strings.HasSuffix(strings.TrimRight(line, " \t\r"), ":")
	if colon && strings.IndexByte("&*!", line[0]) < 0 {
		return nil, y.fail(y.pos, "a second colon on the line: quote texts with a colon")
	}
	return y.plain(line)
}

// plain makes a node of a word without quotes and goes behind it.
func (y *yaml) plain(word string) (*node, error) {
	word = strings.TrimRight(word, " \t\r")
	n := &node{at: y.pos, end: y.pos + len(word), text: word, plain: true}
	if word != "" {
		switch c := word[0]; {
		case c == '&' || c == '*':
			return nil, y.fail(y.pos, "anchors and aliases are not supported: write the fields out")
		case c == '!':
			return nil, y.fail(y.pos, "tags are not supported")
		case strings.IndexByte("|>%@`,[]{}", c) >= 0, c == '-' && len(word) == 1, c == '?' && (len(word) == 1 || word[1] == ' '):
			return nil, y.fail(y.pos, "a word may not start with "+quote(word[:1])+": quote it")
		}
	}
	y.pos = n.end
	switch word {
	case "", "~", "null", "Null", "NULL":
		n.kind = null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		n.kind, n.text = boolean, strings.ToLower(word)
	default:
		if n.kind = text; numeric(word) {
			n.kind = number
		}
	}
	return n, nil
}

// numeric reports whether a plain word is a decimal number.
func numeric(s string) bool {
	if strings.Trim(s, "+-.0123456789eE") != "" || !strings.ContainsAny(s, "0123456789") {
		return false
	}
	_, err := strconv.ParseFloat(s, 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}

func (y *yaml) quoted() (*node, error) {
	word, length, err := quotedWord(y.line())
	if err != nil {
		return nil, y.fail(y.pos, err.Error())
	}
	n := &node{kind: text, text: word, at: y.pos, end: y.pos + length}
	y.pos = n.end
	return n, nil
}

// flow reads a mapping or a list in braces.
func (y *yaml) flow(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, y.fail(y.pos, errDeep.Error())
	}
	n := &node{kind: array, at: y.pos}
	closing := byte(']')
	if y.src[y.pos] == '{' {
		n.kind, closing = object, '}'
	}
	y.pos++
	lines := map[string]int{}
	for {
		if err := y.flowSkip(n); err != nil {
			return nil, err
		}
		if y.src[y.pos] == closing {
			y.pos++
			n.end = y.pos
			return n, nil
		}
		if err := y.flowMember(n, lines, depth); err != nil {
			return nil, err
		}
		if err := y.flowSkip(n); err != nil {
			return nil, err
		}
		switch c := y.src[y.pos]; {
		case c == ',':
			y.pos++
		case c != closing:
			return nil, y.fail(y.pos, "a comma or "+quote(string(closing))+" is due")
		}
	}
}

// flowSkip goes to the next word inside of n.
func (y *yaml) flowSkip(n *node) error {
	col, err := y.skip()
	if err == nil && col < 0 {
		err = y.fail(n.at, "this brace is never closed")
	}
	return err
}

func (y *yaml) flowMember(n *node, lines map[string]int, depth int) error {
	if n.kind == array {
		item, err := y.flowValue(depth)
		n.items = append(n.items, item)
		return err
	}
	m := member{at: y.pos}
	word, err := y.flowWord(true)
	if err != nil {
		return err
	}
	m.key = word.text
	if err := y.once(lines, m); err != nil {
		return err
	}
	if err := y.flowSkip(n); err != nil {
		return err
	}
	m.value = &node{kind: null, at: y.pos, end: y.pos}
	if y.src[y.pos] == ':' {
		y.pos++
		if err := y.flowSkip(n); err != nil {
			return err
		}
		if c := y.src[y.pos]; c != ',' && c != '}' {
			if m.value, err = y.flowValue(depth); err != nil {
				return err
			}
		}
	}
	n.members = append(n.members, m)
	return nil
}

func (y *yaml) flowValue(depth int) (*node, error) {
	if c := y.src[y.pos]; c == '{' || c == '[' {
		return y.flow(depth + 1)
	}
	return y.flowWord(false)
}

// flowWord reads a word inside of braces; a key ends at its colon.
func (y *yaml) flowWord(key bool) (*node, error) {
	line := y.line()
	if line[0] == '"' || line[0] == '\'' {
		return y.quoted()
	}
	end := len(line)
	for i := range len(line) {
		c := line[i]
		if strings.IndexByte(",]}[{", c) >= 0 || c == '#' && i > 0 && line[i-1] == ' ' ||
			c == ':' && (i+1 == len(line) || strings.IndexByte(" \t\r,]}", line[i+1]) >= 0) {
			end = i
			break
		}
	}
	if end < len(line) && !key && line[end] == ':' {
		return nil, y.fail(y.pos, "a second colon: quote texts with a colon")
	}
	if end == 0 {
		return nil, y.fail(y.pos, "a word is due, not "+quote(line[:1]))
	}
	return y.plain(line[:end])
}

// lines reads a text of several lines, kept (|) or folded (>), below column col.
func (y *yaml) lines(col int) (*node, error) {
	n := &node{kind: text, at: y.pos}
	folded := y.src[y.pos] == '>'
	y.pos++
	keep := byte(0)
	if y.pos < len(y.src) && (y.src[y.pos] == '-' || y.src[y.pos] == '+') {
		keep = y.src[y.pos]
		y.pos++
	}
	if err := y.restOfLine(); err != nil {
		return nil, err
	}
	var all []string
	indent := -1
	for y.pos < len(y.src) {
		start := y.pos
		y.pos++ // the end of the line before
		line := strings.TrimSuffix(y.line(), "\r")
		body := strings.TrimLeft(line, " ")
		at := len(line) - len(body)
		if body != "" && (at <= col || indent >= 0 && at < indent) {
			y.pos = start
			break
		}
		if body != "" && indent < 0 {
			indent = at
		}
		all = append(all, line[min(max(indent, 0), at):])
		y.endLine()
	}
	n.text, n.end = joined(all, folded, keep), y.pos
	return n, nil
}

// joined puts the lines of a text together.
func joined(lines []string, folded bool, keep byte) string {
	for keep != '+' && len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	var b strings.Builder
	for i, line := range lines {
		switch {
		case i == 0:
		case !folded || line == "":
			b.WriteByte('\n')
		case lines[i-1] != "":
			b.WriteByte(' ')
		}
		b.WriteString(line)
	}
	if len(lines) > 0 && keep != '-' {
		b.WriteByte('\n')
	}
	return b.String()
}

var (
	errUnclosed = errors.New("the quote is not closed on its line")
	errEscape   = errors.New("unknown escape in a quoted text")
)

// quotedWord reads the quoted text at the start of a line and returns it with its length.
func quotedWord(line string) (word string, length int, err error) {
	q := line[0]
	var b strings.Builder
	for i := 1; i < len(line); i++ {
		c := line[i]
		switch {
		case c == q && q == '\'' && i+1 < len(line) && line[i+1] == q:
			b.WriteByte(c)
			i++
		case c == q:
			return b.String(), i + 1, nil
		case c == '\\' && q == '"':
			rest := line[i:]
			if len(rest) > 1 && (rest[1] == '/' || rest[1] == ' ') {
				b.WriteByte(rest[1])
				i++
				continue
			}
			r, _, tail, err := strconv.UnquoteChar(rest, '"')
			if err != nil {
				return "", 0, errEscape
			}
			b.WriteRune(r)
			i += len(rest) - len(tail) - 1
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, errUnclosed
}
