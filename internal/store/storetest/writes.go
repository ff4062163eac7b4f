// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func writeCases() []testCase {
	return []testCase{
		{"a policy is read back as it was written", needsNothing, readBack},
		{"a commit is in the view when it returns", needsNothing, readYourWrites},
		{"a policy is written only at the revision expected", needsNothing, compareAndSwap},
		{"of two writers at one revision one gets the conflict with who and when", needsNothing, twoWriters},
		{"a batch with one conflict writes nothing", needsNothing, atomicBatch},
		{"a policy that was deleted is made anew with revision 0 only", needsNothing, deleteAndRecreate},
		{"a hundred documents are written at once", needsNothing, hundred},
		{"a hundred and one documents are refused", needsNothing, hundredAndOne},
		{"the audit record is written with the change and not without it", needsNothing, outbox},
		{"a transaction repeated with its record's id is written once", needsNothing, repeated},
		{"a transaction that makes no sense is refused", needsNothing, nonsense},
		{"a view that was taken does not change", needsNothing, immutableView},
		{"a switch starts, moves to its ramp and ends", needsNothing, switchLife},
		{"fields that this build does not know survive an edit", needsBytes, unknownFields},
	}
}

func readBack(t *testing.T, h *harness) {
	want := Policy("shop/payments", 4)
	revision := h.commit(t, put(want, 0))
	got := h.Store.View().Policies["shop/payments"]
	require.NotNil(t, got)
	require.Equal(t, revision, got.Revision)
	stored := *want
	stored.Revision = revision
	require.Equal(t, &stored, got)
}

func readYourWrites(t *testing.T, h *harness) {
	for i := range 50 {
		scope := engine.Scope(fmt.Sprintf("shop/s%d", i))
		revision := h.commit(t, put(Policy(scope, 3), 0))
		view := h.Store.View()
		require.GreaterOrEqual(t, view.Revision, revision)
		require.Contains(t, view.Policies, scope)
	}
}

func compareAndSwap(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop", 2), 0))
	second := h.commit(t, put(Policy("shop", 3), first))
	require.Greater(t, second, first)

	conflict := h.refused(t, put(Policy("shop", 9), first))
	require.Equal(t, fault.Conflict, fault.KindOf(conflict))
	require.Equal(t, policy.PolicyKey("shop"), conflict.Key)
	require.Equal(t, first, conflict.Expected)
	require.Equal(t, second, conflict.Current)

	require.Equal(t, second, h.refused(t, put(Policy("shop", 9), 0)).Current, "0 means that it must not exist")
	require.Zero(t, h.refused(t, put(Policy("shop/cart", 9), first)).Current, "a document that does not exist has no revision")
	require.Zero(t, h.refused(t, remove("shop/cart", first)).Current)
	require.Equal(t, engine.Int(3), h.Store.View().Policies["shop"].Settings[engine.MaxAttempts], "nothing refused was written")
}

func twoWriters(t *testing.T, h *harness) {
	base := h.commit(t, put(Policy("shop", 2), 0))
	const writers = 8
	errs := make([]error, writers)
	revisions := make([]policy.Revision, writers)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			p := Policy("shop", int64(i+1))
			p.Metadata.UpdatedBy = policy.Actor{Name: fmt.Sprintf("writer-%d", i)}
			revisions[i], errs[i] = h.Store.Commit(t.Context(), put(p, base))
		})
	}
	all.Wait()
	winner := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, winner, "two writers won")
			winner = i
		}
	}
	require.GreaterOrEqual(t, winner, 0)
	for i, err := range errs {
		if i == winner {
			continue
		}
		var conflict *policy.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, revisions[winner], conflict.Current)
		require.Equal(t, fmt.Sprintf("writer-%d", winner), conflict.By.Name)
		require.True(t, conflict.At.Equal(wall()))
		require.NotNil(t, conflict.Policy)
		require.Equal(t, engine.Int(int64(winner+1)), conflict.Policy.Settings[engine.MaxAttempts])
		require.Equal(t, revisions[winner], conflict.Policy.Revision)
	}
}

func atomicBatch(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop", 2), 0))
	h.heard.at(t, first)
	before := len(h.heard.All())
	tx := policy.Transaction{
		PutPolicies: []policy.PolicyPut{
			{Policy: Policy("shop/cart", 3)},
			{Policy: Policy("shop", 5), Expected: first - 1},
			{Policy: Policy("shop/payments", 3)},
		},
		Entry: entry("policy.apply", "shop/cart", "shop", "shop/payments"),
	}
	conflict := h.refused(t, tx)
	require.Equal(t, engine.Scope("shop"), conflict.Scope)
	view := h.Store.View()
	require.Len(t, view.Policies, 1)
	require.Equal(t, first, view.Policies["shop"].Revision)

	tx.PutPolicies[1].Expected = first
	revision := h.commit(t, tx)
	u := h.heard.at(t, revision)
	require.Equal(t, revision, u.Revision)
	require.Len(t, u.Changes, 3, "one revision is one update")
	require.Len(t, h.heard.All(), before+1, "what was refused made no update")
}

func deleteAndRecreate(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop/cart", 2), 0))
	deleted := h.commit(t, remove("shop/cart", first))
	require.NotContains(t, h.Store.View().Policies, engine.Scope("shop/cart"))

	conflict := h.refused(t, put(Policy("shop/cart", 4), first))
	require.Zero(t, conflict.Current)
	require.Nil(t, conflict.Policy)
	again := h.commit(t, put(Policy("shop/cart", 4), 0))
	require.Greater(t, again, deleted)

	u := h.heard.at(t, deleted)
	require.Len(t, u.Changes, 1)
	require.True(t, u.Changes[0].Deleted())
	require.Equal(t, policy.Change{Key: "policies/shop/cart", Revision: deleted, Scope: "shop/cart"}, u.Changes[0])
	require.False(t, h.heard.at(t, again).Changes[0].Deleted())
}

// batchOf returns a transaction of n new policies.
func batchOf(n int) policy.Transaction {
	tx := policy.Transaction{Entry: entry("policy.apply")}
	for i := range n {
		tx.PutPolicies = append(tx.PutPolicies, policy.PolicyPut{Policy: Policy(engine.Scope(fmt.Sprintf("shop/s%d", i)), 3)})
	}
	return tx
}

func hundred(t *testing.T, h *harness) {
	revision := h.commit(t, batchOf(100))
	require.Len(t, h.Store.View().Policies, 100)
	u := h.heard.at(t, revision)
	require.Equal(t, revision, u.Revision)
	require.Len(t, u.Changes, 100)

	tx := policy.Transaction{Entry: entry("policy.delete")}
	for i := range 100 {
		tx.Deletes = append(tx.Deletes, policy.Deletion{Scope: engine.Scope(fmt.Sprintf("shop/s%d", i)), Expected: revision})
	}
	revision = h.commit(t, tx)
	require.Empty(t, h.Store.View().Policies)
	require.Len(t, h.heard.at(t, revision).Changes, 100)
}

func hundredAndOne(t *testing.T, h *harness) {
	_, err := h.Store.Commit(t.Context(), batchOf(101))
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, "batch_too_large", f.Reason)
	require.Empty(t, h.Store.View().Policies)
}

func outbox(t *testing.T, h *harness) {
	tx := put(Policy("shop", 2), 0)
	tx.Entry.ID = "entry-1"
	tx.Entry.Incident = "INC-7"
	tx.Entry.Changes = []policy.EntryChange{{Key: "policies/shop", After: `{"maxAttempts":2}`}}
	h.commit(t, tx)
	records, err := h.Outbox(t.Context())
	require.NoError(t, err)
	require.Equal(t, []policy.Entry{*tx.Entry}, records)

	tx = put(Policy("shop", 3), 0)
	tx.Entry.ID = "entry-2"
	h.refused(t, tx)
	records, err = h.Outbox(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1, "a change that was refused leaves no record")
}

func repeated(t *testing.T, h *harness) {
	tx := put(Policy("shop", 2), 0)
	tx.Entry.ID = "entry-1"
	first := h.commit(t, tx)
	require.Equal(t, first, h.commit(t, tx))
	require.Equal(t, first, h.Store.View().Policies["shop"].Revision)
	records, err := h.Outbox(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
}

func nonsense(t *testing.T, h *harness) {
	twice := policy.PolicyPut{Policy: Policy("shop", 2)}
	for name, tx := range map[string]policy.Transaction{
		"nothing to write":       {Entry: entry("policy.apply")},
		"one document twice":     {PutPolicies: []policy.PolicyPut{twice, twice}},
		"a scope that is a path": {Deletes: []policy.Deletion{{Scope: "shop/../../meta", Expected: 1}}},
	} {
		_, err := h.Store.Commit(t.Context(), tx)
		require.Error(t, err, name)
		require.Contains(t, []fault.Kind{fault.Invalid, fault.Conflict}, fault.KindOf(err), name)
	}
	require.Empty(t, h.Store.View().Policies)
}

func immutableView(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop", 2), 0))
	view := h.Store.View()
	h.commit(t, put(Policy("shop", 5), first))
	h.commit(t, put(Policy("shop/cart", 5), 0))
	h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: Switch("ks-1", "shop")}}})
	require.Equal(t, first, view.Revision)
	require.Len(t, view.Policies, 1)
	require.Equal(t, engine.Int(2), view.Policies["shop"].Settings[engine.MaxAttempts])
	require.Empty(t, view.Switches)
}

func switchLife(t *testing.T, h *harness) {
	sw := Switch("ks-1", "shop/payments")
	started := h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}, Entry: entry("switch.start", sw.Scope)})
	u := h.heard.at(t, started)
	require.Len(t, u.Changes, 1)
	c := u.Changes[0]
	require.Equal(t, "switches/ks-1", c.Key)
	require.Equal(t, engine.Scope("shop/payments"), c.Scope)
	require.True(t, c.Urgent)
	want := *sw
	want.Revision = int64(started)
	require.Equal(t, &want, h.Store.View().Switches["ks-1"])

	conflict := h.refused(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: sw}}})
	require.Equal(t, "alice", conflict.By.Name)

	ramp := *sw
	ramp.Phase, ramp.EndedAt, ramp.Ends = policy.PhaseRestoring, wall(), wall()
	ramping := h.commit(t, policy.Transaction{PutSwitches: []policy.SwitchPut{{Switch: &ramp, Expected: started}}})

	over := ramp
	over.Phase = policy.PhaseReverted
	h.refused(t, policy.Transaction{End: []policy.SwitchPut{{Switch: &over, Expected: started}}})
	require.Contains(t, h.Store.View().Switches, "ks-1")
	ended := h.commit(t, policy.Transaction{End: []policy.SwitchPut{{Switch: &over, Expected: ramping}}})
	view := h.Store.View()
	require.NotContains(t, view.Switches, "ks-1")
	require.Equal(t, policy.PhaseReverted, view.Ended["ks-1"].Phase)
	u = h.heard.at(t, ended)
	require.Equal(t, []policy.Change{{Key: "switches/ks-1", Revision: ended, Scope: "shop/payments", Urgent: true}}, u.Changes)
}

func unknownFields(t *testing.T, h *harness) {
	first := h.commit(t, put(Policy("shop", 2), 0))

	// A newer policyd adds a field to the document, one to a block that this build knows, and
	// a block of which it knows nothing.
	newer := &policydv1.Policy{}
	require.NoError(t, proto.Unmarshal(h.Read("policies/shop"), newer))
	newer.ProtoReflect().SetUnknown(unknownField(900, 1))
	newer.Spec.Backoff = &policydv1.Backoff{Base: durationpb.New(time.Second)}
	newer.Spec.Backoff.ProtoReflect().SetUnknown(unknownField(901, 2))
	newer.Spec.Hedging = &policydv1.Hedging{}
	newer.Spec.Hedging.ProtoReflect().SetUnknown(unknownField(902, 3))
	raw, err := proto.Marshal(newer)
	require.NoError(t, err)
	h.Put("policies/shop", raw)
	Eventually(t, "the newer document", func() bool { return h.Store.View().Policies["shop"].Revision > first })

	known := h.Store.View().Policies["shop"]
	require.Equal(t, engine.Duration(time.Second), known.Settings[engine.BackoffBase], "what is known is read")
	u := h.heard.at(t, known.Revision)
	require.Equal(t, raw, u.Changes[0].Document, "what is stored is passed on unchanged")

	edited := *known
	edited.Settings = known.Settings.Clone()
	edited.Settings[engine.MaxAttempts] = engine.Int(5)
	revision := h.commit(t, put(&edited, known.Revision))
	after := &policydv1.Policy{}
	require.NoError(t, proto.Unmarshal(h.Read("policies/shop"), after))
	require.EqualValues(t, 5, after.Spec.GetMaxAttempts())
	require.Equal(t, unknownField(900, 1), []byte(after.ProtoReflect().GetUnknown()))
	require.Equal(t, unknownField(901, 2), []byte(after.Spec.Backoff.ProtoReflect().GetUnknown()))
	require.Equal(t, unknownField(902, 3), []byte(after.Spec.Hedging.ProtoReflect().GetUnknown()))

	delete(edited.Settings, engine.BackoffBase)
	h.commit(t, put(&edited, revision))
	after = &policydv1.Policy{}
	require.NoError(t, proto.Unmarshal(h.Read("policies/shop"), after))
	require.Nil(t, after.Spec.Backoff, "a block that was removed takes its fields along")
	require.NotNil(t, after.Spec.Hedging, "a block that nobody could see stays")
}

func unknownField(number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}
