// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/policy"
)

// Absorb brings a value into a store both ways: as an event after an empty listing, and as
// part of a listing. It returns the updates and the two states a restart may not tell apart.
func Absorb(s *Store, key string, value []byte, deleted bool) (updates []policy.Update, live, listed map[string]policy.Revision) {
	epoch, _ := encodeEpoch(&policy.History{Epoch: "e", Cluster: 1, Number: 1, Secret: []byte("s")})
	l := func() *listing {
		return &listing{revision: 5, cluster: 1, epoch: &mvccpb.KeyValue{Value: epoch, ModRevision: 2}}
	}
	s.load(l())
	s.publish()
	kv := &mvccpb.KeyValue{Key: []byte(s.keys.prefix + key), Value: value, ModRevision: 6}
	events := []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: kv}}
	if deleted {
		events = append(events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: 7}})
	}
	if err := s.take(events, []func(policy.Update){func(u policy.Update) { updates = append(updates, u) }}); err != nil {
		return nil, nil, nil // an epoch: everything would be read again
	}
	live = s.revisions()

	s.state = nil
	again := l()
	if !deleted {
		switch {
		case strings.HasPrefix(key, dirPolicies):
			again.policies = append(again.policies, kv)
		case strings.HasPrefix(key, dirSwitches):
			again.switches = append(again.switches, kv)
		case strings.HasPrefix(key, dirEnded):
			again.ended = append(again.ended, kv)
		case strings.HasPrefix(key, dirTombstones):
			again.tombstones = append(again.tombstones, kv)
		case key == keyDeletions:
			again.deletions = kv
		case key == keyBranches:
			again.branches = kv
		}
	}
	s.load(again)
	return updates, live, s.revisions()
}

func (s *Store) revisions() map[string]policy.Revision {
	all := make(map[string]policy.Revision)
	for key, d := range s.state.documents {
		all[key] = d.revision
	}
	return all
}

// Sound has Run read everything again.
func (s *Store) Sound() { s.sound() }
