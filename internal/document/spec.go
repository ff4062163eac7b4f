// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/policyd/policyd/sdk/go/engine"
)

// block is a group of fields of the spec, as the table of settings has them.
type block struct {
	path   string // below spec; "" for spec itself
	keys   []string
	fields map[string]engine.Field
	blocks map[string]*block
	// off is what the word off sets, if the block can be off.
	off      engine.Field
	offValue engine.Value
}

// schema is the tree of the table of settings. It must not be changed.
var schema = sync.OnceValue(buildSchema) //nolint:gochecknoglobals // a compiled table

func buildSchema() *block {
	root := newBlock("")
	for _, f := range engine.Fields() {
		at := root
		path := strings.Split(f.Path(), ".")
		for i, key := range path[:len(path)-1] {
			next, ok := at.blocks[key]
			if !ok {
				next = newBlock(strings.Join(path[:i+1], "."))
				at.blocks[key] = next
				at.keys = append(at.keys, key)
			}
			at = next
		}
		key := path[len(path)-1]
		at.fields[key] = f
		at.keys = append(at.keys, key)
		if key == "enabled" {
			at.off, at.offValue = f, engine.Bool(false)
		}
	}
	fallback := root.blocks["fallback"]
	fallback.off, fallback.offValue = engine.FallbackMode, engine.Enum("none")
	return root
}

func newBlock(path string) *block {
	return &block{path: path, fields: map[string]engine.Field{}, blocks: map[string]*block{}}
}

func (b *block) name() string {
	if b.path == "" {
		return "spec"
	}
	return "spec." + b.path
}

// block reads a group of fields into s.
func (o *objectReader) block(b *block, n *node, s engine.Settings) {
	path := b.name()
	switch {
	case n.kind == scalarNode && (n.text == "off" || n.text == "false" && !n.quoted):
		if b.off == 0 {
			o.fail(n.at, path, "%s cannot be off%s", path, meant("", b.keys))
			return
		}
		s[b.off] = b.offValue
		o.object.marks["spec."+b.off.Path()] = n.at
	case n.kind == nullNode:
		o.fail(n.at, path, "%s is empty: delete the line to inherit it", path)
	case n.kind != mapNode:
		o.fail(n.at, path, "%s: a block is due, not %s%s", path, n.is(), meant("", b.keys))
	case len(n.entries) == 0 && b.path != "":
		o.fail(n.at, path, "%s is empty: delete the line to inherit it", path)
	default:
		o.fields(n, path, b.keys, func(key string, child *node) {
			if inner, ok := b.blocks[key]; ok {
				o.block(inner, child, s)
				return
			}
			f := b.fields[key]
			if v, ok := o.value(f, child); ok {
				s[f] = v
			}
		})
	}
}

// value reads one setting.
func (o *objectReader) value(f engine.Field, n *node) (engine.Value, bool) {
	path, spec := "spec."+f.Path(), f.Spec()
	if n.kind == nullNode {
		o.fail(n.at, path, "%s is empty: delete the line to inherit it", path)
		return engine.Value{}, false
	}
	if spec.Kind == engine.KindSet {
		return o.set(f, n)
	}
	if n.kind != scalarNode {
		o.fail(n.at, path, "%s: %s is due, not %s", path, due(spec.Kind), n.is())
		return engine.Value{}, false
	}
	v, err := parse(spec, n)
	if err != nil {
		o.fail(n.at, path, "%s: %s: %s", path, quoteShort(n.text), err)
		return engine.Value{}, false
	}
	return v, true
}

func due(k engine.Kind) string {
	switch k {
	case engine.KindBool:
		return "true or false"
	case engine.KindInt:
		return "a whole number"
	case engine.KindDecimal:
		return "a number"
	case engine.KindDuration:
		return "a duration such as 800ms"
	case engine.KindSet:
		return "a list"
	case engine.KindEnum, engine.KindText:
	}
	return "text"
}

func parse(spec *engine.FieldSpec, n *node) (engine.Value, error) {
	number := spec.Kind == engine.KindBool || spec.Kind == engine.KindInt || spec.Kind == engine.KindDecimal
	if number && n.quoted {
		return engine.Value{}, fmt.Errorf("%s is due, not text: remove the quotes", due(spec.Kind))
	}
	switch spec.Kind {
	case engine.KindBool:
		if n.text != "true" && n.text != "false" {
			return engine.Value{}, fmt.Errorf("write true or false")
		}
		return engine.Bool(n.text == "true"), nil
	case engine.KindInt:
		i, ok := parseInt(n.text)
		if !ok {
			return engine.Value{}, fmt.Errorf("a whole number is due")
		}
		return engine.Int(i), nil
	case engine.KindDecimal:
		share := spec.Bounded && spec.Min >= 0 && spec.Max == engine.Million
		return ParseDecimal(n.text, share)
	case engine.KindDuration:
		d, err := ParseDuration(n.text)
		return engine.Duration(d), err
	case engine.KindEnum:
		if n.literal || !slices.Contains(spec.Words, n.text) {
			return engine.Value{}, fmt.Errorf("unknown word%s", meant(n.text, spec.Words))
		}
		return engine.Enum(n.text), nil
	case engine.KindText, engine.KindSet:
	}
	if n.literal {
		return engine.Value{}, fmt.Errorf("text is due: put it in quotes")
	}
	if spec.Path == engine.HedgingAfter.Path() && n.text != "p95" {
		d, err := ParseDuration(n.text)
		return engine.Text(engine.FormatDuration(d)), err
	}
	return engine.Text(n.text), checkText(n.text)
}

// set reads a list; its order and repeats carry no meaning.
func (o *objectReader) set(f engine.Field, n *node) (engine.Value, bool) {
	path, spec := "spec."+f.Path(), f.Spec()
	switch {
	case n.kind == scalarNode:
		o.fail(n.at, path, "%s: a list is due: [%s]", path, n.text)
		return engine.Value{}, false
	case n.kind != listNode:
		o.fail(n.at, path, "%s: a list is due, not %s", path, n.is())
		return engine.Value{}, false
	}
	items, ok := o.items(path, n, f == engine.RetryOnHTTP)
	for i, item := range items {
		if spec.Words != nil && !slices.Contains(spec.Words, item) {
			o.fail(n.items[i].at, path, "%s: unknown word %s%s", path, quoteShort(item), meant(item, spec.Words))
			ok = false
		}
	}
	return engine.Set(items...), ok
}

// items reads a list of words; numbers may be among them where literals says so.
func (o *objectReader) items(path string, n *node, literals bool) ([]string, bool) {
	if len(n.items) > engine.MaxListItems {
		o.fail(n.at, path, "%s has %d items: at most %d", path, len(n.items), engine.MaxListItems)
		return nil, false
	}
	items, ok := make([]string, 0, len(n.items)), true
	for i, item := range n.items {
		if item.kind != scalarNode || item.literal && !literals {
			o.fail(item.at, path, "%s: item %s: a word is due, not %s", path, strconv.Itoa(i+1), item.is())
			ok = false
		} else if err := checkText(item.text); err != nil {
			o.fail(item.at, path, "%s: item %s: %s", path, strconv.Itoa(i+1), err)
			ok = false
		}
		items = append(items, item.text)
	}
	return items, ok
}
