// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Decode reads every document of a YAML or JSON stream; file names it in errors. Documents
// are returned only if all of them are right; else the error is a fault of kind Invalid that
// wraps *StreamError. What only the server sets is accepted; but for the revision of a policy
// it is ignored.
func Decode(file string, data []byte) ([]*Object, error) {
	r := &reader{file: file}
	var objects []*Object
	for _, root := range r.read(data) {
		objects = append(objects, r.document(root)...)
	}
	if err := r.fault(); err != nil {
		return nil, err
	}
	return objects, nil
}

func (r *reader) read(data []byte) []*node {
	if len(data) > MaxStreamBytes {
		r.fail(mark{1, 1}, "", "more than %d MiB", MaxStreamBytes>>20)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		r.fail(invalidAt(data), "", "not UTF-8")
		return nil
	}
	switch filepath.Ext(r.file) {
	case ".json", ".jsonl":
		return r.readJSON(data)
	case ".yaml", ".yml":
		return r.readYAML(data)
	}
	// A stream without a name: JSON if all of it is.
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		trial := &reader{file: r.file}
		roots := trial.readJSON(data)
		if !trial.failed() {
			return roots
		}
	}
	return r.readYAML(data)
}

func invalidAt(data []byte) mark {
	at := mark{1, 1}
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		if c == utf8.RuneError && size == 1 {
			break
		}
		at.col++
		if c == '\n' {
			at = mark{at.line + 1, 1}
		}
		data = data[size:]
	}
	return at
}

var listKinds = []string{KindList, KindPolicy + KindList, KindSwitch + KindList} //nolint:gochecknoglobals // a table

// document reads one document, or the items of a list.
func (r *reader) document(root *node) []*Object {
	if root.kind != mapNode {
		r.fail(root.at, "", "a document must be a block with apiVersion, kind, metadata and spec")
		return nil
	}
	if slices.Contains(listKinds, root.kindWord()) {
		return r.list(root)
	}
	o := &objectReader{reader: r, object: &Object{file: r.file, at: root.at, marks: map[string]mark{}}}
	before := len(r.errs.List) + r.errs.More
	o.read(root)
	if len(r.errs.List)+r.errs.More > before {
		return nil
	}
	return []*Object{o.object}
}

func (r *reader) list(root *node) []*Object {
	o := &objectReader{reader: r, object: &Object{file: r.file, at: root.at, marks: map[string]mark{}}}
	var objects []*Object
	o.fields(root, "", []string{"apiVersion", "kind", "revision", "items"}, func(key string, n *node) {
		switch key {
		case "apiVersion":
			o.apiVersion(n)
		case "items":
			if n.kind != listNode {
				o.fail(n.at, key, "items: a list of documents is due")
				return
			}
			for _, item := range n.items {
				if item.kind == mapNode && slices.Contains(listKinds, item.kindWord()) {
					o.fail(item.at, key, "a list cannot hold a list")
					continue
				}
				objects = append(objects, r.document(item)...)
			}
		}
	})
	return objects
}

// objectReader reads one document.
type objectReader struct {
	*reader
	object *Object
}

func (o *objectReader) read(root *node) {
	kind := root.kindWord()
	var metadata, spec *node
	o.fields(root, "", []string{"apiVersion", "kind", "metadata", "spec", "status"}, func(key string, n *node) {
		switch key {
		case "apiVersion":
			o.apiVersion(n)
		case "kind":
			o.kind(n)
		case "metadata":
			metadata = o.blockNode("metadata", n)
		case "spec":
			spec = o.blockNode("spec", n)
		}
	})
	for _, key := range []string{"apiVersion", "kind", "metadata", "spec"} {
		if _, ok := o.object.marks[key]; !ok {
			o.fail(root.at, key, "%s is missing", key)
		}
	}
	switch {
	case metadata == nil || spec == nil:
	case kind == KindPolicy:
		o.policy(metadata, spec)
	case kind == KindSwitch:
		o.killSwitch(metadata, spec)
	}
}

func (o *objectReader) apiVersion(n *node) {
	if n.kind != scalarNode || n.text != APIVersion {
		o.fail(n.at, "apiVersion", "apiVersion is %s: only %s is known", n.is(), APIVersion)
	}
}

func (o *objectReader) kind(n *node) {
	if n.kind != scalarNode || n.text != KindPolicy && n.text != KindSwitch {
		o.fail(n.at, "kind", "unknown kind %s%s", n.is(), meant(n.text, []string{KindPolicy, KindSwitch, KindList}))
	}
}

func (o *objectReader) blockNode(path string, n *node) *node {
	if n.kind != mapNode {
		o.fail(n.at, path, "%s: a block is due, not %s", path, n.is())
		return nil
	}
	return n
}

// fields visits the entries of a block. Unknown and repeated keys are errors.
func (o *objectReader) fields(n *node, path string, known []string, visit func(key string, n *node)) {
	in := path
	if in == "" {
		in = "the document"
	}
	o.keys(n, path, in, func(e entry) {
		if !slices.Contains(known, e.key) {
			o.fail(e.at, join(path, e.key), "unknown field %s in %s%s", quoteShort(e.key), in, o.elsewhere(path, e.key, known))
			return
		}
		visit(e.key, e.value)
	})
}

// keys visits the entries of a block whose keys are free.
func (o *objectReader) keys(n *node, path, in string, visit func(entry)) {
	first := make(map[string]int, len(n.entries))
	for _, e := range n.entries {
		if line, ok := first[e.key]; ok {
			o.fail(e.at, join(path, e.key), "duplicate field %s in %s: it is on line %d already", quoteShort(e.key), in, line)
			continue
		}
		first[e.key] = e.at.line
		o.object.marks[join(path, e.key)] = e.at
		visit(e)
	}
}

// elsewhere suggests a neighbour, or the block where a misplaced field belongs.
func (o *objectReader) elsewhere(path, key string, known []string) string {
	if Suggest(key, known) == "" {
		for _, f := range engine.Fields() {
			if f.Path() == key || strings.HasSuffix(f.Path(), "."+key) || strings.HasPrefix(f.Path(), key+".") {
				at := f.Path()[:strings.LastIndex("."+f.Path()+".", "."+key+".")+len(key)]
				if full := "spec." + at; full != join(path, key) {
					return " (did you mean " + strconv.Quote(full) + "?)"
				}
			}
		}
	}
	return meant(key, known)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// text reads free text.
func (o *objectReader) text(path string, n *node) (string, bool) {
	switch {
	case n.kind == nullNode:
		o.fail(n.at, path, "%s is empty: delete the line, or put the text in quotes", path)
		return "", false
	case n.kind != scalarNode || n.literal:
		o.fail(n.at, path, "%s: text is due, not %s", path, n.is())
		return "", false
	}
	if err := checkText(n.text); err != nil {
		o.fail(n.at, path, "%s: %s", path, err)
		return "", false
	}
	return n.text, true
}

// texts reads a block of free keys with text.
func (o *objectReader) texts(path string, n *node) map[string]string {
	if o.blockNode(path, n) == nil {
		return nil
	}
	var m map[string]string
	o.keys(n, path, path, func(e entry) {
		if err := checkText(e.key); err != nil || e.key == "" || len(e.key) > maxKeyBytes {
			o.fail(e.at, path, "%s: a key has 1 to %d printable characters", path, maxKeyBytes)
			return
		}
		if text, ok := o.text(join(path, e.key), e.value); ok {
			if m == nil {
				m = make(map[string]string, len(n.entries))
			}
			m[e.key] = text
		}
	})
	return m
}

const maxKeyBytes = 253

func (o *objectReader) scope(path string, n *node) engine.Scope {
	text, ok := o.text(path, n)
	if !ok {
		return ""
	}
	scope, err := engine.ParseScope(text)
	if err != nil {
		o.fail(n.at, path, "%s: %s", path, err)
	}
	return scope
}

// What only the server sets; accepted so that what it returns can be applied again.
var serverSet = []string{"revision", "createdAt", "createdBy", "updatedAt", "updatedBy"} //nolint:gochecknoglobals // a table

func (o *objectReader) policy(metadata, spec *node) {
	p := &policy.Policy{}
	o.object.Policy = p
	known := append([]string{"scope", "owner", "labels", "annotations", "managedBy"}, serverSet...)
	o.fields(metadata, "metadata", known, func(key string, n *node) {
		path := "metadata." + key
		switch key {
		case "scope":
			p.Scope = o.scope(path, n)
		case "owner":
			p.Metadata.Owner, _ = o.text(path, n)
		case "labels":
			p.Metadata.Labels = o.texts(path, n)
		case "annotations":
			p.Metadata.Annotations = o.texts(path, n)
		case "managedBy":
			p.Metadata.ManagedBy, _ = o.text(path, n)
		case "revision":
			o.object.Revision = policy.Revision(o.scalar(path, engine.KindInt, n))
		}
	})
	if _, ok := o.object.marks["metadata.scope"]; !ok {
		o.fail(metadata.at, "metadata.scope", "metadata.scope is missing: global, namespace, namespace/service or namespace/service/endpoint")
	}
	p.Settings = engine.Settings{}
	o.block(schema(), spec, p.Settings)
	if _, err := engine.ParseScope(string(p.Scope)); err != nil {
		return
	}
	for _, v := range policy.Validate(p) {
		o.violation(v, v.Path)
	}
}

// violation reports a rule that a document breaks, at the place of the field.
func (o *objectReader) violation(v fault.Violation, path string) {
	o.fail(o.object.mark(path), path, "%s", ruleText(v, path))
}

// ruleText is a violation as a sentence.
func ruleText(v fault.Violation, path string) string {
	text := path
	if v.Value != "" {
		text += " " + v.Value
	}
	text += ": " + v.Rule
	if v.Fix != "" {
		text += " (" + v.Fix + ")"
	}
	return text
}

func criticalities() []string {
	return []string{engine.Critical.String(), engine.Standard.String(), engine.Sheddable.String()}
}
