// SPDX-License-Identifier: Apache-2.0

package document

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// block is a group of settings, as the engine's table has them.
type block struct {
	path   string // "spec", "spec.budget", …
	fields map[string]engine.Field
	blocks map[string]*block
	// off is the setting that switches the block off, and its value; 0 if nothing does.
	off      engine.Field
	offValue engine.Value
}

var schema = sync.OnceValue(func() *block { //nolint:gochecknoglobals // a compiled table
	group := func(path string) *block {
		return &block{path: path, fields: map[string]engine.Field{}, blocks: map[string]*block{}}
	}
	root := group("spec")
	for _, f := range engine.Fields() {
		at := root
		path := strings.Split(f.Path(), ".")
		for _, key := range path[:len(path)-1] {
			if at.blocks[key] == nil {
				at.blocks[key] = group(at.path + "." + key)
			}
			at = at.blocks[key]
		}
		key := path[len(path)-1]
		if at.fields[key] = f; key == "enabled" {
			at.off, at.offValue = f, engine.Bool(false)
		}
	}
	fallback := root.blocks["fallback"]
	fallback.off, fallback.offValue = engine.FallbackMode, engine.Enum("none")
	return root
})

func (b *block) keys() []string {
	return slices.Sorted(slices.Values(append(sortedKeys(b.fields), sortedKeys(b.blocks)...)))
}

// settings reads a block into s.
func (r *reader) settings(b *block, n *node, s engine.Settings) error {
	if n.kind == text && n.text == "off" || n.kind == boolean && n.text == "false" {
		if b.off == 0 {
			return r.fail(n.at, "%s cannot be off", b.path)
		}
		s[b.off] = b.offValue
		return nil
	}
	if n.kind != object {
		return r.fail(n.at, "%s: a block is due, not %s", b.path, n.what())
	}
	for _, m := range n.members {
		if inner := b.blocks[m.key]; inner != nil {
			if err := r.settings(inner, m.value, s); err != nil {
				return err
			}
			continue
		}
		f, ok := b.fields[m.key]
		if !ok {
			return r.fail(m.at, "unknown field %s in %s%s", quote(m.key), b.path, meant(m.key, b.keys()))
		}
		v, err := r.setting(f, b.path+"."+m.key, m.value)
		if err != nil {
			return err
		}
		s[f] = v
	}
	return nil
}

func (r *reader) setting(f engine.Field, path string, n *node) (engine.Value, error) {
	spec := f.Spec()
	if spec.Kind == engine.KindSet {
		items, err := r.list(path, n, f == engine.RetryOnHTTP)
		return engine.Set(items...), err
	}
	share := spec.Bounded && spec.Min >= 0 && spec.Max == engine.Million
	if percent, ok := strings.CutSuffix(n.text, "%"); ok && n.plain && share && spec.Kind == engine.KindDecimal {
		n = &node{kind: number, text: percent + "e-2", at: n.at, end: n.end}
	}
	v, err := r.scalar(path, spec.Kind, n)
	if err == nil && spec.Kind == engine.KindEnum && !slices.Contains(spec.Words, v.Text) {
		err = r.fail(n.at, "%s: unknown word %s%s", path, quote(v.Text), meant(v.Text, spec.Words))
	}
	return v, err
}

// list reads a list of words; numbers may be among them where numbers says so.
func (r *reader) list(path string, n *node, numbers bool) ([]string, error) {
	if n.kind != array {
		return nil, r.fail(n.at, "%s: a list is due, not %s", path, n.what())
	}
	if len(n.items) > engine.MaxListItems {
		return nil, r.fail(n.at, "%s has %d items: at most %d", path, len(n.items), engine.MaxListItems)
	}
	items := make([]string, 0, len(n.items))
	for _, item := range n.items {
		if !item.isText() && (!numbers || item.kind != number) {
			return nil, r.fail(item.at, "%s: a word is due, not %s", path, item.what())
		}
		items = append(items, item.text)
	}
	return items, nil
}

// scalar reads one value of a kind.
func (r *reader) scalar(path string, k engine.Kind, n *node) (engine.Value, error) {
	wrong := func(due string) (engine.Value, error) {
		return engine.Value{}, r.fail(n.at, "%s: %s is due, not %s", path, due, n.what())
	}
	switch k {
	case engine.KindBool:
		if n.kind != boolean {
			return wrong("true or false")
		}
		return engine.Bool(n.text == "true"), nil
	case engine.KindInt:
		i, err := strconv.ParseInt(n.text, 10, 64)
		if n.kind != number || err != nil {
			return wrong("a whole number")
		}
		return engine.Int(i), nil
	case engine.KindDecimal:
		f, err := strconv.ParseFloat(n.text, 64)
		if n.kind != number || err != nil {
			return wrong("a number")
		}
		v, ok := engine.Decimal(f)
		if !ok || math.Abs(f*engine.Million-math.Round(f*engine.Million)) > 1e-4 {
			return wrong("a number with at most 6 digits after the point")
		}
		return v, nil
	case engine.KindDuration:
		d, err := time.ParseDuration(n.text)
		zero := n.kind == number && n.text == "0"
		if !zero && (n.kind != text || err != nil || d < 0) {
			return wrong("a duration with its unit, such as 800ms,")
		}
		return engine.Duration(d), nil
	default:
		if !n.isText() {
			return wrong("text")
		}
		if len(n.text) > engine.MaxTextBytes || engine.HasControl(n.text, true) {
			return engine.Value{}, r.fail(n.at, "%s: text of at most %d bytes without control characters is due", path, engine.MaxTextBytes)
		}
		if k == engine.KindEnum {
			return engine.Enum(n.text), nil
		}
		return engine.Text(n.text), nil
	}
}
