// SPDX-License-Identifier: Apache-2.0

// Package wire maps the domain to protobuf and back, and knows no rule. Settings and what a
// switch does are mapped by sdk/go/wire, which SDKs share.
package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

// Policy reads a document. Errors are faults of kind Invalid that name the field.
func Policy(p *policydv1.Policy, revision policy.Revision) (*policy.Policy, error) {
	scope, err := engine.ParseScope(p.GetScope())
	if err != nil {
		return nil, invalid("metadata.scope", p.GetScope(), err)
	}
	settings, err := sdkwire.Settings(p.GetSpec())
	if err != nil {
		return nil, invalidField("spec.", string(scope), err)
	}
	m := p.GetMetadata()
	return &policy.Policy{
		Scope: scope, Revision: revision, Settings: settings,
		Metadata: policy.Metadata{
			Owner: m.GetOwner(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), ManagedBy: m.GetManagedBy(),
			CreatedBy: Actor(m.GetCreatedBy()), CreatedAt: sdkwire.Time(m.GetCreatedAt()),
			UpdatedBy: Actor(m.GetUpdatedBy()), UpdatedAt: sdkwire.Time(m.GetUpdatedAt()),
		},
	}, nil
}

// PolicyProto writes a document.
func PolicyProto(p *policy.Policy) *policydv1.Policy {
	m := p.Metadata
	return &policydv1.Policy{
		Scope: string(p.Scope), Spec: sdkwire.Spec(p.Settings),
		Metadata: &policydv1.Metadata{
			Owner: m.Owner, Labels: m.Labels, Annotations: m.Annotations, ManagedBy: m.ManagedBy,
			CreatedBy: ActorProto(m.CreatedBy), CreatedAt: sdkwire.Timestamp(m.CreatedAt),
			UpdatedBy: ActorProto(m.UpdatedBy), UpdatedAt: sdkwire.Timestamp(m.UpdatedAt),
		},
	}
}

// Switch reads a kill switch. Errors are faults of kind Invalid that name the field.
func Switch(k *policydv1.KillSwitch, revision policy.Revision) (*policy.Switch, error) {
	sw, err := sdkwire.Switch(k, int64(revision))
	if err != nil {
		return nil, invalidField("", k.GetId(), err)
	}
	phase, ok := phases[k.GetPhase()]
	if !ok {
		return nil, invalid("phase", k.GetId(), fmt.Errorf("unknown phase %d", k.GetPhase()))
	}
	return &policy.Switch{
		Switch: sw, Phase: phase, EndedAt: sdkwire.Time(k.GetEndedAt()),
		CreatedBy: Actor(k.GetCreatedBy()), CreatedAt: sdkwire.Time(k.GetCreatedAt()),
		UpdatedBy: Actor(k.GetUpdatedBy()), UpdatedAt: sdkwire.Time(k.GetUpdatedAt()),
	}, nil
}

// SwitchSpec reads what a switch that someone asks for shall do.
func SwitchSpec(spec *policydv1.SwitchSpec) (engine.Switch, error) {
	sw, err := sdkwire.SwitchSpec(spec)
	if err != nil {
		return engine.Switch{}, invalidField("", spec.GetScope(), err)
	}
	return sw, nil
}

// SwitchProto writes a kill switch.
func SwitchProto(sw *policy.Switch) *policydv1.KillSwitch {
	k := sdkwire.KillSwitch(sw.Switch)
	for number, phase := range phases {
		if phase == sw.Phase {
			k.Phase = number
		}
	}
	k.EndedAt = sdkwire.Timestamp(sw.EndedAt)
	k.CreatedBy, k.CreatedAt = ActorProto(sw.CreatedBy), sdkwire.Timestamp(sw.CreatedAt)
	k.UpdatedBy, k.UpdatedAt = ActorProto(sw.UpdatedBy), sdkwire.Timestamp(sw.UpdatedAt)
	return k
}

var phases = map[policydv1.SwitchPhase]policy.Phase{ //nolint:gochecknoglobals // a table
	policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE:    policy.PhaseActive,
	policydv1.SwitchPhase_SWITCH_PHASE_RESTORING: policy.PhaseRestoring,
	policydv1.SwitchPhase_SWITCH_PHASE_EXPIRED:   policy.PhaseExpired,
	policydv1.SwitchPhase_SWITCH_PHASE_REVERTED:  policy.PhaseReverted,
}

// Actor reads who did something.
func Actor(a *policydv1.Actor) policy.Actor {
	return policy.Actor{Name: a.GetName(), Via: a.GetVia()}
}

// ActorProto writes who did something; nobody is absent.
func ActorProto(a policy.Actor) *policydv1.Actor {
	if a == (policy.Actor{}) {
		return nil
	}
	return &policydv1.Actor{Name: a.Name, Via: a.Via}
}

// Entry reads an audit record.
func Entry(e *policydv1.StoredAuditEntry) *policy.Entry {
	entry := &policy.Entry{
		ID: e.GetId(), At: sdkwire.Time(e.GetAt()), Actor: Actor(e.GetActor()), Action: e.GetAction(),
		SwitchID: e.GetSwitchId(), Incident: e.GetIncident(), Reason: e.GetReason(), RequestID: e.GetRequestId(),
	}
	for _, s := range e.GetScopes() {
		entry.Scopes = append(entry.Scopes, engine.Scope(s))
	}
	for _, c := range e.GetChanges() {
		entry.Changes = append(entry.Changes, policy.EntryChange{Key: c.GetKey(), Before: c.GetBefore(), After: c.GetAfter()})
	}
	return entry
}

// EntryProto writes an audit record.
func EntryProto(e *policy.Entry) *policydv1.StoredAuditEntry {
	entry := &policydv1.StoredAuditEntry{
		Id: e.ID, At: sdkwire.Timestamp(e.At), Actor: ActorProto(e.Actor), Action: e.Action,
		SwitchId: e.SwitchID, Incident: e.Incident, Reason: e.Reason, RequestId: e.RequestID,
	}
	for _, s := range e.Scopes {
		entry.Scopes = append(entry.Scopes, string(s))
	}
	for _, c := range e.Changes {
		entry.Changes = append(entry.Changes, &policydv1.StoredAuditChange{Key: c.Key, Before: c.Before, After: c.After})
	}
	return entry
}

// DecodePolicy reads an encoded document.
func DecodePolicy(raw []byte, revision policy.Revision) (*policy.Policy, error) {
	var p policydv1.Policy
	if err := proto.Unmarshal(raw, &p); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "encoding", "decode policy")
	}
	return Policy(&p, revision)
}

// EncodePolicy writes a document as bytes, the same for the same document.
func EncodePolicy(p *policy.Policy) ([]byte, error) { return encode(PolicyProto(p)) }

// DecodeSwitch reads an encoded kill switch.
func DecodeSwitch(raw []byte, revision policy.Revision) (*policy.Switch, error) {
	var k policydv1.KillSwitch
	if err := proto.Unmarshal(raw, &k); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "encoding", "decode switch")
	}
	return Switch(&k, revision)
}

// EncodeSwitch writes a kill switch as bytes.
func EncodeSwitch(sw *policy.Switch) ([]byte, error) { return encode(SwitchProto(sw)) }

// DecodeEntry reads an encoded audit record.
func DecodeEntry(raw []byte) (*policy.Entry, error) {
	var e policydv1.StoredAuditEntry
	if err := proto.Unmarshal(raw, &e); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "encoding", "decode audit record")
	}
	return Entry(&e), nil
}

// EncodeEntry writes an audit record as bytes.
func EncodeEntry(e *policy.Entry) ([]byte, error) { return encode(EntryProto(e)) }

func encode(m proto.Message) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		// Text that is not UTF-8 is the one thing that does not encode.
		return nil, fault.Wrap(err, fault.Invalid, "encoding", "encode document")
	}
	return raw, nil
}

func invalid(path, value string, err error) error {
	f := fault.New(fault.Invalid, "invalid_document", "%s: %s", path, err)
	f.Violations = []fault.Violation{{Path: path, Value: value, Rule: err.Error()}}
	return f
}

func invalidField(prefix, scope string, err error) error {
	var field *sdkwire.FieldError
	if !errors.As(err, &field) {
		return invalid(prefix, "", err)
	}
	f := fault.New(fault.Invalid, "invalid_document", "%s: %s%s: %s", scope, prefix, field.Path, field.Reason)
	f.Violations = []fault.Violation{{Scope: scope, Path: prefix + field.Path, Rule: field.Reason}}
	return f
}
