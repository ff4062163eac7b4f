// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type effectiveOptions struct {
	scope engine.Scope
	field string
	all   bool
	watch bool
}

func newEffectiveCmd(a *app) *cobra.Command {
	o := &effectiveOptions{}
	cmd := &cobra.Command{
		Use:   "effective SCOPE",
		Short: "What applies at a scope, and why",
		Long:  "Merges what applies at a scope and names the origin of each value: the document,\nthe ceiling that clipped it, the kill switch that overrides it.",
		Example: `  policyctl effective shop/payments/charges.create
  policyctl effective shop/payments/charges.create --field maxAttempts -o json`,
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.scope, err = scopeArg(args[0]); err != nil {
				return err
			}
			if o.field, err = fieldArg(o.field); err != nil {
				return err
			}
			if o.watch {
				return a.watch(cmd.Context(), func(ctx context.Context) (*list, error) { return a.effectiveList(ctx, o) })
			}
			return a.effective(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.field, "field", "", "only this field, for example budget.ratio")
	f.BoolVar(&o.all, "all", false, "also what nobody set")
	watchVar(cmd, &o.watch)
	_ = cmd.RegisterFlagCompletionFunc("field", completeFields)
	return cmd
}

// fieldArg checks the path of a setting; "spec." and "policy." may stand before it.
func fieldArg(path string) (string, error) {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "spec."), "policy.")
	if path == "" {
		return "", nil
	}
	var known []string
	for _, f := range engine.Fields() {
		if f.Path() == path || strings.HasPrefix(f.Path(), path+".") {
			return path, nil
		}
		known = append(known, f.Path())
	}
	f := failf(exitNotFound, "not-found", "there is no field %q", path)
	if near := document.Suggest(path, known); near != "" {
		return "", f.hint("Did you mean %s?", near)
	}
	return "", f.hint("See:  policyctl explain policy --recursive")
}

type originView struct {
	From     string     `json:"from"`
	Revision int64      `json:"revision,omitempty"`
	By       string     `json:"by,omitempty"`
	At       *time.Time `json:"at,omitempty"`
}

type shadowView struct {
	Value json.RawMessage `json:"value"`
	originView
}

type valueView struct {
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
	originView
	Ceiling string       `json:"ceiling,omitempty"`
	Shadows []shadowView `json:"shadows,omitempty"`
}

type effectiveView struct {
	envelope
	Scope     string       `json:"scope"`
	Revision  int64        `json:"revision"`
	Values    []valueView  `json:"values"`
	Switches  []string     `json:"switches"`
	Instances progressView `json:"instances"`
}

func viewOrigin(o *policydv1.Origin) originView {
	return originView{o.GetFrom(), o.GetRevision(), o.GetBy().GetName(), timeView(o.GetAt())}
}

// viewValue turns the YAML form of a value into JSON: numbers stay numbers.
func viewValue(path, text string) json.RawMessage {
	f, ok := engine.FieldByPath(path)
	if ok {
		switch f.Spec().Kind {
		case engine.KindBool, engine.KindInt, engine.KindDecimal:
			if json.Valid([]byte(text)) {
				return json.RawMessage(text)
			}
		case engine.KindSet:
			return viewSet(f, text)
		case engine.KindDuration, engine.KindEnum, engine.KindText:
		}
	}
	quoted, _ := json.Marshal(text) // a string always marshals
	return quoted
}

func viewSet(f engine.Field, text string) json.RawMessage {
	items := []any{}
	for part := range strings.SplitSeq(strings.Trim(text, "[]"), ", ") {
		switch {
		case part == "":
		case f == engine.RetryOnHTTP && json.Valid([]byte(part)):
			items = append(items, json.RawMessage(part))
		default:
			items = append(items, part)
		}
	}
	out, _ := json.Marshal(items) // texts and numbers always marshal
	return out
}

func viewEffective(v *policydv1.EffectiveValue) valueView {
	view := valueView{
		Path: v.GetPath(), Value: viewValue(v.GetPath(), v.GetValue()),
		originView: viewOrigin(v.GetOrigin()), Ceiling: v.GetCeiling(),
	}
	for _, s := range v.GetShadows() {
		view.Shadows = append(view.Shadows, shadowView{viewValue(v.GetPath(), s.GetValue()), viewOrigin(s.GetOrigin())})
	}
	return view
}

func (a *app) loadEffective(ctx context.Context, o *effectiveOptions) (*policydv1.GetEffectiveResponse, error) {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetEffective, &policydv1.GetEffectiveRequest{Scope: string(o.scope)})
	if err != nil {
		return nil, err
	}
	if o.field != "" {
		resp.Values = slices.DeleteFunc(resp.GetValues(), func(v *policydv1.EffectiveValue) bool {
			return v.GetPath() != o.field && !strings.HasPrefix(v.GetPath(), o.field+".")
		})
	}
	return resp, nil
}

func (a *app) effective(ctx context.Context, o *effectiveOptions) error {
	resp, err := a.loadEffective(ctx, o)
	if err != nil {
		return err
	}
	view := effectiveView{
		envelope: kind("EffectivePolicy"), Scope: string(o.scope), Revision: resp.GetRevision(),
		Values: []valueView{}, Switches: []string{}, Instances: viewProgress(resp.GetProgress()),
	}
	for _, v := range resp.GetValues() {
		view.Values = append(view.Values, viewEffective(v))
	}
	for _, k := range resp.GetSwitches() {
		view.Switches = append(view.Switches, k.GetId())
	}
	if a.global.output == asName {
		for _, v := range resp.GetValues() {
			a.out.printf("%s\n", v.GetPath())
		}
		return nil
	}
	return a.result(string(o.scope), view, func() {
		l, hidden := a.effectiveTable(resp, o)
		a.printTable(l)
		if hidden > 0 {
			a.out.printf("…%d more: --all\n", hidden)
		}
		p := resp.GetProgress()
		line := plural(p.GetInForce(), "instance reports this", "instances report this")
		if left := p.GetTarget() - p.GetInForce(); left > 0 {
			line += fmt.Sprintf("; %s: policyctl fleet %s --not-in-force", plural(left, "differs", "differ"), o.scope)
		}
		a.out.printf("%s\n", line)
	})
}

func (a *app) effectiveList(ctx context.Context, o *effectiveOptions) (*list, error) {
	resp, err := a.loadEffective(ctx, o)
	if err != nil {
		return nil, err
	}
	l, _ := a.effectiveTable(resp, o)
	return l, nil
}

// always are the fields that are shown although nobody set them.
func always(path string) bool {
	switch path {
	case "maxAttempts", "backoff.base", "backoff.max", "backoff.jitter", "budget.ratio":
		return true
	}
	return false
}

func (a *app) effectiveTable(resp *policydv1.GetEffectiveResponse, o *effectiveOptions) (l *list, hidden int) {
	l = &list{kind: "EffectivePolicy", revision: resp.GetRevision(), columns: cols("FIELD", "VALUE", "FROM", "SHADOWS")}
	left := make(map[string]time.Duration)
	for _, k := range resp.GetSwitches() {
		left["switch "+k.GetId()] = k.GetExpiresAt().AsTime().Sub(a.env.Now())
	}
	for _, v := range resp.GetValues() {
		from := v.GetOrigin().GetFrom()
		if !o.all && o.field == "" && from == engine.BuiltIn && v.GetCeiling() == "" && !always(v.GetPath()) {
			hidden++
			continue
		}
		value := oneLine(v.GetValue())
		origin := a.originText(v.GetOrigin())
		if remaining, ok := left[from]; ok {
			value += " " + a.out.yellow("▲")
			origin = from + ", " + shortDuration(remaining.Round(time.Second)) + " left"
		}
		if v.GetCeiling() != "" {
			origin += ", clipped by the ceiling of " + clean(v.GetCeiling())
		}
		var shadows []string
		for i, s := range v.GetShadows() {
			if i == 0 || o.field != "" {
				shadows = append(shadows, oneLine(s.GetValue())+" "+clean(s.GetOrigin().GetFrom()))
			}
		}
		l.items = append(l.items, item{
			name: v.GetPath(), value: viewEffective(v),
			cells: []string{v.GetPath(), value, origin, strings.Join(shadows, ", ")},
		})
	}
	return l, hidden
}

func (a *app) originText(o *policydv1.Origin) string {
	text := clean(o.GetFrom())
	var more []string
	if o.GetRevision() > 0 {
		more = append(more, fmt.Sprintf("rev %d", o.GetRevision()))
	}
	if name := o.GetBy().GetName(); name != "" {
		more = append(more, clean(name))
	}
	if o.GetAt() != nil {
		more = append(more, a.ago(o.GetAt().AsTime()))
	}
	if len(more) > 0 && !strings.HasPrefix(text, "switch ") {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}

func joinSorted(words []string) string {
	slices.Sort(words)
	return strings.Join(words, ", ")
}
