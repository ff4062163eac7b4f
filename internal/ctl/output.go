// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/itchyny/gojq"
	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
)

// Formats of output.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asJSONL = "jsonl"
	asName  = "name"
)

func outputs() []string { return []string{asTable, asWide, asJSON, asYAML, asJSONL, asName} }

func (a *app) checkOutput(cmd *cobra.Command) error {
	g := &a.global
	if !slices.Contains(outputs(), g.output) {
		return usagef("-o %s: use one of %s", g.output, strings.Join(outputs(), ", "))
	}
	if g.jq == "" {
		return nil
	}
	if cmd.Flags().Changed("output") && g.output != asJSON && g.output != asJSONL {
		return usagef("--jq works on JSON: leave -o %s out", g.output)
	}
	if _, err := gojq.Parse(g.jq); err != nil {
		return usagef("--jq: %s", err)
	}
	if g.output != asJSONL {
		g.output = asJSON
	}
	return nil
}

// human reports whether people read the output.
func (a *app) human() bool { return a.global.output == asTable || a.global.output == asWide }

// list is what a command found, in every format.
type list struct {
	kind     string
	revision int64
	items    []item
	// columns of tables; those with wide are left out of -o table.
	columns []column
	// documents says that the items are documents, so that YAML is a stream of them.
	documents bool
	// empty is said to people where there are no items.
	empty string
}

type column struct {
	name string
	wide bool
}

type item struct {
	name  string
	value any // marshals to JSON
	cells []string
}

func cols(names ...string) []column {
	columns := make([]column, 0, len(names))
	for _, name := range names {
		bare, wide := strings.CutSuffix(name, "+")
		columns = append(columns, column{bare, wide})
	}
	return columns
}

// show prints a list.
func (a *app) show(l *list) error {
	switch a.global.output {
	case asName:
		for _, it := range l.items {
			a.out.printf("%s\n", clean(it.name))
		}
		return nil
	case asJSONL:
		for _, it := range l.items {
			if err := a.printJSON(it.value); err != nil {
				return err
			}
		}
		return nil
	case asJSON:
		return a.printJSON(l.object())
	case asYAML:
		if l.documents {
			return a.printDocuments(l)
		}
		return a.printYAML(l.object())
	}
	if len(l.items) == 0 && l.empty != "" {
		a.say("%s\n", l.empty)
		return nil
	}
	a.printTable(l)
	return nil
}

func (a *app) printDocuments(l *list) error {
	var objects []*document.Object
	for _, it := range l.items {
		if o, ok := it.value.(*document.Object); ok {
			objects = append(objects, o)
		}
	}
	text, err := document.YAML(objects...)
	if err != nil {
		return err
	}
	_, _ = a.out.w.Write(text) // nobody is left to tell
	return nil
}

// envelope is the object around a list or a result.
type envelope struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func kind(name string) envelope { return envelope{document.APIVersion, name} }

func (l *list) object() any {
	values := make([]any, 0, len(l.items))
	for _, it := range l.items {
		values = append(values, it.value)
	}
	return struct {
		envelope
		Revision int64 `json:"revision"`
		Items    []any `json:"items"`
	}{kind(l.kind), l.revision, values}
}

// result prints one object: text for people, else the value.
func (a *app) result(name string, value any, text func()) error {
	switch a.global.output {
	case asName:
		a.out.printf("%s\n", clean(name))
		return nil
	case asJSON, asJSONL:
		return a.printJSON(value)
	case asYAML:
		if o, ok := value.(*document.Object); ok {
			return a.printDocuments(&list{items: []item{{value: o}}})
		}
		return a.printYAML(value)
	}
	text()
	return nil
}

// printJSON prints one line, or what the jq expression makes of it.
func (a *app) printJSON(value any) error {
	text, err := marshal(value)
	if err != nil {
		return err
	}
	if a.global.jq != "" {
		return a.filter(text)
	}
	if a.global.output == asJSON && a.out.tty {
		var pretty bytes.Buffer
		if json.Indent(&pretty, text, "", "  ") == nil {
			text = pretty.Bytes()
		}
	}
	_, _ = a.out.w.Write(append(text, '\n')) // nobody is left to tell
	return nil
}

// marshal is json.Marshal that leaves <, > and & alone.
func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func (a *app) printYAML(value any) error {
	text, err := document.AnyYAML(value)
	if err != nil {
		return err
	}
	_, _ = a.out.w.Write(text) // nobody is left to tell
	return nil
}

// filter runs the jq expression; text results are printed bare, as gh does.
func (a *app) filter(text []byte) error {
	query, err := gojq.Parse(a.global.jq)
	if err != nil {
		return usagef("--jq: %s", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return err
	}
	results := query.Run(value)
	for {
		v, ok := results.Next()
		if !ok {
			return nil
		}
		if err, ok := v.(error); ok {
			return usagef("--jq: %s", err)
		}
		if s, ok := v.(string); ok {
			a.out.printf("%s\n", clean(s))
			continue
		}
		out, err := gojq.Marshal(v)
		if err != nil {
			return usagef("--jq: %s", err)
		}
		_, _ = a.out.w.Write(append(out, '\n')) // nobody is left to tell
	}
}
