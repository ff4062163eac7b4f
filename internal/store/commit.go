// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
)

// maxOperations is what a stock etcd takes in one transaction.
const maxOperations = 128

// catchUp bounds how long Commit waits for the view to show what it wrote.
const catchUp = 2 * time.Second

// batch is a transaction ready to send.
type batch struct {
	id     string // of the record, or random
	epoch  int64  // mod revision of the epoch's key
	name   policy.Epoch
	seen   policy.Revision // everything up to it was in the view before
	writes []write
	extra  []clientv3.Op // record, tombstones, ended switches
}

// write is what happens to one document. value is nil for a deletion.
type write struct {
	key      string
	scope    engine.Scope
	expected policy.Revision
	value    []byte
	policy   *policy.Policy // what is encoded into value, one of the two
	active   *policy.Switch
}

// Commit writes tx whole or not at all and returns its revision. The view shows it before
// Commit returns, unless the watch lags by more than two seconds.
//
// Faults: a document that moved is a *policy.ConflictError (Conflict); Invalid and Exhausted
// say what to change; Unavailable says in its reason whether nothing was written
// (store_unavailable) or nobody knows (outcome_unknown). To repeat a transaction with the
// same Entry.ID is safe: it is written once.
func (s *Store) Commit(ctx context.Context, tx policy.Transaction) (policy.Revision, error) {
	b, err := s.prepare(tx)
	if err != nil {
		return 0, err
	}
	if err := s.reachable(); err != nil {
		return 0, err
	}
	send, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.timing.Request)
	defer cancel()
	if err := s.encode(send, b, tx); err != nil {
		return 0, err
	}
	revision, err := s.send(send, b)
	if err != nil {
		return 0, err
	}
	wait, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	s.await(wait, revision)
	return revision, nil
}

// prepare checks tx and lists its writes.
func (s *Store) prepare(tx policy.Transaction) (*batch, error) {
	b := &batch{id: rand.Text()}
	if tx.Entry != nil && tx.Entry.ID != "" {
		b.id = tx.Entry.ID
	}
	for _, p := range tx.PutPolicies {
		b.writes = append(b.writes, write{key: s.keys.policy(p.Policy.Scope), scope: p.Policy.Scope, expected: p.Expected, policy: p.Policy})
	}
	for _, p := range tx.PutSwitches {
		b.writes = append(b.writes, write{key: s.keys.active(p.Switch.ID), scope: p.Switch.Scope, expected: p.Expected, active: p.Switch})
	}
	for _, d := range tx.Deletes {
		b.writes = append(b.writes, write{key: s.keys.policy(d.Scope), scope: d.Scope, expected: d.Expected})
	}
	for _, p := range tx.End {
		b.writes = append(b.writes, write{key: s.keys.active(p.Switch.ID), scope: p.Switch.Scope, expected: p.Expected})
	}
	return b, check(b, tx)
}

// check refuses what can be no transaction: keys that would lie elsewhere, a document twice,
// too many of them.
func check(b *batch, tx policy.Transaction) error {
	ended := len(tx.End)
	// One operation for each write, another for each switch that ends, the record, the
	// tombstones.
	if len(b.writes) > MaxDocuments || len(b.writes)+ended+2 > maxOperations {
		return fault.New(fault.Exhausted, "batch_too_large", "the batch has %d documents: at most %d are written at once", len(b.writes), MaxDocuments).
			WithHint("%s", hintTooLarge)
	}
	if len(b.writes) == 0 {
		return invalid("empty_batch", "the transaction writes nothing")
	}
	if !safeID(b.id) {
		return invalid("entry_id", "the id %q of the record cannot be a key", b.id)
	}
	seen := make(map[string]bool, len(b.writes))
	for _, w := range b.writes {
		if _, err := engine.ParseScope(string(w.scope)); err != nil {
			return invalid("scope", "%s", err)
		}
		if seen[w.key] {
			return invalid("duplicate", "%s is in the batch twice", w.scope)
		}
		seen[w.key] = true
	}
	for _, puts := range [][]policy.SwitchPut{tx.PutSwitches, tx.End} {
		for _, p := range puts {
			if !safeID(p.Switch.ID) {
				return invalid("switch_id", "the id %q of the switch cannot be a key", p.Switch.ID)
			}
		}
	}
	return nil
}

// reachable fails while there is no connection to etcd, so that such a write is known not
// to have been sent.
func (s *Store) reachable() error {
	conn := s.client.ActiveConnection()
	if conn == nil { // embedded
		return nil
	}
	if conn.GetState() == connectivity.TransientFailure {
		return fault.New(fault.Unavailable, "store_unavailable", "write: the store cannot be reached, nothing was written").
			WithHint("%s", hintUnavailable)
	}
	return nil
}

// encode makes the values of b and what goes with them.
func (s *Store) encode(ctx context.Context, b *batch, tx policy.Transaction) error {
	replaced, err := s.replaced(ctx, b)
	if err != nil {
		return err
	}
	var deleted []string
	for i := range b.writes {
		w := &b.writes[i]
		switch {
		case w.policy != nil:
			w.value, err = encodePolicy(w.policy, replaced[w.key])
		case w.active != nil:
			w.value, err = encodeSwitch(w.active, replaced[w.key])
		default:
			deleted = append(deleted, s.keys.below([]byte(w.key)))
		}
		if err != nil {
			return err
		}
	}
	for _, p := range tx.End {
		value, err := encodeSwitch(p.Switch, replaced[s.keys.active(p.Switch.ID)])
		if err != nil {
			return err
		}
		b.extra = append(b.extra, clientv3.OpPut(s.keys.ended(p.Switch.ID), string(value)))
	}
	if len(deleted) > 0 {
		value, err := encodeTombstone(deleted, time.Now())
		if err != nil {
			return err
		}
		b.extra = append(b.extra, clientv3.OpPut(s.keys.tombstone(b.id), string(value)))
	}
	if tx.Entry != nil {
		entry := *tx.Entry
		entry.ID = b.id
		value, err := wire.EncodeEntry(&entry)
		if err != nil {
			return err
		}
		b.extra = append(b.extra, clientv3.OpPut(s.keys.entry(b.id), string(value)))
	}
	return nil
}

// replaced returns the stored bytes of the documents that b replaces, at the revisions it
// expects. One that moved is left out: the transaction will conflict.
func (s *Store) replaced(ctx context.Context, b *batch) (map[string][]byte, error) {
	found := make(map[string][]byte, len(b.writes))
	var missing []clientv3.Op
	s.mu.RLock()
	if s.state == nil {
		s.mu.RUnlock()
		return nil, fault.New(fault.Unavailable, "store_not_read", "write: the store has not been read yet, nothing was written").
			WithHint("%s", hintUnavailable)
	}
	b.epoch, b.name, b.seen = s.state.epochRevision, s.state.epoch, s.seen
	for _, w := range b.writes {
		if w.expected == 0 {
			continue
		}
		d := s.state.documents[s.keys.below([]byte(w.key))]
		switch {
		case d.revision == w.expected:
			found[w.key] = d.raw
		case d.revision < w.expected: // seen through another replica before the watch got there
			missing = append(missing, clientv3.OpGet(w.key))
		}
	}
	s.mu.RUnlock()
	if len(missing) == 0 {
		return found, nil
	}
	answer, err := s.client.Txn(ctx).Then(missing...).Commit()
	if err != nil {
		return nil, translate(err, "read what is to be replaced, nothing was written")
	}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			found[string(kv.GetKey())] = kv.GetValue()
		}
	}
	return found, nil
}

// send makes the one transaction: if nothing moved, write all of it, else read what is there.
func (s *Store) send(ctx context.Context, b *batch) (policy.Revision, error) {
	entry, fence := s.keys.entry(b.id), s.keys.fence(b.id)
	conditions := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.keys.epoch()), "=", b.epoch),
		clientv3.Compare(clientv3.CreateRevision(entry), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(fence), "=", 0),
	}
	then, otherwise := b.extra, make([]clientv3.Op, 0, len(b.writes)+2)
	for _, w := range b.writes {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(w.key), "=", int64(w.expected)))
		if w.value == nil {
			then = append(then, clientv3.OpDelete(w.key))
		} else {
			then = append(then, clientv3.OpPut(w.key, string(w.value)))
		}
		otherwise = append(otherwise, clientv3.OpGet(w.key))
	}
	otherwise = append(otherwise, clientv3.OpGet(entry, clientv3.WithKeysOnly()), clientv3.OpGet(s.keys.epoch(), clientv3.WithKeysOnly()))

	answer, err := s.client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	switch {
	case err == nil && answer.Succeeded:
		revision := policy.Revision(answer.Header.GetRevision())
		if revision <= b.seen {
			s.suspect(b.name, fmt.Sprintf("the store wrote revision %d after %d", revision, b.seen), nil)
			s.sound()
		}
		return revision, nil
	case err == nil:
		return s.conflict(b, answer)
	case refused(err):
		return 0, translate(err, "write, nothing was written")
	}
	return s.settle(ctx, b, err)
}
