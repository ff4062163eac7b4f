// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// protoreflectTag returns the number of the first field in raw.
func protoreflectTag(raw []byte) (protowire.Number, protowire.Type) {
	number, typ, _ := protowire.ConsumeTag(raw)
	return number, typ
}

// Switch reads a kill switch; Ends is on policyd's clock. Errors are *FieldError.
func Switch(k *policydv1.KillSwitch, revision int64) (engine.Switch, error) {
	if err := refuseUnknown("", k.ProtoReflect()); err != nil {
		return engine.Switch{}, err
	}
	sw, err := SwitchSpec(k.GetSpec())
	if err != nil {
		return engine.Switch{}, err
	}
	sw.ID, sw.Revision, sw.Drill = k.GetId(), revision, k.GetDrill()
	sw.Ends = Time(k.GetExpiresAt())
	if sw.Ends.IsZero() {
		return engine.Switch{}, &FieldError{Path: "expiresAt", Reason: "is missing: a switch always ends"}
	}
	return sw, nil
}

// SwitchSpec reads what a switch does. An absent percent is 100, an absent restore is
// engine.DefaultRestoreOver. Errors are *FieldError.
func SwitchSpec(spec *policydv1.SwitchSpec) (engine.Switch, error) {
	if err := refuseUnknown("spec.", spec.ProtoReflect()); err != nil {
		return engine.Switch{}, err
	}
	action, ok := enumWord(spec.GetAction().Descriptor(), spec.GetAction().Number())
	if !ok {
		return engine.Switch{}, &FieldError{Path: "spec.action", Reason: "unknown or missing action"}
	}
	scope, err := engine.ParseScope(spec.GetScope())
	if err != nil {
		return engine.Switch{}, &FieldError{Path: "spec.scope", Reason: err.Error()}
	}
	sw := engine.Switch{
		Action: engine.Action(action), Scope: scope, Percent: 100, Restore: engine.DefaultRestoreOver,
		Incident: spec.GetIncident(), Reason: spec.GetReason(),
	}
	for _, s := range spec.GetExcept().GetValues() {
		except, err := engine.ParseScope(s)
		if err != nil {
			return engine.Switch{}, &FieldError{Path: "spec.except", Reason: err.Error()}
		}
		sw.Except = append(sw.Except, except)
	}
	if spec.Criticality != nil {
		word, _ := enumWord(spec.GetCriticality().Descriptor(), spec.GetCriticality().Number())
		if sw.Criticality, ok = engine.ParseCriticality(word); !ok || word == "" {
			return engine.Switch{}, &FieldError{Path: "spec.criticality", Reason: "unknown value"}
		}
	}
	if spec.Percent != nil {
		if p := spec.GetPercent(); p < 0 || p > 100 {
			return engine.Switch{}, &FieldError{Path: "spec.percent", Reason: "must be from 1 to 100"}
		}
		sw.Percent = int(spec.GetPercent())
	}
	for _, d := range []struct {
		path string
		from *float64
		to   *int64
	}{{"spec.factor", spec.Factor, &sw.Factor}, {"spec.admit", spec.Admit, &sw.Admit}} {
		if d.from == nil {
			continue
		}
		v, ok := engine.Decimal(*d.from)
		if !ok {
			return engine.Switch{}, &FieldError{Path: d.path, Reason: "not a number that fits"}
		}
		*d.to = v.Int
	}
	if over := spec.GetRestore().GetOver(); over != nil {
		if sw.Restore, err = duration(over); err != nil {
			return engine.Switch{}, &FieldError{Path: "spec.restore.over", Reason: err.Error()}
		}
	}
	return sw, nil
}

// KillSwitch writes a switch. What the action does not use is absent.
func KillSwitch(sw engine.Switch) *policydv1.KillSwitch {
	return &policydv1.KillSwitch{Id: sw.ID, Spec: SpecOf(sw), ExpiresAt: Timestamp(sw.Ends), Drill: sw.Drill}
}

// SpecOf writes what a switch does.
func SpecOf(sw engine.Switch) *policydv1.SwitchSpec {
	spec := &policydv1.SwitchSpec{
		Scope: string(sw.Scope), Incident: sw.Incident, Reason: sw.Reason,
		Restore: &policydv1.Restore{Over: durationpb.New(sw.Restore)},
	}
	if n, ok := enumNumber(spec.GetAction().Descriptor(), string(sw.Action)); ok {
		spec.Action = policydv1.SwitchAction(n)
	}
	if len(sw.Except) > 0 {
		spec.Except = &policydv1.Set{}
		for _, s := range sw.Except {
			spec.Except.Values = append(spec.Except.Values, string(s))
		}
	}
	if sw.Criticality != engine.CriticalityUnspecified {
		n, _ := enumNumber(spec.GetCriticality().Descriptor(), sw.Criticality.String())
		c := policydv1.Criticality(n)
		spec.Criticality = &c
	}
	if sw.Percent != 100 {
		p := int64(sw.Percent)
		spec.Percent = &p
	}
	switch sw.Action {
	case engine.TightenBudget:
		f := engine.Micro(sw.Factor).Float()
		spec.Factor = &f
	case engine.ForceOpen:
		a := engine.Micro(sw.Admit).Float()
		spec.Admit = &a
	default:
	}
	return spec
}
