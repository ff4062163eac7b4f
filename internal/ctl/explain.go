// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
)

func newExplainCmd(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "explain [FIELD.PATH]",
		Short: "What a field of a document means, its default and limits",
		Example: `  policyctl explain policy.budget.successGate
  policyctl explain policy --recursive`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeExplain,
		RunE: func(_ *cobra.Command, args []string) error {
			path := ""
			if len(args) == 1 {
				path = args[0]
			}
			return a.explain(path, recursive)
		},
	}
	cmd.Flags().BoolVar(&recursive, "recursive", false, "also everything below")
	return cmd
}

func (a *app) explain(path string, recursive bool) error {
	doc, err := document.Explain(path)
	if err != nil {
		return err
	}
	if !a.human() {
		view := struct {
			envelope
			document.FieldDoc
		}{kind("FieldDoc"), doc}
		return a.result(doc.Path, view, nil)
	}
	if doc.Path == "" {
		a.out.printf("Documents have apiVersion: %s, kind, metadata and spec.   policyctl help format\n", document.APIVersion)
		for _, k := range doc.Fields {
			a.out.printf("\n")
			a.printField(&k, recursive)
		}
		return nil
	}
	a.printField(&doc, recursive)
	return nil
}

func (a *app) printField(d *document.FieldDoc, recursive bool) {
	a.out.printf("%s   %s\n", d.Path, d.Type)
	for _, line := range wrap(d.Doc, 88) {
		a.out.printf("  %s\n", line)
	}
	a.out.printf("\n")
	if len(d.Fields) == 0 {
		a.printLeaf(d)
		return
	}
	var rows [][]string
	a.fieldRows(&rows, d.Path, d.Fields, recursive)
	for _, line := range align(rows) {
		a.out.printf("%s\n", line)
	}
	if d.Off {
		a.out.printf("  Set to `off` to disable.\n")
	}
}

// widestLimit is the most that a column of limits or defaults may take.
const widestLimit = 34

func (a *app) fieldRows(rows *[][]string, base string, fields []document.FieldDoc, recursive bool) {
	for i := range fields {
		f := &fields[i]
		def := ""
		if f.Default != "" {
			def = "default " + f.Default
		}
		doc := f.Doc
		limit := limits(f)
		if width(limit) > widestLimit {
			// One long list of words would push everything else off the screen.
			doc, limit = strings.TrimSpace(doc+" One of "+strings.Join(f.Words, ", ")+"."), fmt.Sprintf("%d words", len(f.Words))
		}
		if width(def) > widestLimit {
			doc, def = strings.TrimSpace(doc+" By default "+f.Default+"."), ""
		}
		*rows = append(*rows, []string{"  " + strings.TrimPrefix(f.Path, base+"."), f.Type, limit, def, doc})
		if recursive {
			a.fieldRows(rows, base, f.Fields, true)
		}
	}
}

func limits(f *document.FieldDoc) string {
	switch {
	case len(f.Words) > 0:
		return strings.Join(f.Words, "|")
	case f.Max != "":
		return f.Min + ".." + f.Max
	}
	return ""
}

func (a *app) printLeaf(d *document.FieldDoc) {
	rows := [][]string{}
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{"  " + name, text})
		}
	}
	add("one of", strings.Join(d.Words, ", "))
	if d.Max != "" {
		add("range", d.Min+" to "+d.Max)
	}
	add("default", orDefault(d.Default, "none"))
	add("stands at", strings.Join(d.Scopes, ", "))
	if !d.Inherited && strings.HasPrefix(d.Path, "policy.") {
		add("inherited", "no")
	}
	for _, line := range align(rows) {
		a.out.printf("%s\n", line)
	}
}
