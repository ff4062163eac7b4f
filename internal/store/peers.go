// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/fault"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Peer is a running replica of policyd on the same store.
type Peer struct {
	// ID is random, new at each start.
	ID string
	// Address of its gRPC, host:port.
	Address   string
	Version   string
	StartedAt time.Time
}

var errLeaseLost = errors.New("the lease of the announcement ended")

// Announce keeps p in the list of peers until ctx ends, then takes it out. A lease is right
// here, unlike for a switch: the entry must vanish with the process, and nobody needs a
// record of it.
func (s *Store) Announce(ctx context.Context, p Peer) error {
	if !safeID(p.ID) {
		return fault.New(fault.Invalid, "peer_id", "the replica's id %q cannot be part of a key", p.ID)
	}
	value, err := proto.Marshal(&policydv1.StoredPeer{
		Id: p.ID, Address: p.Address, Version: p.Version, StartedAt: timestamppb.New(p.StartedAt),
	})
	if err != nil {
		return fmt.Errorf("encode announcement: %w", err)
	}
	s.persist(ctx, "announce this replica", func(ctx context.Context) error { return s.announce(ctx, p.ID, value) })
	return nil
}

// announce returns when the lease is lost, or nil after ctx ended.
func (s *Store) announce(ctx context.Context, id string, value []byte) error {
	request, cancel := context.WithTimeout(ctx, s.timing.Request)
	defer cancel()
	lease, err := s.client.Grant(request, int64(s.timing.Lease/time.Second))
	if err != nil {
		return translate(err, "get a lease")
	}
	defer s.withdraw(ctx, lease.ID)
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return translate(err, "keep the lease")
	}
	if _, err := s.client.Put(request, s.keys.peer(id), string(value), clientv3.WithLease(lease.ID)); err != nil {
		return translate(err, "put the announcement")
	}
	for range alive {
	}
	if ctx.Err() != nil {
		return nil
	}
	return errLeaseLost
}

// withdraw ends a lease, and with it the announcement; if that fails it ends by itself.
func (s *Store) withdraw(ctx context.Context, lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := s.client.Revoke(ctx, lease); err != nil {
		s.log.DebugContext(ctx, "announcement not withdrawn, it ends by itself", "error", err)
	}
}

// WatchPeers calls changed with all peers, sorted by id, at first and after each change,
// until ctx ends. While the store cannot be reached the last list stands.
func (s *Store) WatchPeers(ctx context.Context, changed func([]Peer)) {
	s.persist(ctx, "follow the list of replicas", func(ctx context.Context) error { return s.watchPeers(ctx, changed) })
}

func (s *Store) watchPeers(ctx context.Context, changed func([]Peer)) error {
	request, cancel := context.WithTimeout(ctx, s.timing.Request)
	defer cancel()
	dir := s.keys.dir(dirPeers)
	answer, err := s.client.Get(request, dir, clientv3.WithPrefix())
	if err != nil {
		return translate(err, "list replicas")
	}
	peers := make(map[string]Peer, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		s.notePeer(peers, string(kv.GetKey()), kv.GetValue())
	}
	tell := func() {
		changed(slices.SortedFunc(maps.Values(peers), func(a, b Peer) int { return strings.Compare(a.ID, b.ID) }))
	}
	tell()

	watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stop()
	for response := range s.client.Watch(watching, dir, clientv3.WithPrefix(), clientv3.WithRev(answer.Header.GetRevision()+1)) {
		if err := response.Err(); err != nil {
			return translate(err, "watch replicas")
		}
		for _, e := range response.Events {
			key := string(e.Kv.GetKey())
			if e.Type == clientv3.EventTypeDelete {
				delete(peers, key)
				continue
			}
			s.notePeer(peers, key, e.Kv.GetValue())
		}
		tell()
	}
	return errEnded
}

func (s *Store) notePeer(peers map[string]Peer, key string, value []byte) {
	var stored policydv1.StoredPeer
	if err := proto.Unmarshal(value, &stored); err != nil {
		s.log.Warn("announcement of a replica cannot be read", "key", key, "error", err)
		delete(peers, key)
		return
	}
	peers[key] = Peer{
		ID: stored.GetId(), Address: stored.GetAddress(), Version: stored.GetVersion(), StartedAt: stored.GetStartedAt().AsTime(),
	}
}

// persist does work again and again until ctx ends, with a pause that grows while it fails.
func (s *Store) persist(ctx context.Context, what string, work func(context.Context) error) {
	pause := s.timing.Pause
	for {
		began := time.Now()
		err := work(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > s.timing.MaxPause {
			pause = s.timing.Pause
		}
		s.log.DebugContext(ctx, "tried again", "what", what, "in", pause, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, s.timing.MaxPause)
	}
}
