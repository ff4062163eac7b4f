// SPDX-License-Identifier: Apache-2.0

// Package document reads policies and kill switches from JSON as policyctl writes it. It is
// as strict as policyd: unknown, repeated and wrongly typed keys are errors with line,
// column and a suggestion. It never panics on input and does no I/O.
package document

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// File is the content of a policy file.
type File struct {
	// Revision of the list, 0 if it has none.
	Revision  int64
	Documents []engine.Document
	// Switches end by the wall clock.
	Switches []engine.Switch
}

// Error is what is wrong with a file, and where. Columns count bytes from 1.
type Error struct {
	Line, Column int
	Reason       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

const (
	apiVersion = "policyd/v1"
	kindPolicy = "RetryPolicy"
	kindSwitch = "KillSwitch"
	kindList   = "List"
)

// Parse reads one document or a List of them; two of one scope are an error. Switches whose
// effects are over at now are left out. The error is the first one, an *Error.
func Parse(data []byte, now time.Time) (*File, error) {
	root, err := parseTree(data)
	if err != nil {
		return nil, err
	}
	r := &reader{data: data, file: &File{}, now: now, seen: map[string]bool{}}
	if err := r.root(root); err != nil {
		return nil, err
	}
	r.file.listRevision()
	return r.file, nil
}

// listRevision gives documents without a revision that of their list.
func (f *File) listRevision() {
	for i := range f.Documents {
		if d := &f.Documents[i]; d.Revision == 0 {
			d.Revision = f.Revision
		}
	}
}

type reader struct {
	data []byte
	file *File
	now  time.Time
	seen map[string]bool // scopes and ids
	// relative: what is read was written now.
	relative bool
}

// fail returns an error at a place of the file.
func (r *reader) fail(at int, format string, args ...any) error {
	return errorAt(r.data, at, fmt.Sprintf(format, args...))
}

func (r *reader) root(n *node) error {
	if kind := n.member("kind"); kind == nil || kind.text != kindList {
		return r.document(n)
	}
	return r.fields(n, "", keys{
		"apiVersion": r.apiVersion,
		"kind":       ignored,
		"revision": func(_ string, n *node) error {
			v, err := r.scalar("revision", engine.KindInt, n)
			r.file.Revision = v.Int
			return err
		},
		"items": func(path string, n *node) error {
			if n.kind != array {
				return r.fail(n.at, "%s: a list of documents is due, not %s", path, n.what())
			}
			for _, item := range n.items {
				if err := r.document(item); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func (r *reader) document(n *node) error {
	if n.kind != object {
		return r.fail(n.at, "a document is due, with apiVersion, kind, metadata and spec, not %s", n.what())
	}
	if n.end-n.at > engine.MaxDocumentBytes {
		return r.fail(n.at, "the document has %d bytes: at most %d", n.end-n.at, engine.MaxDocumentBytes)
	}
	var kind string
	var metadata, spec *node
	err := r.fields(n, "", keys{
		"apiVersion": r.apiVersion,
		"kind": func(_ string, n *node) error {
			if kind = n.text; n.kind != text || kind != kindPolicy && kind != kindSwitch {
				return r.fail(n.at, "unknown kind %s%s", n.what(), meant(n.text, []string{kindPolicy, kindSwitch, kindList}))
			}
			return nil
		},
		"metadata": r.block(&metadata),
		"spec":     r.block(&spec),
		"status":   ignored,
	})
	switch {
	case err != nil:
		return err
	case n.member("apiVersion") == nil:
		return r.fail(n.at, "apiVersion is missing: %q", apiVersion)
	case kind == "":
		return r.fail(n.at, "kind is missing: %s or %s", kindPolicy, kindSwitch)
	case metadata == nil:
		return r.fail(n.at, "metadata is missing")
	case spec == nil:
		return r.fail(n.at, "spec is missing")
	case kind == kindSwitch:
		return r.killSwitch(metadata, spec)
	default:
		return r.policy(metadata, spec)
	}
}

func (r *reader) apiVersion(_ string, n *node) error {
	if n.kind != text || n.text != apiVersion {
		return r.fail(n.at, "apiVersion is %s: only %q is known", n.what(), apiVersion)
	}
	return nil
}

// block keeps a member that must be an object.
func (r *reader) block(into **node) func(string, *node) error {
	return func(path string, n *node) error {
		if n.kind != object {
			return r.fail(n.at, "%s: a block is due, not %s", path, n.what())
		}
		*into = n
		return nil
	}
}

// keys are the members that a block may have.
type keys map[string]func(path string, n *node) error

func ignored(string, *node) error { return nil }

// fields visits the members of a block. Unknown keys are errors.
func (r *reader) fields(n *node, path string, known keys) error {
	for _, m := range n.members {
		visit, ok := known[m.key]
		if !ok {
			in := path
			if in == "" {
				in = "the document"
			}
			return r.fail(m.at, "unknown field %s in %s%s", quote(m.key), in, meant(m.key, sortedKeys(known)))
		}
		if err := visit(join(path, m.key), m.value); err != nil {
			return err
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func sortedKeys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for key := range m {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

func (r *reader) text(into *string) func(string, *node) error {
	return func(path string, n *node) error {
		v, err := r.scalar(path, engine.KindText, n)
		*into = v.Text
		return err
	}
}

func (r *reader) scope(into *engine.Scope) func(string, *node) error {
	return func(path string, n *node) error {
		v, err := r.scalar(path, engine.KindText, n)
		if err != nil {
			return err
		}
		if *into, err = engine.ParseScope(v.Text); err != nil {
			return r.fail(n.at, "%s: %s", path, err)
		}
		return nil
	}
}

// policy reads a RetryPolicy.
func (r *reader) policy(metadata, spec *node) error {
	d := engine.Document{Settings: engine.Settings{}}
	known := keys{
		"scope": r.scope(&d.Scope), "owner": r.text(new(string)), "managedBy": r.text(new(string)),
		"annotations": r.texts(func(string, *node) error { return nil }),
		"labels": r.texts(func(key string, n *node) error {
			if key != "criticality" {
				return nil
			}
			var ok bool
			if d.Criticality, ok = engine.ParseCriticality(n.text); !ok || n.text == "" {
				return r.fail(n.at, "metadata.labels.criticality: %s%s", quote(n.text), meant(n.text, criticalities))
			}
			return nil
		}),
		"revision": r.revision(&d.Revision),
	}
	if err := r.fields(metadata, "metadata", serverSet(known)); err != nil {
		return err
	}
	if d.Scope == "" {
		return r.fail(metadata.at, "metadata.scope is missing: global, namespace, namespace/service or namespace/service/endpoint")
	}
	if r.seen["policy "+string(d.Scope)] {
		return r.fail(metadata.at, "a second policy for %s", d.Scope)
	}
	r.seen["policy "+string(d.Scope)] = true
	if err := r.settings(schema(), spec, d.Settings); err != nil {
		return err
	}
	for _, v := range engine.Validate(d.Scope, d.Settings) {
		return r.violated(spec, v)
	}
	r.file.Documents = append(r.file.Documents, d)
	return nil
}

var criticalities = []string{"critical", "standard", "sheddable"} //nolint:gochecknoglobals // a table

// serverSet adds what only policyd sets, so that what it returns can be read again.
func serverSet(known keys) keys {
	for _, key := range []string{"createdAt", "createdBy", "updatedAt", "updatedBy"} {
		known[key] = ignored
	}
	return known
}

func (r *reader) revision(into *int64) func(string, *node) error {
	return func(path string, n *node) error {
		v, err := r.scalar(path, engine.KindInt, n)
		*into = v.Int
		return err
	}
}

func (r *reader) texts(visit func(key string, n *node) error) func(string, *node) error {
	return func(path string, n *node) error {
		if n.kind != object {
			return r.fail(n.at, "%s: a block is due, not %s", path, n.what())
		}
		for _, m := range n.members {
			if _, err := r.scalar(join(path, m.key), engine.KindText, m.value); err != nil {
				return err
			}
			if err := visit(m.key, m.value); err != nil {
				return err
			}
		}
		return nil
	}
}

// violated reports a rule of the engine at the field that breaks it.
func (r *reader) violated(spec *node, v engine.Violation) error {
	at := spec
	for key := range strings.SplitSeq(strings.TrimPrefix(v.Path, "spec."), ".") {
		if next := at.member(key); next != nil {
			at = next
		}
	}
	reason := v.Path
	if v.Value != "" {
		reason += " " + v.Value
	}
	reason += ": " + v.Rule
	if v.Fix != "" {
		reason += " (" + v.Fix + ")"
	}
	return r.fail(at.at, "%s", reason)
}
