// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestStore_on_three_members(t *testing.T) {
	c := newCluster(t, 3)
	client := open(t, store.External{Endpoints: c.direct()})
	storetest.Run(t, func(t *testing.T) storetest.Env {
		link := newLink(client)
		link.client = open(t, store.External{Endpoints: c.through()})
		env := environment(t, client, link)
		env.CutOff = func(during func()) {
			c.links(refuse)
			during()
			compact(t, client)
			c.links(pass)
		}
		return env
	})
}

// running is a store of a cluster with its sink, and another one to write with.
type running struct {
	*store.Store
	heard *storetest.Recorder
	other *store.Store

	prefix string
}

func (c *cluster) run(t *testing.T) running {
	t.Helper()
	prefix := newPrefix()
	r := running{
		prefix: prefix,
		Store:  newStore(t, open(t, store.External{Endpoints: c.through()}), prefix),
		other:  newStore(t, open(t, store.External{Endpoints: c.direct()}), prefix),
	}
	storetest.Start(t, r.other)
	r.heard = storetest.Start(t, r.Store)
	return r
}

func put(scope engine.Scope, attempts int64, expected policy.Revision) policy.Transaction {
	return policy.Transaction{
		PutPolicies: []policy.PolicyPut{{Policy: storetest.Policy(scope, attempts), Expected: expected}},
		Entry:       &policy.Entry{Action: "policy.apply", Scopes: []engine.Scope{scope}},
	}
}

func remove(scope engine.Scope, expected policy.Revision) policy.Transaction {
	return policy.Transaction{
		Deletes: []policy.Deletion{{Scope: scope, Expected: expected}},
		Entry:   &policy.Entry{Action: "policy.delete", Scopes: []engine.Scope{scope}},
	}
}

func commit(t testing.TB, s *store.Store, tx policy.Transaction) policy.Revision {
	t.Helper()
	revision, err := s.Commit(t.Context(), tx)
	require.NoError(t, err)
	return revision
}

// eventuallyCommit repeats tx while the store is unavailable, as a person would.
func eventuallyCommit(t testing.TB, s *store.Store, tx policy.Transaction) policy.Revision {
	t.Helper()
	var revision policy.Revision
	storetest.Eventually(t, "a write", func() bool {
		var err error
		revision, err = s.Commit(t.Context(), tx)
		if err != nil {
			require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
		}
		return err == nil
	})
	return revision
}

func reason(t testing.TB, err error) string {
	t.Helper()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	return f.Reason
}

func TestO_WA_01_compaction_while_cut_off_is_noticed_and_bridged(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	client := open(t, store.External{Endpoints: c.direct()})
	gone := commit(t, s.other, put("shop/x", 2, 0))
	kept := commit(t, s.other, put("shop/y", 2, 0))
	storetest.Eventually(t, "both policies", func() bool { return s.View().Revision == kept })
	relists := s.Stats().Relists

	// Cut without a word, so that etcd's client resumes the watch where it was and meets the
	// compaction.
	c.links(refuse)
	for i := range 40 {
		kept = commit(t, s.other, put("shop/y", int64(i%9+1), kept))
	}
	commit(t, s.other, remove("shop/x", gone))
	compact(t, client)
	last := kept
	for i := range 9 {
		last = commit(t, s.other, put("shop/y", int64(i%9+1), last))
	}
	c.links(pass)

	s.heard.Wait(t, "the last edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	want := map[string]policy.Revision{"policies/shop/y": last}
	require.Equal(t, want, storetest.StateOf(s.View()))
	require.Equal(t, want, s.heard.State())
	require.Greater(t, s.Stats().Relists, relists)
	require.Zero(t, s.Stats().Drift)

	// And the watch is a watch again.
	next := commit(t, s.other, put("shop/z", 2, 0))
	s.heard.Wait(t, "an edit after it", func(all []policy.Update) bool { return all[len(all)-1].Revision == next })
}

func TestO_WA_04_partitioned_member_is_left_within_15_seconds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	prefix := newPrefix()
	cut := c.otherMember(c.leader(t))
	// One client reaches only the member that is cut off; as etcd's client takes members in
	// turn, this one is given the others only once it watches.
	client := open(t, store.External{Endpoints: c.through()[cut : cut+1]})
	s := newStoreWith(t, store.Config{Client: client, Prefix: prefix})
	heard := storetest.Start(t, s)
	client.SetEndpoints(c.through()...)
	other := newStore(t, open(t, store.External{Endpoints: []string{c.direct()[c.leader(t)], c.direct()[c.otherMember(cut)]}}), prefix)
	storetest.Start(t, other)

	began := time.Now()
	c.isolate(cut, true)
	defer c.isolate(cut, false)
	last := eventuallyCommit(t, other, put("shop", 3, 0))
	heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.Less(t, time.Since(began), 15*time.Second)
	require.False(t, s.View().Stale)
}

func TestO_WA_04_hanging_connection_is_left_within_15_seconds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	client := open(t, store.External{Endpoints: c.through()[:1]})
	prefix := newPrefix()
	s := newStoreWith(t, store.Config{Client: client, Prefix: prefix})
	heard := storetest.Start(t, s)
	client.SetEndpoints(c.through()...)
	other := newStore(t, open(t, store.External{Endpoints: c.direct()}), prefix)
	storetest.Start(t, other)

	began := time.Now()
	c.members[0].clients.set(swallow)
	last := commit(t, other, put("shop", 3, 0))
	heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.Less(t, time.Since(began), 15*time.Second)
}

func TestStore_leader_loss_loses_no_update_and_repeats_none(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	s := c.run(t)
	sw := storetest.Switch("ks-1", "shop")
	commit(t, s.Store, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}})

	var revision policy.Revision
	revisions := map[policy.Revision]bool{}
	for i := range 30 {
		if i == 10 {
			c.members[c.leader(t)].stop()
		}
		revision = eventuallyCommit(t, s.Store, put("shop", int64(i%9+1), revision))
		revisions[revision] = true
		// O-ST-02, O-ST-05: the end of a switch is a time in its document, which no change of
		// leader moves.
		require.True(t, s.View().Switches["ks-1"].Ends.Equal(sw.Ends))
	}
	all := s.heard.Wait(t, "the last edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == revision })
	for i, u := range all {
		if i > 0 {
			require.Greater(t, u.Revision, all[i-1].Revision, "no revision twice, none out of order")
		}
		delete(revisions, u.Revision)
	}
	require.Empty(t, revisions, "edits that were never heard of")
	require.Len(t, all, 1+1+30)
}

func TestStore_without_quorum_serves_its_view_and_refuses_writes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	s := c.run(t)
	first := commit(t, s.Store, put("shop", 2, 0))
	leader := c.leader(t)
	c.members[leader].stop()
	c.members[c.otherMember(leader)].stop()

	began := time.Now()
	_, err := s.Commit(t.Context(), put("shop", 3, first))
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.Less(t, time.Since(began), 15*time.Second, "a write is not held for ever")
	storetest.Eventually(t, "the view to be stale", func() bool { return s.View().Stale })
	view := s.View()
	require.Equal(t, first, view.Policies["shop"].Revision)
	require.True(t, s.Stats().Stale)
	storetest.Eventually(t, "a plain refusal", func() bool {
		_, err := s.Commit(t.Context(), put("shop", 3, first))
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		require.NotEmpty(t, f.Hint)
		return f.Reason == "store_unavailable"
	})

	c.members[leader].start(t)
	storetest.Eventually(t, "the view to be current", func() bool { return !s.View().Stale })
	require.True(t, s.View().AsOf.After(view.AsOf))
	current := s.View().Policies["shop"].Revision
	last := eventuallyCommit(t, s.Store, put("shop", 4, current))
	s.heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
}

func TestStore_whole_cluster_restarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	s := c.run(t)
	first := commit(t, s.Store, put("shop", 2, 0))
	epoch := s.View().Epoch
	for _, m := range c.members {
		m.stop()
	}
	storetest.Eventually(t, "the view to be stale", func() bool { return s.View().Stale })
	for _, m := range c.members {
		m.boot(t)
	}
	for _, m := range c.members {
		m.ready(t)
	}
	last := eventuallyCommit(t, s.Store, put("shop", 3, first))
	s.heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.Equal(t, epoch, s.View().Epoch)
	resets := 0
	for _, u := range s.heard.All() {
		if u.Reset {
			resets++
		}
	}
	require.Equal(t, 1, resets, "a restart forgets nothing")
}

func TestO_ST_03_no_document_hangs_on_a_lease(t *testing.T) {
	s := newStore(t, embedded.Client(), "/leases/v1/")
	storetest.Start(t, s)
	first := commit(t, s, put("shop", 2, 0))
	commit(t, s, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: storetest.Switch("ks-1", "shop")}}})
	commit(t, s, remove("shop", first))
	for _, kv := range everyKey(t, "/leases/v1/") {
		require.Zero(t, kv.GetLease(), "%s", kv.GetKey())
	}
	leases, err := embedded.Client().Leases(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}

// An instance may hold, from another replica, what came and went while this one was cut off.
func TestStore_what_came_and_went_unseen_is_told_as_deleted(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	before := commit(t, s.other, put("shop/y", 2, 0))
	s.heard.Wait(t, "the policy", func(all []policy.Update) bool { return all[len(all)-1].Revision == before })
	c.links(refuse)
	came := commit(t, s.other, put("shop/x", 2, 0))
	gone := commit(t, s.other, remove("shop/x", came))
	last := commit(t, s.other, put("shop/y", 3, before))
	c.links(pass)
	all := s.heard.Wait(t, "the last edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.False(t, all[len(all)-1].Reset)
	require.Contains(t, all[len(all)-1].Changes, policy.Change{Key: "policies/shop/x", Revision: gone, Scope: "shop/x"})
}
