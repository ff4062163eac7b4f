// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func watchCases() []testCase {
	return []testCase{
		{"the first update is a reset with an epoch", needsNothing, firstUpdate},
		{"updates come in order, one per revision, and add up to the view", needsNothing, orderedUpdates},
		{"a document in an update is what is stored", needsNothing, encodedDocuments},
		{"a replica hears the same", needsReplica, replicaHearsTheSame},
		{"a replica that starts among writes misses none", needsReplica, startAmongWrites},
		{"a value that cannot be read changes nothing and can be replaced", needsBytes, unreadableValue},
		{"a document under the wrong key is not believed", needsBytes, wrongKey},
		{"other data under the same keys are a new epoch", needsBytes, newEpoch},
		{"a gap in the history is bridged by reading everything", needsCutOff, bridgedGap},
	}
}

func traceCases() []testCase {
	return []testCase{
		{"a replica that starts later knows what was deleted", needsReplica, deletionsAreRemembered},
		{"deletions are forgotten after an hour, and that is known", needsNothing, deletionsAreForgotten},
		{"the revision does not go back when traces are swept", needsReplica, revisionStays},
		{"a deletion by hand is heard and remembered", needsBytes, deletedByHand},
		{"an ended switch is kept for a day", needsNothing, endedSwitchesAreForgotten},
	}
}

func firstUpdate(t *testing.T, h *harness) {
	u := h.heard.All()[0]
	require.True(t, u.Reset)
	require.NotEmpty(t, u.Epoch)
	require.Empty(t, u.Changes)
	view := h.Store.View()
	require.Equal(t, u.Epoch, view.Epoch)
	require.False(t, view.Stale)
	require.False(t, view.AsOf.IsZero())
}

func orderedUpdates(t *testing.T, h *harness) {
	const writers, edits = 4, 12
	var all sync.WaitGroup
	errs := make(chan error, writers*edits)
	for w := range writers {
		all.Go(func() {
			scope := engine.Scope(fmt.Sprintf("shop/s%d", w))
			var revision policy.Revision
			for i := range edits {
				var err error
				if i%4 == 3 {
					_, err = h.Store.Commit(t.Context(), remove(scope, revision))
					revision = 0
				} else {
					revision, err = h.Store.Commit(t.Context(), put(Policy(scope, int64(i+1)), revision))
				}
				errs <- err
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	last := h.commit(t, put(Policy("shop/last", 1), 0))
	updates := h.heard.Wait(t, "the last update", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.Len(t, updates, 1+writers*edits+1)
	for i, u := range updates {
		require.Equal(t, i == 0, u.Reset)
		require.Equal(t, updates[0].Epoch, u.Epoch)
		if i == 0 {
			continue
		}
		require.Greater(t, u.Revision, updates[i-1].Revision)
		for _, c := range u.Changes {
			require.Equal(t, u.Revision, c.Revision)
		}
	}
	require.Equal(t, StateOf(h.Store.View()), h.heard.State())
}

func encodedDocuments(t *testing.T, h *harness) {
	revision := h.commit(t, policy.Transaction{
		PutPolicies: []policy.PolicyPut{{Policy: Policy("shop/payments", 4)}},
		PutSwitches: []policy.SwitchPut{{Switch: Switch("ks-1", engine.Global)}},
	})
	u := h.heard.at(t, revision)
	require.Len(t, u.Changes, 2)
	for _, c := range u.Changes {
		require.Equal(t, c.Key == "switches/ks-1", c.Urgent, "a change of a switch is urgent, no other is")
		if c.Urgent {
			var k policydv1.KillSwitch
			require.NoError(t, proto.Unmarshal(c.Document, &k))
			require.Equal(t, "ks-1", k.GetId())
			require.Equal(t, engine.Global, c.Scope)
			continue
		}
		var p policydv1.Policy
		require.NoError(t, proto.Unmarshal(c.Document, &p))
		require.Equal(t, "shop/payments", p.GetScope())
		require.EqualValues(t, 4, p.GetSpec().GetMaxAttempts())
		require.Equal(t, engine.Scope("shop/payments"), c.Scope)
	}
}

func replicaHearsTheSame(t *testing.T, h *harness) {
	replica := Start(t, h.Replica())
	base := len(replica.All())
	first := h.commit(t, put(Policy("shop", 2), 0))
	h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: Switch("ks-1", "shop")}}, Entry: entry("switch.start")})
	last := h.commit(t, remove("shop", first))
	here, there := h.heard.at(t, last), replica.at(t, last)
	require.Equal(t, here, there)
	require.Equal(t, h.heard.All()[base:], replica.All()[base:])
}

func startAmongWrites(t *testing.T, h *harness) {
	const edits, replicas = 200, 4
	var writing sync.WaitGroup
	var failed error
	halfway := make(chan struct{})
	writing.Go(func() {
		var revision policy.Revision
		for i := range edits {
			if i == edits/4 {
				close(halfway)
			}
			scope := engine.Scope(fmt.Sprintf("shop/s%d", i%7))
			current := h.Store.View().Policies[scope]
			revision = 0
			if current != nil {
				revision = current.Revision
			}
			if _, err := h.Store.Commit(t.Context(), put(Policy(scope, int64(i%9+1)), revision)); err != nil {
				failed = err
				return
			}
		}
	})
	<-halfway
	stores := make([]Store, replicas)
	heard := make([]*Recorder, replicas)
	for i := range stores {
		stores[i] = h.Replica()
		heard[i] = Start(t, stores[i])
	}
	writing.Wait()
	require.NoError(t, failed)
	want := StateOf(h.Store.View())
	for i, s := range stores {
		heard[i].at(t, h.Store.View().Revision)
		require.Equal(t, want, StateOf(s.View()))
		require.Equal(t, want, heard[i].State())
	}
}

func unreadableValue(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop", 2), 0))
	h.Put("policies/shop", []byte{0xff, 0xff, 0xff})
	h.Put("policies/shop/new", []byte("garbage"))
	last := h.commit(t, put(Policy("shop/last", 2), 0))
	view := h.Store.View()
	require.Equal(t, first, view.Policies["shop"].Revision, "the last good document stays")
	require.NotContains(t, view.Policies, engine.Scope("shop/new"))
	h.heard.at(t, last)

	conflict := h.refused(t, put(Policy("shop", 3), first))
	require.Nil(t, conflict.Policy)
	require.Greater(t, conflict.Current, first)
	var f *fault.Error
	require.ErrorAs(t, conflict, &f)
	require.Contains(t, f.Hint, fmt.Sprint(conflict.Current), "the way out is named")
	replaced := h.commit(t, put(Policy("shop", 3), conflict.Current))
	require.Equal(t, replaced, h.Store.View().Policies["shop"].Revision)

	conflict = h.refused(t, put(Policy("shop/new", 3), 0))
	h.commit(t, remove("shop/new", conflict.Current))
	h.commit(t, put(Policy("shop/new", 3), 0))
}

func wrongKey(t *testing.T, h *harness) {
	h.commit(t, put(Policy("shop", 2), 0))
	h.Put("policies/shop/cart", h.Read("policies/shop"))
	h.Put("switches/ks-1", h.Read("policies/shop"))
	h.commit(t, put(Policy("shop/last", 2), 0))
	view := h.Store.View()
	require.NotContains(t, view.Policies, engine.Scope("shop/cart"))
	require.Empty(t, view.Switches)
}

func newEpoch(t *testing.T, h *harness) {
	h.commit(t, put(Policy("shop", 2), 0))
	before := h.Store.View()
	raw, err := proto.Marshal(&policydv1.StoredEpoch{Id: "restored", ClusterId: 4711})
	require.NoError(t, err)
	h.Put("meta/epoch", raw)
	updates := h.heard.Wait(t, "a reset", func(all []policy.Update) bool { return all[len(all)-1].Epoch != before.Epoch })
	last := updates[len(updates)-1]
	require.True(t, last.Reset)
	require.NotEqual(t, policy.Epoch("restored"), last.Epoch, "the data come from another cluster, so their epoch is over too")
	require.Len(t, last.Changes, 1)
	require.Equal(t, last.Epoch, h.Store.View().Epoch)
	h.commit(t, put(Policy("shop", 3), before.Policies["shop"].Revision))

	h.Delete("meta/epoch")
	h.heard.Wait(t, "another reset", func(all []policy.Update) bool { return all[len(all)-1].Epoch != last.Epoch })
}

func bridgedGap(t *testing.T, h *harness) {
	kept := h.commit(t, put(Policy("shop/kept", 2), 0))
	gone := h.commit(t, put(Policy("shop/gone", 2), 0))
	sw := Switch("ks-1", "shop")
	started := h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}, Entry: entry("switch.start")})
	h.heard.at(t, started)
	before := len(h.heard.All())
	var last policy.Revision
	h.CutOff(func() {
		other := h.Replica()
		Start(t, other)
		commit := func(tx policy.Transaction) policy.Revision {
			revision, err := other.Commit(t.Context(), tx)
			require.NoError(t, err)
			return revision
		}
		edited := kept
		for i := range 47 {
			edited = commit(put(Policy("shop/kept", int64(i%9+1)), edited))
		}
		commit(remove("shop/gone", gone))
		commit(policy.Transaction{End: []policy.SwitchPut{{Switch: sw, Expected: started}}, Entry: entry("switch.revert")})
		last = commit(put(Policy("shop/new", 3), 0))
	})
	h.heard.at(t, last)
	want := map[string]policy.Revision{"policies/shop/kept": kept, "policies/shop/new": last}
	want["policies/shop/kept"] = h.Store.View().Policies["shop/kept"].Revision
	require.Greater(t, want["policies/shop/kept"], kept)
	require.Equal(t, want, StateOf(h.Store.View()))
	require.Equal(t, want, h.heard.State(), "what a reader of the updates has")
	require.Contains(t, h.Store.View().Ended, "ks-1")
	for _, u := range h.heard.All()[before:] {
		require.False(t, u.Reset, "a gap that can be bridged forgets nothing")
	}
}

func deletionsAreRemembered(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop/cart", 2), 0))
	sw := Switch("ks-1", "shop/payments")
	started := h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}})
	deleted := h.commit(t, remove("shop/cart", first))
	ended := h.commit(t, policy.Transaction{End: []policy.SwitchPut{{Switch: sw, Expected: started}}})

	u := Start(t, h.Replica()).All()[0]
	require.True(t, u.Reset)
	require.Equal(t, []policy.Change{
		{Key: "policies/shop/cart", Revision: deleted, Scope: "shop/cart"},
		{Key: "switches/ks-1", Revision: ended, Scope: "shop/payments", Urgent: true},
	}, u.Changes)
	require.Less(t, u.DeletionsKnownSince, first)
}

func deletionsAreForgotten(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop/cart", 2), 0))
	deleted := h.commit(t, remove("shop/cart", first))
	require.NoError(t, h.Store.Sweep(t.Context(), time.Now().Add(50*time.Minute)))
	next := h.commit(t, put(Policy("shop", 2), 0))
	require.Less(t, h.heard.at(t, next).DeletionsKnownSince, deleted, "an hour has not gone by")

	require.NoError(t, h.Store.Sweep(t.Context(), time.Now().Add(61*time.Minute)))
	next = h.commit(t, put(Policy("shop", 3), next))
	require.Equal(t, deleted, h.heard.at(t, next).DeletionsKnownSince)
}

func revisionStays(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop/cart", 2), 0))
	deleted := h.commit(t, remove("shop/cart", first))
	require.NoError(t, h.Store.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
	replica := h.Replica()
	u := Start(t, replica).All()[0]
	require.Equal(t, deleted, u.Revision)
	require.Equal(t, deleted, u.DeletionsKnownSince)
	require.Empty(t, u.Changes)
	require.Equal(t, deleted, replica.View().Revision)
	require.Equal(t, deleted, h.Store.View().Revision)
}

func deletedByHand(t *testing.T, h *harness) {
	h.commit(t, put(Policy("shop/cart", 2), 0))
	before := h.Store.View().Revision
	h.Delete("policies/shop/cart")
	h.heard.Wait(t, "the deletion", func([]policy.Update) bool { return len(h.heard.State()) == 0 })
	require.NotContains(t, h.Store.View().Policies, engine.Scope("shop/cart"))

	// The tombstone that policyd adds has a revision of its own, which all replicas share.
	var recorded policy.Revision
	Eventually(t, "the record of it", func() bool {
		u := h.heard.All()[len(h.heard.All())-1]
		recorded = u.Revision
		return len(u.Changes) == 0 && u.Revision > before+1
	})
	if h.Replica != nil {
		u := Start(t, h.Replica()).All()[0]
		require.Equal(t, recorded, u.Revision)
		require.Len(t, u.Changes, 1)
		require.True(t, u.Changes[0].Deleted())
	}
}

func endedSwitchesAreForgotten(t *testing.T, h *harness) {
	sw := Switch("ks-1", "shop")
	started := h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}})
	over := *sw
	over.Phase, over.EndedAt = policy.PhaseExpired, wall()
	h.commit(t, policy.Transaction{End: []policy.SwitchPut{{Switch: &over, Expected: started}}})
	require.NoError(t, h.Store.Sweep(t.Context(), wall().Add(23*time.Hour)))
	require.Contains(t, h.Store.View().Ended, "ks-1")
	require.NoError(t, h.Store.Sweep(t.Context(), wall().Add(25*time.Hour)))
	Eventually(t, "the switch to be gone", func() bool { return h.Store.View().Ended["ks-1"] == nil })
}
