// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"maps"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/policy"
)

// comparison is what a full comparison found in the store: keys and their revisions.
type comparison struct {
	revision policy.Revision
	keys     []*mvccpb.KeyValue
	err      error
}

// compare lists the keys of all documents in the background. etcd itself has lost watch
// events before; this finds what such a loss leaves behind.
func (w *watch) compare(ctx context.Context) {
	if w.comparing {
		return
	}
	w.comparing, w.listed = true, nil
	w.work.Go(func() {
		read, cancel := context.WithTimeout(ctx, w.store.timing.Request)
		defer cancel()
		c := w.store.listKeys(read)
		if c.err == nil {
			c.err = w.store.client.RequestProgress(ctx)
		}
		w.listings <- c
	})
}

func (s *Store) listKeys(ctx context.Context) comparison {
	var c comparison
	answer, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(s.keys.dir(dirPolicies), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.keys.dir(dirSwitches), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		c.err = err
		return c
	}
	c.revision = policy.Revision(answer.Header.GetRevision())
	for _, r := range answer.Responses {
		c.keys = append(c.keys, r.GetResponseRange().GetKvs()...)
	}
	return c
}

// check compares the view with what was listed. Any difference is errDrift.
func (s *Store) check(c *comparison) error {
	s.stats.comparisons.Add(1)
	wrong := s.state.drifted(c.keys, s.keys.below, c.revision)
	if len(wrong) == 0 {
		return nil
	}
	s.stats.drift.Add(int64(len(wrong)))
	s.log.Error("view drifted from the store", "documents", len(wrong), "first", wrong[0])
	return errDrift
}

// unrecordedDeletions returns the documents that other hands deleted without a tombstone.
func (s *Store) unrecordedDeletions() map[string]policy.Revision {
	return maps.Clone(s.state.unrecorded)
}

// recordDeletions writes the tombstones that are missing, so that every replica knows of
// the deletions, also after a restart. All replicas try with the same key; one wins.
func (s *Store) recordDeletions(ctx context.Context, deleted map[string]policy.Revision) {
	byRevision := make(map[policy.Revision][]string)
	for key, revision := range deleted {
		byRevision[revision] = append(byRevision[revision], key)
	}
	for revision, keys := range byRevision {
		value, err := encodeTombstone(keys, time.Now())
		if err != nil {
			continue // a key that is not text has no document
		}
		at := s.keys.tombstone("found-" + strconv.FormatInt(int64(revision), 10))
		_, err = s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(at), "=", 0)).
			Then(clientv3.OpPut(at, string(value))).
			Commit()
		if err != nil {
			return // the next probe tries again
		}
	}
}
