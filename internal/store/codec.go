// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// document is a policy or a switch as stored, decoded and encoded.
type document struct {
	revision policy.Revision
	raw      []byte
	scope    engine.Scope
	policy   *policy.Policy // exactly one of the two
	active   *policy.Switch
}

// decode reads the value of a key below policies/ or switches/. A field that this policyd
// does not know stays in raw and is not in the way.
func decode(key string, raw []byte, revision policy.Revision) (document, error) {
	d := document{revision: revision, raw: raw}
	if scope, ok := strings.CutPrefix(key, dirPolicies); ok {
		p, err := decodePolicy(raw, revision)
		if err != nil {
			return document{}, err
		}
		if string(p.Scope) != scope {
			return document{}, fmt.Errorf("the document is for scope %q", p.Scope)
		}
		d.policy, d.scope = p, p.Scope
		return d, nil
	}
	sw, err := decodeSwitch(raw, revision)
	if err != nil {
		return document{}, err
	}
	if id := strings.TrimPrefix(key, dirSwitches); sw.ID != id || id == "" {
		return document{}, fmt.Errorf("the document is of switch %q", sw.ID)
	}
	d.active, d.scope = sw, sw.Scope
	return d, nil
}

func decodePolicy(raw []byte, revision policy.Revision) (*policy.Policy, error) {
	var p policydv1.Policy
	if err := unmarshal(raw, &p); err != nil {
		return nil, err
	}
	return wire.Policy(&p, revision)
}

func decodeSwitch(raw []byte, revision policy.Revision) (*policy.Switch, error) {
	var k policydv1.KillSwitch
	if err := unmarshal(raw, &k); err != nil {
		return nil, err
	}
	return wire.Switch(&k, revision)
}

func unmarshal(raw []byte, m proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, m)
}

// encodePolicy writes p. What replaced holds in fields that this policyd does not know is
// carried over: whoever edits with an old tool must not lose what a newer one wrote.
func encodePolicy(p *policy.Policy, replaced []byte) ([]byte, error) {
	return encodeOver(wire.PolicyProto(p), &policydv1.Policy{}, replaced)
}

func encodeSwitch(sw *policy.Switch, replaced []byte) ([]byte, error) {
	return encodeOver(wire.SwitchProto(sw), &policydv1.KillSwitch{}, replaced)
}

func encodeOver(m, old proto.Message, replaced []byte) ([]byte, error) {
	// A value that does not decode holds nothing to keep.
	if len(replaced) > 0 && proto.Unmarshal(replaced, old) == nil {
		keepUnknown(m.ProtoReflect(), old.ProtoReflect())
	}
	return marshal(m)
}

func marshal(m proto.Message) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, invalid("encoding", "encode the document: %s", err)
	}
	return raw, nil
}

// keepUnknown copies the unknown fields of old into m, also those of the blocks that both
// have. A block that old had with known fields and m has not was removed on purpose.
func keepUnknown(m, old protoreflect.Message) {
	if u := old.GetUnknown(); len(u) > 0 {
		m.SetUnknown(append(m.GetUnknown()[:len(m.GetUnknown()):len(m.GetUnknown())], u...))
	}
	old.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil || fd.IsList() || fd.IsMap() {
			return true
		}
		if block := v.Message(); m.Has(fd) || onlyUnknown(block) {
			keepUnknown(m.Mutable(fd).Message(), block)
		}
		return true
	})
}

// onlyUnknown reports whether m has fields, and none that this policyd knows.
func onlyUnknown(m protoreflect.Message) bool {
	known, unknown := false, len(m.GetUnknown()) > 0
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil || fd.IsList() || fd.IsMap() || !onlyUnknown(v.Message()) {
			known = true
			return false
		}
		unknown = true
		return true
	})
	return unknown && !known
}

// tombstone is the record of keys deleted at one revision.
type tombstone struct {
	revision policy.Revision
	keys     []string
	at       time.Time
}

func encodeTombstone(keys []string, at time.Time) ([]byte, error) {
	return marshal(&policydv1.StoredTombstones{Keys: keys, At: timestamppb.New(at)})
}

func decodeTombstone(raw []byte, revision policy.Revision) (tombstone, error) {
	var t policydv1.StoredTombstones
	if err := unmarshal(raw, &t); err != nil {
		return tombstone{}, err
	}
	return tombstone{revision: revision, keys: t.GetKeys(), at: t.GetAt().AsTime()}, nil
}

func encodeDeletionsSince(since policy.Revision) ([]byte, error) {
	return marshal(&policydv1.StoredDeletions{SinceRevision: int64(since)})
}

// decodeDeletionsSince reads the mark that was written at revision.
func decodeDeletionsSince(raw []byte, revision int64) (policy.Revision, error) {
	var d policydv1.StoredDeletions
	if err := unmarshal(raw, &d); err != nil {
		return 0, err
	}
	if since := d.GetSinceRevision(); since < 0 || since >= revision {
		return 0, fmt.Errorf("revision %d is not before %d", since, revision)
	}
	return policy.Revision(d.GetSinceRevision()), nil
}

// encodeEpoch writes what a history says of its epoch.
func encodeEpoch(h *policy.History) ([]byte, error) {
	return marshal(&policydv1.StoredEpoch{Id: string(h.Epoch), ClusterId: h.Cluster, Number: h.Number, Secret: h.Secret})
}

// decodeEpoch returns a history without branches.
func decodeEpoch(raw []byte) (policy.History, error) {
	var e policydv1.StoredEpoch
	if err := unmarshal(raw, &e); err != nil {
		return policy.History{}, err
	}
	if e.GetId() == "" {
		return policy.History{}, errors.New("the epoch has no name")
	}
	return policy.History{
		Epoch: policy.Epoch(e.GetId()), Number: e.GetNumber(), Cluster: e.GetClusterId(), Secret: e.GetSecret(),
	}, nil
}

func encodeBranches(branches []policy.Branch) ([]byte, error) {
	stored := &policydv1.StoredBranches{}
	for _, b := range branches {
		stored.Branches = append(stored.Branches, &policydv1.StoredBranch{Id: b.ID, After: int64(b.After)})
	}
	return marshal(stored)
}

// decodeBranches reads the list that was written at revision; nil is none.
func decodeBranches(kv *mvccpb.KeyValue) ([]policy.Branch, error) {
	var stored policydv1.StoredBranches
	if err := unmarshal(kv.GetValue(), &stored); err != nil {
		return nil, err
	}
	var branches []policy.Branch
	for i, b := range stored.GetBranches() {
		after := b.GetAfter()
		if i > 0 && after <= int64(branches[i-1].After) || after < 0 || after >= kv.GetModRevision() {
			return nil, fmt.Errorf("branch %d begins at revision %d", i, after)
		}
		branches = append(branches, policy.Branch{ID: b.GetId(), After: policy.Revision(after)})
	}
	return branches, nil
}
