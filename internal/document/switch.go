// SPDX-License-Identifier: Apache-2.0

package document

import (
	"slices"
	"time"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/sdk/go/engine"
)

// switchField describes one field of a kill switch; def is empty where there is none.
type switchField struct{ key, kind, def, doc string }

// switchFields is the reference of kill switches, in the order of documents.
func switchFields() []switchField {
	return []switchField{
		{"action", "word", "", "disable-retries, tighten-budget, force-open, force-closed or disable-hedging."},
		{"scope", "scope", "", "Where it acts: this scope and all below."},
		{"except", "list", "", "Scopes below it that are left alone."},
		{"criticality", "word", "", "Only endpoints at or below it: critical, standard or sheddable."},
		{"percent", "integer", "100", "Share of instances, by a stable hash of their id; 1 to 100."},
		{"factor", "ratio", "", "tighten-budget: ratio, floor, capacity and refill times this; 0 to 1."},
		{"admit", "ratio", "0", "force-open: share of first attempts let through; 0 to 1."},
		{"expiresIn", "duration", "", "Time to the end; at most 24h, force-closed 1h. This or expiresAt."},
		{"expiresAt", "time", "", "The end, as 2026-05-04T14:34:05Z."},
		{"incident", "text", "", "Incident it belongs to; required for global."},
		{"reason", "text", "", "Why; required."},
		{"restore", "block", "{over: 2m}", "over: time in which retries or calls come back after the end."},
		{"drill", "boolean", "false", "Recorded and shown, but changes nothing."},
	}
}

func switchKeys() []string {
	var keys []string
	for _, f := range switchFields() {
		keys = append(keys, f.key)
	}
	return keys
}

func (o *objectReader) killSwitch(metadata, spec *node) {
	sw := &Switch{}
	sw.Percent, sw.Restore = 100, engine.DefaultRestoreOver
	o.object.Switch = sw
	before := len(o.errs.List) + o.errs.More
	o.fields(metadata, "metadata", append([]string{"name", "id"}, serverSet...), func(key string, n *node) {
		if key == "name" {
			sw.ID, _ = o.text("metadata.name", n)
		}
	})
	o.fields(spec, "spec", switchKeys(), func(key string, n *node) { o.switchField(sw, key, n) })
	for _, key := range []string{"action", "scope", "reason"} {
		if _, ok := o.object.marks["spec."+key]; !ok {
			o.fail(spec.at, "spec."+key, "spec.%s is missing", key)
		}
	}
	_, in := o.object.marks["spec.expiresIn"]
	_, at := o.object.marks["spec.expiresAt"]
	if in == at {
		o.fail(spec.at, "spec.expiresIn", "a switch must end by itself: set one of spec.expiresIn and spec.expiresAt")
	}
	if _, ok := o.object.marks["spec.factor"]; !ok && sw.Action == engine.TightenBudget {
		o.fail(spec.at, "spec.factor", "spec.factor is missing: tighten-budget needs it, 0.25 for example")
	}
	if len(o.errs.List)+o.errs.More == before {
		o.switchRules(sw)
	}
}

func (o *objectReader) switchField(sw *Switch, key string, n *node) {
	path := "spec." + key
	switch key {
	case "action":
		word, ok := o.text(path, n)
		sw.Action = engine.Action(word)
		if ok && !slices.Contains(engine.Actions(), sw.Action) {
			o.fail(n.at, path, "%s: unknown word %s%s", path, quoteShort(word), meant(word, actions()))
		}
	case "scope":
		sw.Scope = o.scope(path, n)
	case "except":
		o.except(sw, path, n)
	case "criticality":
		word, _ := o.text(path, n)
		c, ok := engine.ParseCriticality(word)
		if sw.Criticality = c; !ok {
			o.fail(n.at, path, "%s: unknown word %s%s", path, quoteShort(word), meant(word, criticalities()))
		}
	case "expiresAt":
		text, ok := o.text(path, n)
		at, err := time.Parse(time.RFC3339, text)
		if sw.Ends = at; ok && err != nil {
			o.fail(n.at, path, "%s: %s: a time such as 2026-05-04T14:34:05Z is due", path, quoteShort(text))
		}
	case "incident":
		sw.Incident, _ = o.text(path, n)
	case "reason":
		sw.Reason, _ = o.text(path, n)
	case "restore":
		if o.blockNode(path, n) != nil {
			o.fields(n, path, []string{"over"}, func(_ string, n *node) {
				sw.Restore = time.Duration(o.scalar(path+".over", engine.KindDuration, n))
			})
		}
	case "percent":
		sw.Percent = int(min(max(o.scalar(path, engine.KindInt, n), -1), 1000))
	case "factor":
		sw.Factor = o.scalar(path, engine.KindDecimal, n)
	case "admit":
		sw.Admit = o.scalar(path, engine.KindDecimal, n)
	case "expiresIn":
		sw.ExpiresIn = time.Duration(o.scalar(path, engine.KindDuration, n))
	case "drill":
		sw.Drill = o.scalar(path, engine.KindBool, n) != 0
	}
}

// scalar reads a number, duration or boolean that is not in the table of settings.
func (o *objectReader) scalar(path string, kind engine.Kind, n *node) int64 {
	spec := &engine.FieldSpec{Path: path, Kind: kind, Bounded: true, Max: engine.Million}
	if n.kind != scalarNode {
		o.fail(n.at, path, "%s: %s is due, not %s", path, due(kind), n.is())
		return 0
	}
	v, err := parse(spec, n)
	if err != nil {
		o.fail(n.at, path, "%s: %s: %s", path, quoteShort(n.text), err)
	}
	return v.Int
}

func (o *objectReader) except(sw *Switch, path string, n *node) {
	if n.kind != listNode {
		o.fail(n.at, path, "%s: a list is due, not %s", path, n.is())
		return
	}
	items, _ := o.items(path, n, false)
	for i, item := range items {
		scope, err := engine.ParseScope(item)
		if err != nil {
			o.fail(n.items[i].at, path, "%s: %s", path, err)
		}
		sw.Except = append(sw.Except, scope)
	}
	slices.Sort(sw.Except)
	sw.Except = slices.Compact(sw.Except)
}

// switchRules applies the rules of the engine. Whether an absolute end is near enough only
// the clock of policyd can say.
func (o *objectReader) switchRules(sw *Switch) {
	now := time.Unix(0, 0)
	check := sw.Switch.Switch
	check.Ends = now.Add(sw.ExpiresIn)
	if sw.ExpiresIn == 0 {
		check.Ends = now.Add(time.Second)
	}
	if check.ID == "" {
		check.ID = "unnamed"
	}
	if _, ok := o.object.marks["spec.expiresIn"]; ok && sw.ExpiresIn == 0 {
		o.fail(o.object.marks["spec.expiresIn"], "spec.expiresIn", "spec.expiresIn: must be above 0")
	}
	for _, v := range engine.ValidateSwitch(check, now) {
		path := v.Path
		switch path {
		case "id":
			path = "metadata.name"
		case "expiresAt":
			path = "spec.expiresIn"
		}
		o.violation(fault.Violation{Value: v.Value, Rule: v.Rule, Fix: v.Fix}, path)
	}
}

func actions() []string {
	var words []string
	for _, a := range engine.Actions() {
		words = append(words, string(a))
	}
	return words
}
