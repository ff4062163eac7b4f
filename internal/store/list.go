// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/policy"
)

// pageSize bounds one answer of a listing.
const pageSize = 1000

// listing is everything below the prefix at one revision, without the outbox.
type listing struct {
	revision                              policy.Revision
	cluster                               uint64
	epoch, branches, deletions            *mvccpb.KeyValue
	policies, switches, ended, tombstones []*mvccpb.KeyValue
}

// list reads everything at one revision.
func (s *Store) list(ctx context.Context) (*listing, error) {
	policies := s.keys.dir(dirPolicies)
	answer, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(s.keys.epoch()),
		clientv3.OpGet(s.keys.deletions()),
		clientv3.OpGet(s.keys.dir(dirSwitches), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.dir(dirEnded), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.dir(dirTombstones), clientv3.WithPrefix()),
		clientv3.OpGet(policies, clientv3.WithPrefix(), clientv3.WithLimit(pageSize)),
		clientv3.OpGet(s.keys.branches()),
	).Commit()
	if err != nil {
		return nil, err
	}
	part := func(i int) []*mvccpb.KeyValue { return answer.Responses[i].GetResponseRange().GetKvs() }
	first := func(i int) *mvccpb.KeyValue {
		if kvs := part(i); len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	l := &listing{
		revision: policy.Revision(answer.Header.GetRevision()), cluster: answer.Header.GetClusterId(),
		epoch: first(0), deletions: first(1), branches: first(6),
		switches: part(2), ended: part(3), tombstones: part(4), policies: part(5),
	}
	for more := answer.Responses[5].GetResponseRange().GetMore(); more; {
		next := string(l.policies[len(l.policies)-1].GetKey()) + "\x00"
		page, err := s.client.Get(ctx, next, clientv3.WithRange(clientv3.GetPrefixRangeEnd(policies)),
			clientv3.WithRev(int64(l.revision)), clientv3.WithLimit(pageSize))
		if err != nil {
			return nil, err
		}
		l.policies = append(l.policies, page.Kvs...)
		more = page.More
	}
	return l, nil
}

// relist reads everything, makes it the view and tells the sinks what is new. It returns
// the revision of the reading.
func (s *Store) relist(ctx context.Context, sinks []func(policy.Update)) (policy.Revision, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.timing.Request)
	defer cancel()
	asOf := time.Now()
	if err := s.branchOff(ctx); err != nil {
		return 0, err
	}
	l, err := s.listWithEpoch(ctx)
	if err != nil {
		return 0, err
	}
	s.stats.relists.Add(1)

	s.mu.Lock()
	old := s.state
	s.load(l)
	reset := old == nil || old.epoch != s.state.epoch
	var changes []policy.Change
	if !reset {
		changes, reset = s.state.difference(old)
	}
	if reset {
		changes = s.state.everything()
	}
	update := s.update(changes)
	update.Reset = reset
	emit := reset || len(changes) > 0 || s.state.revision > old.revision
	if old != nil && old.epoch != s.state.epoch {
		s.seen = 0 // revisions of two epochs do not compare
		s.left[old.epoch] = true
	}
	s.mu.Unlock()

	s.publish()
	s.confirm(asOf)
	s.advance(l.revision)
	s.loadedOnce.Do(func() { close(s.loaded) })
	if emit {
		for _, sink := range sinks {
			sink(update)
		}
	}
	return l.revision, nil
}

// load replaces the state by what l holds. mu is held. Documents that have not moved are
// not decoded again, and of those that cannot be read the last good one stays.
func (s *Store) load(l *listing) {
	old := s.state
	st := newState()
	s.state = st
	history, _ := decodeEpoch(l.epoch.GetValue()) // readable by listWithEpoch
	st.epoch, st.cluster, st.history = history.Epoch, history.Cluster, &history
	st.epochRevision = l.epoch.GetModRevision()
	st.revision = policy.Revision(st.epochRevision)
	st.written = st.revision
	if old == nil || old.epoch != st.epoch {
		old = newState()
	}
	st.unreadable = make(map[string]policy.Revision, len(old.unreadable))
	var err error
	if history.Branches, err = decodeBranches(l.branches); err != nil {
		s.stillUnreadable(old, keyBranches, policy.Revision(l.branches.GetModRevision()), err)
	}

	for _, kv := range append(l.policies, l.switches...) {
		key, revision := s.keys.below(kv.GetKey()), policy.Revision(kv.GetModRevision())
		st.revision, st.written = max(st.revision, revision), max(st.written, revision)
		known, ok := old.documents[key]
		if ok && known.revision == revision {
			st.put(key, known)
			continue
		}
		d, err := decode(key, kv.GetValue(), revision)
		if err == nil {
			st.put(key, d)
			continue
		}
		if ok {
			st.put(key, known)
		}
		s.stillUnreadable(old, key, revision, err)
	}
	for _, kv := range l.ended {
		key, revision := s.keys.below(kv.GetKey()), policy.Revision(kv.GetModRevision())
		sw, err := decodeSwitch(kv.GetValue(), revision)
		if err != nil {
			s.stillUnreadable(old, key, revision, err)
			continue
		}
		st.ended[strings.TrimPrefix(key, dirEnded)] = sw
	}
	for _, kv := range l.tombstones {
		s.applyTombstone(kv)
	}
	if l.deletions != nil {
		s.applyDeletions(l.deletions)
	}
	for key, revision := range old.unrecorded {
		if _, ok := st.deleted[key]; !ok && st.documents[key].revision == 0 {
			st.deleted[key] = revision
			st.unrecorded[key] = revision
		}
	}
	s.countUnreadable()
}

// stillUnreadable notes a value that cannot be decoded and logs it if old had not.
func (s *Store) stillUnreadable(old *state, key string, revision policy.Revision, err error) {
	if old.unreadable[key] == revision {
		s.state.unreadable[key] = revision
		return
	}
	s.unreadable(key, revision, err)
}
