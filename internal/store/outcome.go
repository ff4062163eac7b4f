// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
)

// conflict says why the conditions of b did not hold, from what etcd read instead of writing.
func (s *Store) conflict(b *batch, answer *clientv3.TxnResponse) (policy.Revision, error) {
	read := func(i int) *mvccpb.KeyValue {
		if kvs := answer.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	if written := read(len(b.writes)); written != nil {
		// The record is there, so this very transaction was written before.
		return policy.Revision(written.GetCreateRevision()), nil
	}
	var first *policy.ConflictError
	moved := 0
	for i, w := range b.writes {
		current := read(i)
		if policy.Revision(current.GetModRevision()) == w.expected {
			continue
		}
		if moved++; first == nil {
			first = s.staleWrite(w, current)
		}
	}
	if first == nil {
		return 0, fault.New(fault.Conflict, "epoch_changed", "write: the data were replaced by others, nothing was written").
			WithHint("Read again and repeat.")
	}
	if moved > 1 {
		first.Err = fault.New(fault.Conflict, "revision_moved", "%s, and %d more of the batch moved", first.Error(), moved-1).
			WithHint("%s", hintOf(first.Err))
	}
	return 0, first
}

func hintOf(err error) string {
	if f, ok := err.(*fault.Error); ok { //nolint:errorlint // made by staleWrite, not wrapped
		return f.Hint
	}
	return ""
}

// staleWrite describes a document that is not at the revision its writer expects.
func (s *Store) staleWrite(w write, current *mvccpb.KeyValue) *policy.ConflictError {
	key := s.keys.below([]byte(w.key))
	c := &policy.ConflictError{
		Key: key, Scope: w.scope, Expected: w.expected,
		Current: policy.Revision(current.GetModRevision()),
	}
	what := "the policy of " + string(w.scope)
	if id, ok := strings.CutPrefix(key, dirSwitches); ok {
		what = "switch " + id
	}
	if current == nil {
		c.Err = fault.New(fault.Conflict, "revision_moved", "%s is gone; you changed revision %d", what, w.expected).
			WithHint("Someone deleted it. Read again, then repeat.")
		return c
	}
	d, err := decode(key, current.GetValue(), c.Current)
	if err != nil {
		c.Err = fault.New(fault.Conflict, "unreadable", "%s cannot be read (revision %d)", what, c.Current).
			WithHint("Write with the expected revision %d to replace it.", c.Current)
		return c
	}
	if d.policy != nil {
		c.Policy, c.By, c.At = d.policy, d.policy.Metadata.UpdatedBy, d.policy.Metadata.UpdatedAt
	} else {
		c.By, c.At = d.active.UpdatedBy, d.active.UpdatedAt
	}
	if w.expected == 0 {
		c.Err = fault.New(fault.Conflict, "exists", "%s exists already (revision %d)", what, c.Current).
			WithHint("Read it, then repeat with its revision.")
		return c
	}
	c.Err = fault.New(fault.Conflict, "revision_moved", "%s moved from revision %d to %d", what, w.expected, c.Current).
		WithHint("Read again, then repeat.")
	return c
}

// settleFor bounds how long an open outcome is looked into, with a pause between tries.
const (
	settleFor   = 3 * time.Second
	settlePause = 100 * time.Millisecond
)

// settle finds out what became of b after an error that leaves it open. It writes a fence
// with the look: b can be written no more after that, so what is read is final.
func (s *Store) settle(ctx context.Context, b *batch, cause error) (policy.Revision, error) {
	// The caller may be gone; whether its change is in force is worth the wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleFor)
	defer cancel()
	mark, err := encodeTombstone(nil, time.Now())
	if err != nil {
		return 0, err
	}
	w := b.writes[0]
	look := []clientv3.Op{
		clientv3.OpGet(s.keys.entry(b.id), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.keys.tombstone(b.id), clientv3.WithKeysOnly()),
		clientv3.OpGet(w.key),
	}
	// A full store would refuse the fence. None is needed: it has answered, so that nothing
	// is on its way any more.
	if !errors.Is(cause, rpctypes.ErrNoSpace) {
		look = append(look, clientv3.OpPut(s.keys.fence(b.id), string(mark)))
	}
	var answer *clientv3.TxnResponse
	for {
		answer, err = s.client.Txn(ctx).Then(look...).Commit()
		if err == nil {
			break
		}
		select {
		case <-time.After(settlePause):
		case <-ctx.Done():
			return 0, unknown(cause)
		}
	}
	first := func(i int) *mvccpb.KeyValue {
		if kvs := answer.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	// The record may have moved on to the audit log since; then the tombstones or the
	// document itself tell.
	for _, trace := range []*mvccpb.KeyValue{first(0), first(1)} {
		if trace != nil {
			return policy.Revision(trace.GetCreateRevision()), nil
		}
	}
	document := first(2)
	switch {
	case policy.Revision(document.GetModRevision()) == w.expected:
		return 0, translate(cause, "write, nothing was written")
	case document != nil && w.value != nil && bytes.Equal(document.GetValue(), w.value):
		return policy.Revision(document.GetModRevision()), nil
	}
	return 0, unknown(cause)
}

func unknown(cause error) error {
	return &fault.Error{
		Kind: fault.Unavailable, Reason: "outcome_unknown", Hint: hintUnknown, Err: cause,
		Message: "write: the store did not answer, it is not known whether the change was written",
	}
}
