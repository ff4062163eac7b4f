// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// YAML writes documents as one stream. Fields come in the order of the reference; text that
// a YAML reader could take for something else is quoted.
func YAML(objects ...*Object) ([]byte, error) {
	var out bytes.Buffer
	for i, o := range objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		if err := writeYAML(&out, o.tree(true)); err != nil {
			return nil, fmt.Errorf("write %s %s as YAML: %w", o.Kind(), o.Name(), err)
		}
	}
	return out.Bytes(), nil
}

func writeYAML(out *bytes.Buffer, tree *yaml.Node) error {
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	return errors.Join(encoder.Encode(tree), encoder.Close())
}

// MarshalJSON writes the document as JSON.
func (o *Object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	writeJSON(&out, o.tree(false))
	return out.Bytes(), nil
}

// AnyYAML writes whatever encoding/json can write as YAML, fields in the same order.
func AnyYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	r := &reader{}
	roots := r.readJSON(text)
	if err := r.fault(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, root := range roots {
		if err := writeYAML(&out, yamlOf(root)); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

func yamlOf(n *node) *yaml.Node {
	switch n.kind {
	case mapNode:
		m := mapping()
		for _, e := range n.entries {
			add(m, e.key, yamlOf(e.value))
		}
		return m
	case listNode:
		l := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range n.items {
			l.Content = append(l.Content, yamlOf(item))
		}
		return l
	case nullNode:
		return plain("!!null", "null")
	case scalarNode:
	}
	switch {
	case n.quoted:
		return str(n.text)
	case n.text == "true" || n.text == "false":
		return plain("!!bool", n.text)
	}
	return numberNode(n.text)
}

// numberNode has the tag that a reader gives the number, so that it is not written out.
func numberNode(text string) *yaml.Node {
	if strings.ContainsAny(text, ".eE") {
		return plain("!!float", text)
	}
	return plain("!!int", text)
}

// tree builds the document; forYAML says that a block which is only off is written so.
func (o *Object) tree(forYAML bool) *yaml.Node {
	doc := mapping()
	add(doc, "apiVersion", str(APIVersion))
	add(doc, "kind", str(o.Kind()))
	if o.Switch != nil {
		add(doc, "metadata", switchMetadata(o.Switch))
		add(doc, "spec", switchSpec(o.Switch))
	} else {
		add(doc, "metadata", policyMetadata(o.Policy))
		spec := settings(schema(), o.Policy.Settings, forYAML)
		if spec == nil {
			spec = flow(mapping())
		}
		add(doc, "spec", spec)
	}
	if status := o.Status.tree(); len(status.Content) > 0 {
		add(doc, "status", status)
	}
	return doc
}

func policyMetadata(p *policy.Policy) *yaml.Node {
	m := mapping()
	add(m, "scope", str(string(p.Scope)))
	addText(m, "owner", p.Metadata.Owner)
	addTexts(m, "labels", p.Metadata.Labels)
	addTexts(m, "annotations", p.Metadata.Annotations)
	addText(m, "managedBy", p.Metadata.ManagedBy)
	addRevision(m, p.Revision)
	addStamp(m, "created", p.Metadata.CreatedAt, p.Metadata.CreatedBy)
	addStamp(m, "updated", p.Metadata.UpdatedAt, p.Metadata.UpdatedBy)
	return m
}

func switchMetadata(sw *Switch) *yaml.Node {
	m := mapping()
	if sw.ID != "" {
		add(m, "name", str(sw.ID))
		if sw.Revision != 0 {
			add(m, "id", str(sw.ID))
		}
	}
	addRevision(m, sw.Revision)
	addStamp(m, "created", sw.CreatedAt, sw.CreatedBy)
	addStamp(m, "updated", sw.UpdatedAt, sw.UpdatedBy)
	if len(m.Content) == 0 {
		flow(m)
	}
	return m
}

func switchSpec(sw *Switch) *yaml.Node {
	m := mapping()
	add(m, "action", str(string(sw.Action)))
	add(m, "scope", str(string(sw.Scope)))
	if len(sw.Except) > 0 {
		list := flow(&yaml.Node{Kind: yaml.SequenceNode})
		for _, s := range sw.Except {
			list.Content = append(list.Content, str(string(s)))
		}
		add(m, "except", list)
	}
	addText(m, "criticality", sw.Criticality.String())
	if sw.Percent != 100 && sw.Percent != 0 {
		add(m, "percent", plain("!!int", strconv.Itoa(sw.Percent)))
	}
	if sw.Action == engine.TightenBudget {
		add(m, "factor", scalarOf(engine.Micro(sw.Factor)))
	}
	if sw.Admit != 0 {
		add(m, "admit", scalarOf(engine.Micro(sw.Admit)))
	}
	if sw.ExpiresIn > 0 {
		add(m, "expiresIn", scalarOf(engine.Duration(sw.ExpiresIn)))
	} else {
		add(m, "expiresAt", timeNode(sw.Ends))
	}
	addText(m, "incident", sw.Incident)
	add(m, "reason", str(sw.Reason))
	restore := flow(mapping())
	add(restore, "over", scalarOf(engine.Duration(sw.Restore)))
	add(m, "restore", restore)
	if sw.Drill {
		add(m, "drill", plain("!!bool", "true"))
	}
	return m
}

func (s *Status) tree() *yaml.Node {
	m := mapping()
	if s == nil {
		return m
	}
	addText(m, "phase", string(s.Phase))
	if !s.EndedAt.IsZero() {
		add(m, "endedAt", timeNode(s.EndedAt.Truncate(time.Second)))
	}
	if in := s.Instances; in != nil {
		counts := flow(mapping())
		for _, c := range []struct {
			key string
			n   int64
		}{{"target", in.Target}, {"inForce", in.InForce}, {"behind", in.Behind}, {"rejected", in.Rejected}, {"stale", in.Stale}} {
			add(counts, c.key, plain("!!int", strconv.FormatInt(c.n, 10)))
		}
		add(m, "instances", counts)
	}
	return m
}

// MarshalJSON writes the status as JSON.
func (s *Status) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	writeJSON(&out, s.tree())
	return out.Bytes(), nil
}

// settings writes the fields of a block that are set, nil if none is.
func settings(b *block, s engine.Settings, forYAML bool) *yaml.Node {
	m := mapping()
	for _, key := range b.keys {
		if inner, ok := b.blocks[key]; ok {
			if child := settings(inner, s, forYAML); child != nil {
				add(m, key, child)
			}
			continue
		}
		f := b.fields[key]
		if v, ok := s[f]; ok {
			add(m, key, fieldNode(f, v))
		}
	}
	off, isSet := s[b.off]
	switch {
	case len(m.Content) == 0:
		return nil
	case forYAML && b.off != 0 && len(m.Content) == 2 && isSet && off.Equal(b.offValue):
		return plain("!!str", "off")
	}
	return m
}

func fieldNode(f engine.Field, v engine.Value) *yaml.Node {
	if v.Kind != engine.KindSet {
		return scalarOf(v)
	}
	list := flow(&yaml.Node{Kind: yaml.SequenceNode})
	for _, item := range v.Set {
		n := str(item)
		if _, isStatus := parseInt(item); f == engine.RetryOnHTTP && isStatus {
			n = plain("!!int", item)
		}
		list.Content = append(list.Content, n)
	}
	return list
}

func scalarOf(v engine.Value) *yaml.Node {
	switch v.Kind {
	case engine.KindBool:
		return plain("!!bool", v.String())
	case engine.KindInt:
		return plain("!!int", v.String())
	case engine.KindDecimal:
		return numberNode(v.String())
	case engine.KindDuration:
		return str(engine.FormatDuration(v.Duration()))
	case engine.KindEnum, engine.KindText, engine.KindSet:
	}
	return str(v.Text)
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func flow(n *yaml.Node) *yaml.Node {
	n.Style = yaml.FlowStyle
	return n
}

func plain(tag, text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}
}

// str is a text. A text of several lines is a block where that keeps it exactly.
func str(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if yaml11.MatchString(text) {
		n.Style = yaml.DoubleQuotedStyle
	}
	if strings.ContainsAny(text, "\n\r\t\ufeff\u2028\u2029\u0085") {
		n.Style = yaml.DoubleQuotedStyle
		if isBlockText(text) {
			n.Style = yaml.LiteralStyle
		}
	}
	return n
}

// yaml11 is what readers of YAML 1.1 take for a boolean, a number or a special value.
var yaml11 = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|=|[-+]?[0-9][0-9_:]*(\.[0-9_]*)?)$`)

func isBlockText(text string) bool {
	if strings.ContainsAny(text, "\r\t\ufeff\u2028\u2029\u0085") || !strings.HasSuffix(text, "\n") {
		return false
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.TrimSpace(line) != line {
			return false
		}
	}
	return true
}

func add(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, str(key), value)
}

func addText(m *yaml.Node, key, text string) {
	if text != "" {
		add(m, key, str(text))
	}
}

func addTexts(m *yaml.Node, key string, texts map[string]string) {
	if len(texts) == 0 {
		return
	}
	inner := mapping()
	for _, k := range slices.Sorted(maps.Keys(texts)) {
		add(inner, k, str(texts[k]))
	}
	add(m, key, inner)
}

func addRevision(m *yaml.Node, r policy.Revision) {
	if r != 0 {
		add(m, "revision", plain("!!int", strconv.FormatInt(int64(r), 10)))
	}
}

func addStamp(m *yaml.Node, what string, at time.Time, by policy.Actor) {
	if !at.IsZero() {
		add(m, what+"At", timeNode(at.Truncate(time.Second)))
	}
	if by == (policy.Actor{}) {
		return
	}
	actor := flow(mapping())
	add(actor, "name", str(by.Name))
	addText(actor, "via", by.Via)
	add(m, what+"By", actor)
}

// timeNode is quoted in JSON and plain in YAML.
func timeNode(at time.Time) *yaml.Node {
	return plain("!!timestamp", at.UTC().Format(time.RFC3339Nano))
}

func writeJSON(out *bytes.Buffer, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		out.WriteByte('{')
		for i := 0; i < len(n.Content); i += 2 {
			if i > 0 {
				out.WriteByte(',')
			}
			writeJSON(out, n.Content[i])
			out.WriteByte(':')
			writeJSON(out, n.Content[i+1])
		}
		out.WriteByte('}')
	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				out.WriteByte(',')
			}
			writeJSON(out, item)
		}
		out.WriteByte(']')
	default:
		if n.Tag != "!!str" && n.Tag != "!!timestamp" {
			out.WriteString(n.Value)
			return
		}
		text, _ := json.Marshal(n.Value) // a string always marshals
		out.Write(text)
	}
}
