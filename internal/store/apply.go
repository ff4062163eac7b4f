// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/policy"
)

// errEpoch ends a watch whose data were replaced: everything must be read again.
var errEpoch = errors.New("the data were replaced by others")

// take brings the events of one watch response into the view and tells the sinks, one
// update per revision.
func (s *Store) take(events []*clientv3.Event, sinks []func(policy.Update)) error {
	var updates []policy.Update
	var err error
	s.mu.Lock()
	for len(events) > 0 && err == nil {
		revision := events[0].Kv.GetModRevision()
		n := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.GetModRevision() != revision })
		if n < 0 {
			n = len(events)
		}
		before := s.state.revision
		var changes []policy.Change
		if changes, err = s.apply(events[:n]); err == nil && (len(changes) > 0 || s.state.revision > before) {
			updates = append(updates, s.update(changes))
		}
		events = events[n:]
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.publish()
	for _, u := range updates {
		for _, sink := range sinks {
			sink(u)
		}
	}
	return nil
}

// update describes changes that brought the state where it is.
func (s *Store) update(changes []policy.Change) policy.Update {
	return policy.Update{
		Epoch:               s.state.epoch,
		Revision:            s.state.revision,
		Changes:             changes,
		DeletionsKnownSince: s.state.since,
		History:             s.state.history,
	}
}

// apply takes in the events of one revision, which is newer than all before. mu is held.
func (s *Store) apply(events []*clientv3.Event) ([]policy.Change, error) {
	st := s.state
	var changes []policy.Change
	var records []*mvccpb.KeyValue
	for _, e := range events {
		key, kv := s.keys.below(e.Kv.GetKey()), e.Kv
		gone := e.Type == clientv3.EventTypeDelete
		revision := policy.Revision(kv.GetModRevision())
		switch {
		case strings.HasPrefix(key, dirPolicies), strings.HasPrefix(key, dirSwitches):
			if c, ok := s.applyDocument(key, kv, gone); ok {
				changes = append(changes, c)
			}
			st.revision = revision
			if !gone {
				st.written = revision
			}
		case strings.HasPrefix(key, dirEnded):
			s.applyEnded(key, kv, gone)
		case strings.HasPrefix(key, dirTombstones) && gone:
			st.unbury(key)
		case strings.HasPrefix(key, dirTombstones):
			records = append(records, kv)
		case key == keyDeletions && !gone:
			s.applyDeletions(kv)
		case key == keyEpoch:
			if err := s.applyEpoch(kv, gone); err != nil {
				return nil, err
			}
		case key == keyBranches && !gone:
			if err := s.applyBranches(kv); err != nil {
				return nil, err
			}
		}
	}
	// Last, because a record says nothing of keys that live after this revision.
	for _, kv := range records {
		s.applyTombstone(kv)
	}
	return changes, nil
}

func (s *Store) applyDocument(key string, kv *mvccpb.KeyValue, gone bool) (policy.Change, bool) {
	revision := policy.Revision(kv.GetModRevision())
	if gone {
		delete(s.state.unreadable, key)
		s.countUnreadable()
		s.state.unrecorded[key] = revision // until its tombstone comes
		d, known := s.state.documents[key]
		if !known {
			s.state.deleted[key] = revision
			return s.state.deletion(key, revision), true
		}
		s.state.remove(key, d, revision)
		return policy.Change{Key: key, Revision: revision, Scope: d.scope, Urgent: d.active != nil}, true
	}
	d, err := decode(key, kv.GetValue(), revision)
	if err != nil {
		s.unreadable(key, revision, err)
		return policy.Change{}, false
	}
	s.state.put(key, d)
	s.countUnreadable()
	return written(key, d), true
}

func (s *Store) applyEnded(key string, kv *mvccpb.KeyValue, gone bool) {
	id := strings.TrimPrefix(key, dirEnded)
	if gone {
		delete(s.state.unreadable, key)
		s.countUnreadable()
		s.state.ownEnded()
		delete(s.state.ended, id)
		return
	}
	revision := policy.Revision(kv.GetModRevision())
	sw, err := decodeSwitch(kv.GetValue(), revision)
	if err != nil {
		s.unreadable(key, revision, err)
		return
	}
	s.state.ownEnded()
	s.state.ended[id] = sw
}

func (s *Store) applyTombstone(kv *mvccpb.KeyValue) {
	key, revision := s.keys.below(kv.GetKey()), policy.Revision(kv.GetModRevision())
	t, err := decodeTombstone(kv.GetValue(), revision)
	if err != nil {
		s.unreadable(key, revision, err)
		return
	}
	s.state.bury(key, t)
}

func (s *Store) applyDeletions(kv *mvccpb.KeyValue) {
	since, err := decodeDeletionsSince(kv.GetValue(), kv.GetModRevision())
	if err != nil {
		s.unreadable(keyDeletions, policy.Revision(kv.GetModRevision()), err)
		return
	}
	s.state.since = since
	s.state.revision = max(s.state.revision, since)
}

func (s *Store) applyEpoch(kv *mvccpb.KeyValue, gone bool) error {
	if gone {
		return errEpoch
	}
	next, err := decodeEpoch(kv.GetValue())
	if err != nil || next.Epoch != s.state.epoch || next.Cluster != s.state.cluster {
		return errEpoch
	}
	next.Branches = s.state.history.Branches
	s.state.history, s.state.epochRevision = &next, kv.GetModRevision()
	return nil
}

func (s *Store) applyBranches(kv *mvccpb.KeyValue) error {
	branches, err := decodeBranches(kv)
	if err != nil {
		s.unreadable(keyBranches, policy.Revision(kv.GetModRevision()), err)
		return nil
	}
	if why := s.state.contradicts(branches); why != "" {
		s.suspect(s.state.epoch, why, nil)
		return errEpoch
	}
	next := *s.state.history
	next.Branches = branches
	s.state.history = &next
	return nil
}

// unreadable notes a value that cannot be decoded. What was known of the key before stays:
// a value that nobody can read must not take a protection away.
func (s *Store) unreadable(key string, revision policy.Revision, err error) {
	if s.state.unreadable[key] == revision {
		return
	}
	s.state.unreadable[key] = revision
	s.countUnreadable()
	s.log.Error("value in the store cannot be read", "key", key, "revision", revision, "error", err)
}

func (s *Store) countUnreadable() { s.stats.unreadable.Store(int64(len(s.state.unreadable))) }
