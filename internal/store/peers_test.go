// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/storetest"
)

// roll is the list of replicas as WatchPeers last told it.
type roll struct {
	mu    sync.Mutex
	peers []store.Peer // guarded by mu
}

func (r *roll) set(peers []store.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers = peers
}

func (r *roll) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []string{}
	for _, p := range r.peers {
		all = append(all, p.Address)
	}
	slices.Sort(all)
	return all
}

func (r *roll) await(t *testing.T, what string, want ...string) {
	t.Helper()
	slices.Sort(want)
	storetest.Eventually(t, what, func() bool {
		return slices.Equal(r.addresses(), want)
	})
}

func announce(t *testing.T, s *store.Store, id, address string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Announce(ctx, store.Peer{ID: id, Address: address, Version: "1", StartedAt: time.Now()})
	}()
	leave = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(leave)
	return leave
}

func follow(t *testing.T, s *store.Store) *roll {
	t.Helper()
	r := &roll{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.WatchPeers(ctx, r.set) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func TestPeers_are_listed_while_they_run(t *testing.T) {
	s := newStore(t, embedded.Client(), newPrefix())
	leave := announce(t, s, "a", "127.0.0.1:1")
	list := follow(t, s)
	list.await(t, "a replica that was there before", "127.0.0.1:1")
	announce(t, s, "b", "127.0.0.1:2")
	list.await(t, "a replica that came", "127.0.0.1:1", "127.0.0.1:2")
	leave()
	list.await(t, "who left is out at once", "127.0.0.1:2")
}

func TestPeers_survive_an_outage_of_the_store(t *testing.T) {
	c := newCluster(t, 1)
	prefix := newPrefix()
	s := newStore(t, open(t, store.External{Endpoints: c.through()}), prefix)
	announce(t, s, "a", "127.0.0.1:1")
	list := follow(t, s)
	list.await(t, "the replica", "127.0.0.1:1")

	c.links(refuse)
	other := newStore(t, open(t, store.External{Endpoints: c.direct()}), prefix)
	seen := follow(t, other)
	seen.await(t, "an announcement that nobody keeps ends")
	require.Equal(t, []string{"127.0.0.1:1"}, list.addresses(), "the last list stands while the store is away")
	c.links(pass)
	seen.await(t, "the replica is announced again", "127.0.0.1:1")
	list.await(t, "and sees itself", "127.0.0.1:1")
}

func TestPeers_id_that_is_no_key_is_refused(t *testing.T) {
	s := newStore(t, embedded.Client(), newPrefix())
	require.ErrorContains(t, s.Announce(t.Context(), store.Peer{ID: "a/b"}), "a/b")
}
