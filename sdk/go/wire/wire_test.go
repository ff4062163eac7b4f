// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/wire"
)

// sample is a value of f's kind that is not the zero value.
func sample(f engine.Field) engine.Value {
	switch s := f.Spec(); s.Kind {
	case engine.KindBool:
		return engine.Bool(true)
	case engine.KindInt:
		return engine.Int(7)
	case engine.KindDecimal:
		return engine.Micro(250_000)
	case engine.KindDuration:
		return engine.Duration(1500 * time.Millisecond)
	case engine.KindEnum:
		return engine.Enum(s.Words[len(s.Words)-1])
	case engine.KindSet:
		return engine.Set("b", "a")
	default:
		return engine.Text("x")
	}
}

func TestSettings_every_field_survives_the_wire(t *testing.T) {
	for _, f := range engine.Fields() {
		want := engine.Settings{f: sample(f)}
		raw, err := proto.Marshal(wire.Spec(want))
		if err != nil {
			t.Fatal(err)
		}
		var spec policydv1.PolicySpec
		if err := proto.Unmarshal(raw, &spec); err != nil {
			t.Fatal(err)
		}
		got, err := wire.Settings(&spec)
		if err != nil || len(got) != 1 || !got[f].Equal(want[f]) {
			t.Errorf("%s: got %v, %v, want %v", f, got, err, want)
		}
	}
}

func TestSettings_absent_empty_and_set_differ(t *testing.T) {
	for name, tc := range map[string]struct {
		spec    *policydv1.PolicySpec
		present bool
	}{
		"absent block":         {&policydv1.PolicySpec{}, false},
		"block without set":    {&policydv1.PolicySpec{RetryOn: &policydv1.RetryOn{}}, false},
		"set with no members":  {&policydv1.PolicySpec{RetryOn: &policydv1.RetryOn{Http: &policydv1.Set{}}}, true},
		"zero is not absent":   {&policydv1.PolicySpec{RetryOn: &policydv1.RetryOn{Http: &policydv1.Set{Values: nil}}}, true},
		"nil spec has nothing": {nil, false},
	} {
		got, err := wire.Settings(tc.spec)
		if err != nil {
			t.Fatal(name, err)
		}
		if v, ok := got[engine.RetryOnHTTP]; ok != tc.present || len(v.Set) != 0 {
			t.Errorf("%s: present = %v, %v", name, ok, v)
		}
	}
}

func TestSettings_refuses_with_the_field(t *testing.T) {
	ratio := math.NaN()
	inf := math.Inf(1)
	unknown := &policydv1.Budget{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	jitter := policydv1.Jitter(77)
	zero := policydv1.Jitter_JITTER_UNSPECIFIED
	for name, tc := range map[string]struct {
		spec *policydv1.PolicySpec
		path string
	}{
		"NaN":                       {&policydv1.PolicySpec{Budget: &policydv1.Budget{Ratio: &ratio}}, "budget.ratio"},
		"infinity":                  {&policydv1.PolicySpec{Budget: &policydv1.Budget{MinRetriesPerSecond: &inf}}, "budget.minRetriesPerSecond"},
		"a duration that overflows": {&policydv1.PolicySpec{Backoff: &policydv1.Backoff{Max: &durationpb.Duration{Seconds: math.MaxInt64 / 2}}}, "backoff.max"},
		"an invalid duration":       {&policydv1.PolicySpec{Backoff: &policydv1.Backoff{Max: &durationpb.Duration{Seconds: 1, Nanos: -1}}}, "backoff.max"},
		"a word of tomorrow":        {&policydv1.PolicySpec{Backoff: &policydv1.Backoff{Jitter: &jitter}}, "backoff.jitter"},
		"an unspecified word":       {&policydv1.PolicySpec{Backoff: &policydv1.Backoff{Jitter: &zero}}, "backoff.jitter"},
		"a field of tomorrow":       {&policydv1.PolicySpec{Budget: unknown}, "budget.99"},
	} {
		_, err := wire.Settings(tc.spec)
		var field *wire.FieldError
		if !errors.As(err, &field) || field.Path != tc.path {
			t.Errorf("%s: got %v, want a FieldError at %s", name, err, tc.path)
		}
	}
}

func TestSwitch_survives_the_wire(t *testing.T) {
	want := engine.Switch{
		ID: "ks-1", Revision: 7, Action: engine.TightenBudget, Scope: "shop", Except: []engine.Scope{"shop/a", "shop/b"},
		Criticality: engine.Standard, Percent: 10, Factor: 250_000, Ends: time.Unix(1000, 0).UTC(), Restore: time.Minute,
		Reason: "r", Incident: "i", Drill: true,
	}
	got, err := wire.Switch(wire.KillSwitch(want), 7)
	if err != nil {
		t.Fatal(err)
	}
	got.Ends = got.Ends.UTC()
	if len(got.Except) != 2 || got.Except[0] != "shop/a" || got.Except[1] != "shop/b" {
		t.Fatalf("except: %v", got.Except)
	}
	got.Except, want.Except = nil, nil
	if a, b := got, want; a.ID != b.ID || a.Action != b.Action || a.Scope != b.Scope || a.Criticality != b.Criticality || a.Percent != b.Percent ||
		a.Factor != b.Factor || !a.Ends.Equal(b.Ends) || a.Restore != b.Restore || a.Reason != b.Reason || a.Incident != b.Incident || !a.Drill || a.Revision != 7 {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestSwitch_without_an_end_is_refused(t *testing.T) {
	k := wire.KillSwitch(engine.Switch{ID: "x", Action: engine.ForceOpen, Scope: "shop", Percent: 100})
	if _, err := wire.Switch(k, 1); err == nil {
		t.Fatal("a switch that never ends was accepted")
	}
}

func FuzzDocument(f *testing.F) {
	for _, field := range engine.Fields() {
		raw, _ := proto.Marshal(&policydv1.Policy{Scope: "shop/a", Spec: wire.Spec(engine.Settings{field: sample(field)})})
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p policydv1.Policy
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		d, err := wire.Document(&p, 1)
		if err != nil {
			return
		}
		again, err := wire.Settings(wire.Spec(d.Settings))
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		for k, v := range d.Settings {
			if !again[k].Equal(v) {
				t.Fatalf("%s changed from %v to %v", k, v, again[k])
			}
		}
	})
}

func FuzzSwitch(f *testing.F) {
	raw, _ := proto.Marshal(wire.KillSwitch(engine.Switch{ID: "x", Action: engine.ForceOpen, Scope: "shop", Percent: 100, Ends: time.Unix(1, 0)}))
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var k policydv1.KillSwitch
		if proto.Unmarshal(raw, &k) != nil {
			return
		}
		if sw, err := wire.Switch(&k, 1); err == nil {
			if _, err := wire.Switch(wire.KillSwitch(sw), 1); err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
		}
	})
}
