// SPDX-License-Identifier: Apache-2.0

package document

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// killSwitch reads a KillSwitch. Its end must be a moment: nothing says when a file was
// written.
func (r *reader) killSwitch(metadata, spec *node) error {
	sw := engine.Switch{Percent: 100, Restore: engine.DefaultRestoreOver}
	err := r.fields(metadata, "metadata", serverSet(keys{
		"name": r.text(&sw.ID), "id": r.text(&sw.ID), "revision": r.revision(&sw.Revision),
	}))
	if err != nil {
		return err
	}
	if err := r.fields(spec, "spec", r.switchFields(&sw)); err != nil {
		return err
	}
	switch {
	case sw.ID == "":
		return r.fail(metadata.at, "metadata.name is missing")
	case sw.Ends.IsZero():
		return r.fail(spec.at, "spec.expiresAt is missing: a switch must end by itself")
	case r.seen["switch "+sw.ID]:
		return r.fail(metadata.at, "a second switch %s", sw.ID)
	}
	r.seen["switch "+sw.ID] = true
	for _, v := range engine.ValidateSwitch(sw, r.now) {
		return r.violated(spec, v)
	}
	if r.now.Before(sw.Ends.Add(sw.Restore)) {
		r.file.Switches = append(r.file.Switches, sw)
	}
	return nil
}

func (r *reader) switchFields(sw *engine.Switch) keys {
	scalar := func(k engine.Kind, set func(engine.Value)) func(string, *node) error {
		return func(path string, n *node) error {
			v, err := r.scalar(path, k, n)
			set(v)
			return err
		}
	}
	return keys{
		"action":    scalar(engine.KindText, func(v engine.Value) { sw.Action = engine.Action(v.Text) }),
		"scope":     r.scope(&sw.Scope),
		"percent":   scalar(engine.KindInt, func(v engine.Value) { sw.Percent = int(min(max(v.Int, -1), 1000)) }),
		"factor":    scalar(engine.KindDecimal, func(v engine.Value) { sw.Factor = v.Int }),
		"admit":     scalar(engine.KindDecimal, func(v engine.Value) { sw.Admit = v.Int }),
		"incident":  r.text(&sw.Incident),
		"reason":    r.text(&sw.Reason),
		"drill":     scalar(engine.KindBool, func(v engine.Value) { sw.Drill = v.True() }),
		"except":    r.except(sw),
		"expiresAt": r.moment(&sw.Ends),
		"expiresIn": func(path string, n *node) error {
			if r.relative {
				v, err := r.scalar(path, engine.KindDuration, n)
				sw.Ends = r.now.Add(v.Duration())
				return err
			}
			return r.fail(n.at, "%s counts from a moment that a file does not have: set expiresAt", path)
		},
		"criticality": func(path string, n *node) error {
			var ok bool
			if sw.Criticality, ok = engine.ParseCriticality(n.text); n.kind != text || !ok || n.text == "" {
				return r.fail(n.at, "%s: unknown word %s%s", path, n.what(), meant(n.text, criticalities))
			}
			return nil
		},
		"restore": func(path string, n *node) error {
			var over *node
			if err := r.block(&over)(path, n); err != nil {
				return err
			}
			return r.fields(n, path, keys{
				"over": scalar(engine.KindDuration, func(v engine.Value) { sw.Restore = v.Duration() }),
			})
		},
	}
}

func (r *reader) except(sw *engine.Switch) func(string, *node) error {
	return func(path string, n *node) error {
		items, err := r.list(path, n, false)
		if err != nil {
			return err
		}
		for i, item := range items {
			scope, err := engine.ParseScope(item)
			if err != nil {
				return r.fail(n.items[i].at, "%s: %s", path, err)
			}
			sw.Except = append(sw.Except, scope)
		}
		return nil
	}
}

func (r *reader) moment(into *time.Time) func(string, *node) error {
	return func(path string, n *node) error {
		at, err := time.Parse(time.RFC3339, n.text)
		if n.kind != text || err != nil {
			return r.fail(n.at, "%s: a time such as 2026-05-04T14:34:05Z is due, not %s", path, n.what())
		}
		*into = at
		return nil
	}
}
