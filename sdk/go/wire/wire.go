// SPDX-License-Identifier: Apache-2.0

// Package wire maps protobuf to the engine's values and back. It is strict: what it does
// not know is an error that names the field, never ignored. It never panics on input. There
// is no compatibility promise outside this repository.
package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// FieldError says which field of a message cannot be used, and why.
type FieldError struct {
	Path   string // "backoff.base"; a number stands for a field this build does not know
	Reason string
}

func (e *FieldError) Error() string { return e.Path + ": " + e.Reason }

// chain is the way from PolicySpec to one setting.
type chain []protoreflect.FieldDescriptor

var chains = buildChains() //nolint:gochecknoglobals // compiled table

func buildChains() (t [engine.NumFields]chain) {
	for _, f := range engine.Fields() {
		d := (&policydv1.PolicySpec{}).ProtoReflect().Descriptor()
		var c chain
		for _, part := range strings.Split(f.Path(), ".") {
			fd := d.Fields().ByJSONName(part)
			if fd == nil {
				panic("wire: policy.proto has no field for " + f.Path())
			}
			c = append(c, fd)
			d = fd.Message()
		}
		t[f] = c
	}
	return t
}

// Settings reads the settings of a spec; nil has none. Errors are *FieldError.
func Settings(spec *policydv1.PolicySpec) (engine.Settings, error) {
	s := engine.Settings{}
	if spec == nil {
		return s, nil
	}
	if err := refuseUnknown("", spec.ProtoReflect()); err != nil {
		return nil, err
	}
	for _, f := range engine.Fields() {
		m, c := spec.ProtoReflect(), chains[f]
		for len(c) > 1 && m.Has(c[0]) {
			m, c = m.Get(c[0]).Message(), c[1:]
		}
		if len(c) > 1 || !m.Has(c[0]) {
			continue
		}
		v, err := value(f, c[0], m.Get(c[0]))
		if err != nil {
			return nil, &FieldError{Path: f.Path(), Reason: err.Error()}
		}
		s[f] = v
	}
	return s, nil
}

func value(f engine.Field, fd protoreflect.FieldDescriptor, v protoreflect.Value) (engine.Value, error) {
	switch f.Spec().Kind {
	case engine.KindBool:
		return engine.Bool(v.Bool()), nil
	case engine.KindInt:
		return engine.Int(v.Int()), nil
	case engine.KindDecimal:
		d, ok := engine.Decimal(v.Float())
		if !ok {
			return engine.Value{}, fmt.Errorf("%v is not a number that fits", v.Float())
		}
		return d, nil
	case engine.KindDuration:
		d, err := duration(v.Message().Interface().(*durationpb.Duration))
		return engine.Duration(d), err
	case engine.KindEnum:
		word, ok := enumWord(fd.Enum(), v.Enum())
		if !ok {
			return engine.Value{}, fmt.Errorf("unknown value %d", v.Enum())
		}
		return engine.Enum(word), nil
	case engine.KindSet:
		return engine.Set(v.Message().Interface().(*policydv1.Set).GetValues()...), nil
	default:
		return engine.Text(v.String()), nil
	}
}

// Spec writes settings as a spec. Values of a kind that the field does not have are left out;
// engine.Validate reports them.
func Spec(s engine.Settings) *policydv1.PolicySpec {
	spec := &policydv1.PolicySpec{}
	for _, f := range engine.Fields() {
		v, ok := s[f]
		if !ok || v.Kind != f.Spec().Kind {
			continue
		}
		m, c := spec.ProtoReflect(), chains[f]
		fd := c[len(c)-1]
		pv, ok := protoValue(fd, v)
		if !ok {
			continue
		}
		for _, block := range c[:len(c)-1] {
			m = m.Mutable(block).Message()
		}
		m.Set(fd, pv)
	}
	return spec
}

func protoValue(fd protoreflect.FieldDescriptor, v engine.Value) (protoreflect.Value, bool) {
	switch v.Kind {
	case engine.KindBool:
		return protoreflect.ValueOfBool(v.True()), true
	case engine.KindInt:
		return protoreflect.ValueOfInt64(v.Int), true
	case engine.KindDecimal:
		return protoreflect.ValueOfFloat64(v.Float()), true
	case engine.KindDuration:
		return protoreflect.ValueOfMessage(durationpb.New(v.Duration()).ProtoReflect()), true
	case engine.KindEnum:
		n, ok := enumNumber(fd.Enum(), v.Text)
		return protoreflect.ValueOfEnum(n), ok
	case engine.KindSet:
		return protoreflect.ValueOfMessage((&policydv1.Set{Values: v.Set}).ProtoReflect()), true
	default:
		return protoreflect.ValueOfString(v.Text), true
	}
}

// refuseUnknown reports the first field that this build does not know: honouring the rest
// would be half a document.
func refuseUnknown(path string, m protoreflect.Message) error {
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _ := protoreflectTag(raw)
		return &FieldError{Path: fmt.Sprintf("%s%d", path, number), Reason: "unknown field; this build is too old for the document"}
	}
	var err error
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() != nil && !fd.IsList() && !fd.IsMap() {
			err = refuseUnknown(path+fd.JSONName()+".", v.Message())
		}
		return err == nil
	})
	return err
}

// enumWord turns JITTER_FULL of enum Jitter into "full".
func enumWord(d protoreflect.EnumDescriptor, n protoreflect.EnumNumber) (string, bool) {
	vd := d.Values().ByNumber(n)
	if vd == nil || n == 0 {
		return "", false
	}
	word := strings.TrimPrefix(string(vd.Name()), enumPrefix(d))
	return strings.ReplaceAll(strings.ToLower(word), "_", "-"), true
}

func enumNumber(d protoreflect.EnumDescriptor, word string) (protoreflect.EnumNumber, bool) {
	name := enumPrefix(d) + strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
	vd := d.Values().ByName(protoreflect.Name(name))
	if vd == nil || vd.Number() == 0 {
		return 0, false
	}
	return vd.Number(), true
}

// enumPrefix is what every value of the enum starts with: "WHEN_FULL_" for WhenFull.
func enumPrefix(d protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(d.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

var errDuration = errors.New("not a duration that fits")

// duration refuses what durationpb would clamp in silence.
func duration(d *durationpb.Duration) (time.Duration, error) {
	if !d.IsValid() || d.GetSeconds() > math.MaxInt64/int64(time.Second)-1 || d.GetSeconds() < math.MinInt64/int64(time.Second)+1 {
		return 0, errDuration
	}
	return d.AsDuration(), nil
}

// Time reads a timestamp; absent and invalid are the zero time.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

// Timestamp writes a time; the zero time is absent.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Document reads what the engine needs of a policy. Errors are *FieldError.
func Document(p *policydv1.Policy, revision int64) (engine.Document, error) {
	scope, err := engine.ParseScope(p.GetScope())
	if err != nil {
		return engine.Document{}, &FieldError{Path: "scope", Reason: err.Error()}
	}
	if raw := p.ProtoReflect().GetUnknown(); len(raw) > 0 {
		return engine.Document{}, refuseUnknown("", p.ProtoReflect())
	}
	settings, err := Settings(p.GetSpec())
	if err != nil {
		return engine.Document{}, err
	}
	criticality, ok := engine.ParseCriticality(p.GetMetadata().GetLabels()["criticality"])
	if !ok {
		return engine.Document{}, &FieldError{Path: "metadata.labels.criticality", Reason: "must be critical, standard or sheddable"}
	}
	return engine.Document{Scope: scope, Revision: revision, Settings: settings, Criticality: criticality}, nil
}
