// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
)

// How long traces of the past are kept.
const (
	keepTombstones = time.Hour
	keepEnded      = 24 * time.Hour
)

const sweepFor = time.Minute

// sweepAtOnce bounds the keys of one sweeping transaction, the mark of deletions aside.
const sweepAtOnce = maxOperations - 1

// Sweep removes what is kept for a while only: tombstones and fences older than an hour,
// ended switches older than a day, and the oldest audit records beyond the bound of the
// outbox. Every replica may call it at any time: each key is removed once. One part that
// fails does not keep the others: a full store takes deletions, and they make room.
func (s *Store) Sweep(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), sweepFor)
	defer cancel()
	var errs []error
	for _, sweep := range []func(context.Context, time.Time) error{
		s.sweepTombstones, s.sweepFences, s.sweepEnded, s.sweepOutbox,
	} {
		errs = append(errs, translate(sweep(ctx, now), "sweep the store"))
	}
	return errors.Join(errs...)
}

// sweepTombstones also moves the mark before which deletions are not known any more.
func (s *Store) sweepTombstones(ctx context.Context, now time.Time) error {
	old, err := s.olderThan(ctx, dirTombstones, now.Add(-keepTombstones))
	if err != nil {
		return err
	}
	slices.SortFunc(old, func(a, b *mvccpb.KeyValue) int { return int(a.GetModRevision() - b.GetModRevision()) })
	for part := range slices.Chunk(old, sweepAtOnce) {
		mark, err := s.client.Get(ctx, s.keys.deletions())
		if err != nil {
			return err
		}
		var at int64
		since := policy.Revision(part[len(part)-1].GetModRevision())
		for _, kv := range mark.Kvs {
			at = kv.GetModRevision()
			if before, err := decodeDeletionsSince(kv.GetValue(), kv.GetModRevision()); err == nil {
				since = max(since, before)
			}
		}
		value, err := encodeDeletionsSince(since)
		if err != nil {
			return err
		}
		won, err := s.removeAll(ctx, part,
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.deletions()), "=", at)},
			[]clientv3.Op{clientv3.OpPut(s.keys.deletions(), string(value))})
		if err != nil || !won {
			return err
		}
	}
	return nil
}

func (s *Store) sweepFences(ctx context.Context, now time.Time) error {
	old, err := s.olderThan(ctx, dirFences, now.Add(-keepTombstones))
	if err != nil {
		return err
	}
	_, err = s.removeInParts(ctx, old)
	return err
}

// olderThan lists the dated records of a directory from before limit. One that cannot be
// read has no date and goes as well.
func (s *Store) olderThan(ctx context.Context, dir string, limit time.Time) ([]*mvccpb.KeyValue, error) {
	answer, err := s.client.Get(ctx, s.keys.dir(dir), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(answer.Kvs, func(kv *mvccpb.KeyValue) bool {
		t, err := decodeTombstone(kv.GetValue(), 0)
		return err == nil && t.at.After(limit)
	}), nil
}

func (s *Store) sweepEnded(ctx context.Context, now time.Time) error {
	answer, err := s.client.Get(ctx, s.keys.dir(dirEnded), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(answer.Kvs, func(kv *mvccpb.KeyValue) bool {
		sw, err := decodeSwitch(kv.GetValue(), 0)
		return err != nil || sw.EndedAt.After(now.Add(-keepEnded)) // unreadable: a newer policyd may read it
	})
	_, err = s.removeInParts(ctx, old)
	return err
}

func (s *Store) sweepOutbox(ctx context.Context, _ time.Time) error {
	waiting, err := s.client.Get(ctx, s.keys.dir(dirOutbox), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	excess := waiting.Count - int64(s.outbox)
	if excess <= 0 {
		return nil
	}
	// As of the count: what another replica has dropped since must not be made up for.
	oldest, err := s.client.Get(ctx, s.keys.dir(dirOutbox), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithRev(waiting.Header.GetRevision()),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(excess))
	if err != nil {
		return err
	}
	dropped, err := s.removeInParts(ctx, oldest.Kvs)
	if dropped > 0 {
		s.stats.outboxDropped.Add(int64(dropped))
		s.log.Warn("audit records dropped, too many waited", "dropped", dropped, "kept", s.outbox)
	}
	return err
}

// removeInParts deletes keys, a transaction's worth at a time, and returns how many it
// deleted itself. It stops where another replica was faster.
func (s *Store) removeInParts(ctx context.Context, kvs []*mvccpb.KeyValue) (removed int, err error) {
	for part := range slices.Chunk(kvs, sweepAtOnce) {
		won, err := s.removeAll(ctx, part, nil, nil)
		if err != nil || !won {
			return removed, err
		}
		removed += len(part)
	}
	return removed, nil
}

// removeAll deletes kvs, and does then, if none of them moved and conditions hold.
func (s *Store) removeAll(ctx context.Context, kvs []*mvccpb.KeyValue, conditions []clientv3.Cmp, then []clientv3.Op) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.Request)
	defer cancel()
	for _, kv := range kvs {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(string(kv.GetKey())), "=", kv.GetModRevision()))
		then = append(then, clientv3.OpDelete(string(kv.GetKey())))
	}
	answer, err := s.client.Txn(ctx).If(conditions...).Then(then...).Commit()
	if err != nil {
		return false, err
	}
	return answer.Succeeded, nil
}

// OutboxEntry is an audit record that waits, and the revision that wrote it.
type OutboxEntry struct {
	policy.Entry
	Revision policy.Revision
}

// Outbox returns the oldest audit records that wait, at most limit. One that cannot be read
// is left out; it waits until it is dropped.
func (s *Store) Outbox(ctx context.Context, limit int) ([]OutboxEntry, error) {
	if limit <= 0 {
		return nil, fault.Bug("outbox: limit %d", limit)
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.timing.Request)
	defer cancel()
	answer, err := s.client.Get(ctx, s.keys.dir(dirOutbox), clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, translate(err, "read the audit records")
	}
	entries := make([]OutboxEntry, 0, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		entry, err := wire.DecodeEntry(kv.GetValue())
		if err != nil {
			s.log.Error("audit record cannot be read", "key", s.keys.below(kv.GetKey()), "revision", kv.GetModRevision(), "error", err)
			continue
		}
		entries = append(entries, OutboxEntry{Entry: *entry, Revision: policy.Revision(kv.GetCreateRevision())})
	}
	return entries, nil
}

// OutboxCount returns how many audit records wait.
func (s *Store) OutboxCount(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.timing.Request)
	defer cancel()
	answer, err := s.client.Get(ctx, s.keys.dir(dirOutbox), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, translate(err, "count the audit records")
	}
	return answer.Count, nil
}
