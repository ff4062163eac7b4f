// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestRelay_serves_what_the_root_serves(t *testing.T) {
	r := startRoot(t, newData("e1"))
	r.commit(policyChange(engine.Global, "wide"), policyChange("shop", "a"), policyChange("mall", "b"))
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	direct := newInstance(t, "direct", "shop").join(r.addr)
	behind := newInstance(t, "behind", "shop").join(n.addr)
	narrow := newInstance(t, "narrow", "shop/pay").join(n.addr)

	r.commit(policyChange("shop/pay", "c"))
	r.commit(switchChange("ks-1", "shop"))
	r.commit(policyChange("mall", "nobody's here"))
	last := r.commit(deletion("shop"), policyChange("shop/cart", "d"))
	for _, i := range []*instance{direct, behind} {
		i.at(last)
		require.Len(t, i.held, 4)
	}
	require.Equal(t, direct.hash, behind.hash)
	for key, e := range direct.held {
		require.True(t, proto.Equal(e, behind.held[key]), key)
	}
	// It saw the deletion of shop and nothing of shop/cart.
	narrow.at(last)
	require.Len(t, narrow.held, 3)

	_, listed := r.fleet.Instance("relay-" + n.ID())
	require.False(t, listed, "a relay is no instance")
	in, listed := n.fleet.Instance("behind")
	require.True(t, listed)
	eventually(t, "its confirmation", func() bool { in, _ = n.fleet.Instance("behind"); return in.State == fleet.Live && in.Revision == last })
}

func TestRelay_passes_documents_on_that_it_does_not_know(t *testing.T) {
	r := startRoot(t, newData("e1"))
	c := policyChange("shop", "new")
	c.Document = protowire.AppendTag(c.Document, 1000, protowire.BytesType)
	c.Document = protowire.AppendString(c.Document, "of a later version")
	broken := policy.Change{Key: "policies/shop/x", Scope: "shop/x", Document: []byte{0xff, 0xff}}
	last := r.commit(c, broken)
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	eventually(t, "the relay has it", func() bool { return n.Standing().Revision == last })

	view := n.View()
	require.Contains(t, view.Policies, engine.Scope("shop"))
	require.NotContains(t, view.Policies, engine.Scope("shop/x"), "nobody can read it")
	i := newInstance(t, "a", "mall").join(n.addr).at(11)
	require.Empty(t, i.held, "an instance elsewhere is not touched by it")
	in := newInstance(t, "b", "shop/y").join(n.addr).at(11)
	require.Len(t, in.held, 1)
	unknown := in.held["policies/shop"].GetPolicy().ProtoReflect().GetUnknown()
	require.Contains(t, string(unknown), "of a later version")
}

func TestRelay_an_instance_changes_over_between_root_and_relay_without_a_snapshot(t *testing.T) {
	r := startRoot(t, newData("e1"))
	r.commit(policyChange("shop", "a"), policyChange("shop/pay", "b"))
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	i := newInstance(t, "a", "shop").join(r.addr).at(11)
	i.leave()

	i.fresh().join(n.addr).at(11)
	require.Zero(t, i.snapshots)
	require.Empty(t, i.update.GetEntries(), "nothing had changed")
	i.leave()

	last := r.commit(policyChange("shop", "c"))
	eventually(t, "the relay has it", func() bool { return n.Standing().Revision == last })
	i.fresh().join(n.addr).at(last)
	require.Zero(t, i.snapshots)
	require.Len(t, i.update.GetEntries(), 1)
	i.leave()

	r.commit(deletion("shop/pay"))
	last = r.commit(policyChange("shop", "d"))
	eventually(t, "the relay has it", func() bool { return n.Standing().Revision == last })
	i.fresh().join(n.addr).at(last)
	require.Zero(t, i.snapshots)
	require.Len(t, i.held, 1, "deletions are known too")
	i.leave()
	i.fresh().join(r.addr).at(last)
	require.Zero(t, i.snapshots)
}

func TestRelay_cut_off_serves_its_cell_and_says_since_when(t *testing.T) {
	d := newData("e1")
	r := startRoot(t, d)
	r.commit(policyChange("shop", "a"))
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	old := newInstance(t, "old", "shop").join(n.addr).at(11)
	old.until("a heartbeat", func() bool { return old.beat != nil })
	require.Nil(t, old.beat.GetAsOf(), "it is the newest")
	require.Zero(t, n.Standing().CutOff)
	require.False(t, n.View().Stale)

	before := n.Clock()
	r.served.stop()
	old.until("the truth", func() bool { return old.beat.GetAsOf() != nil })
	asOf := old.beat.GetAsOf().AsTime()
	require.WithinDuration(t, before, asOf, patience)
	require.False(t, asOf.After(old.beat.GetServerTime().AsTime()))
	st := n.Standing()
	require.False(t, st.Connected)
	require.Error(t, st.Err)
	require.Equal(t, asOf, st.CutOff.UTC())
	require.True(t, n.View().Stale)

	young := newInstance(t, "young", "shop").join(n.addr).at(11)
	require.Len(t, young.held, 1)
	require.Equal(t, asOf, young.update.GetAsOf().AsTime(), "the age of what it gets is known to it")

	r = startRootAt(t, d, r.addr, push.Config{})
	last := r.commit(policyChange("shop", "b"))
	old.at(last).until("all is well", func() bool { return old.beat.GetAsOf() == nil })
	require.Zero(t, n.Standing().CutOff)
	require.Zero(t, old.snapshots-1, "its stream never broke and needed no second snapshot")
}

func TestRelay_restarted_without_an_upstream_serves_from_disk(t *testing.T) {
	d := newData("e1")
	r := startRoot(t, d)
	r.commit(policyChange("shop", "a"), policyChange("shop/pay", "b"), switchChange("ks-1", "shop"))
	last := r.commit(deletion("shop/pay"))
	dir := t.TempDir()
	n := startRelay(t, dir, r.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(last)
	late := newInstance(t, "late", "shop").join(r.addr).at(last)
	late.leave()
	i.leave()
	n.stop()
	r.served.stop()

	n = startRelay(t, dir, r.addr).ready(t)
	require.Equal(t, last, n.Standing().Revision)
	require.NotZero(t, n.Standing().CutOff)
	i.fresh().join(n.addr).at(last)
	require.Zero(t, i.snapshots)
	require.Empty(t, i.update.GetEntries())
	require.NotNil(t, i.update.GetAsOf())
	late.fresh().join(n.addr).at(last)
	require.Zero(t, late.snapshots, "the hashes are those of the root")

	r = startRootAt(t, d, r.addr, push.Config{})
	last = r.commit(policyChange("shop", "c"))
	i.at(last)
	require.Zero(t, i.snapshots)
	require.Zero(t, n.Stats().Snapshots, "the relay resumed as well")
}

func TestRelay_cut_off_takes_nobody_back(t *testing.T) {
	d := newData("e1")
	r := startRoot(t, d)
	r.commit(policyChange("shop", "a"))
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	same := newInstance(t, "same", "shop").join(n.addr).at(11)
	same.leave()
	r.served.stop()
	eventually(t, "cut off", func() bool { return !n.Standing().CutOff.IsZero() })

	// Elsewhere the world goes on.
	r = startRoot(t, d)
	ahead := newInstance(t, "ahead", "shop").join(r.addr).at(r.commit(policyChange("shop", "b")))
	ahead.leave()
	restored := startRoot(t, newData("e2"))
	other := newInstance(t, "other", "shop").join(restored.addr).at(10)
	other.leave()

	for _, i := range []*instance{ahead, other} {
		epoch, revision := i.epoch, i.revision
		err := i.join(n.addr).next()
		require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", i.name, err)
		require.Contains(t, err.Error(), "cut off")
		require.Equal(t, []any{epoch, revision}, []any{i.epoch, i.revision})
	}
	// One whose documents are the same loses nothing, whatever revision it has heard of.
	same.revision = 1000
	same.fresh().join(n.addr).at(1000)
	require.Zero(t, same.snapshots)
	_, listed := n.fleet.Instance("ahead")
	require.False(t, listed, "who was sent away is no instance of this cell")
}

func TestRelay_a_restored_store_reaches_the_cell_and_the_old_epoch_does_not_come_back(t *testing.T) {
	old := newData("e1")
	r := startRoot(t, old)
	r.commit(policyChange("shop", "a"))
	r.commit(policyChange("shop", "b"))
	dir := t.TempDir()
	n := startRelay(t, dir, r.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(12)
	r.served.stop()

	restored := newData("e2")
	r2 := startRootAt(t, restored, r.addr, push.Config{})
	last := r2.commit(policyChange("shop", "restored"))
	require.Less(t, last, int64(12))
	i.until("the new epoch", func() bool { return i.epoch == "e2" })
	i.at(last)
	require.Equal(t, "restored", i.held["policies/shop"].GetPolicy().GetSpec().GetDescription())

	// A replica that has not noticed the restore yet.
	r2.served.stop()
	r = startRootAt(t, old, r.addr, push.Config{})
	eventually(t, "it was refused", func() bool { return n.Stats().Refused > 0 })
	require.Equal(t, "e2", n.Standing().Epoch)
	i.leave()
	n.stop()

	// Neither after a restart.
	n = startRelay(t, dir, r.addr).ready(t)
	eventually(t, "it was refused", func() bool { return n.Stats().Refused > 0 })
	require.Equal(t, "e2", n.Standing().Epoch)
	i.fresh().join(n.addr).at(last)
	require.Zero(t, i.snapshots)
}

func TestRelay_a_kill_9_right_after_a_restore_does_not_bring_the_old_epoch_back(t *testing.T) {
	r := startRoot(t, newData("e1"))
	dir := t.TempDir()
	n := startRelay(t, dir, r.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(10)
	r.served.stop()
	startRootAt(t, newData("e2"), r.addr, push.Config{})
	i.until("the new epoch", func() bool { return i.epoch == "e2" })
	// What is on disk at the moment when the first instance has the new epoch.
	raw, err := os.ReadFile(filepath.Join(dir, "relay.state"))
	require.NoError(t, err)
	require.Contains(t, string(raw), `"epoch":"e2"`)
}

func TestRelay_an_upstream_that_is_behind_is_not_followed_back(t *testing.T) {
	d := newData("e1")
	ahead := startRoot(t, d)
	ahead.commit(policyChange("shop", "a"))
	last := ahead.commit(policyChange("shop", "b"))
	dir := t.TempDir()
	n := startRelay(t, dir, ahead.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(last)
	ahead.served.stop()

	// The same epoch, one revision less: a replica that lags.
	lagging := newData("e1")
	lagging.revision = 10
	behind := startRootAt(t, lagging, ahead.addr, push.Config{})
	behind.commit(policyChange("shop", "a"))
	eventually(t, "they talk", func() bool { return behind.Stats().Streams == 1 })
	require.Equal(t, last, n.Standing().Revision)
	behind.commit(policyChange("shop", "b"))
	newest := behind.commit(policyChange("shop", "c"))
	i.at(newest) // take requires that it never went back
}

func TestRelay_fails_over_to_another_upstream(t *testing.T) {
	d := newData("e1")
	a, b := startRoot(t, d), startRoot(t, d)
	a.commit(policyChange("shop", "a"))
	b.Publish(policy.Update{Epoch: d.epoch, Revision: d.revision, Changes: []policy.Change{d.docs["policies/shop"]}})
	n := startRelay(t, t.TempDir(), a.addr, b.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(11)
	first, second := a, b
	if n.Standing().Upstream == b.addr {
		first, second = b, a
	}
	first.served.stop()
	eventually(t, "it found the other one", func() bool { st := n.Standing(); return st.Connected && st.Upstream == second.addr })
	i.at(second.commit(policyChange("shop", "b")))
	require.EqualValues(t, 1, n.Stats().Snapshots, "the first one of all")
}

func TestRelay_of_a_relay(t *testing.T) {
	d := newData("e1")
	r := startRoot(t, d)
	r.commit(policyChange("shop", "a"))
	upper := startRelay(t, t.TempDir(), r.addr).ready(t)
	lower := startRelay(t, t.TempDir(), upper.addr).ready(t)
	i := newInstance(t, "a", "shop").join(lower.addr).at(11)
	i.at(r.commit(switchChange("ks-1", "shop")))
	require.Contains(t, i.held, "switches/ks-1")
	require.Equal(t, []string{lower.ID()}, upper.Below())

	r.served.stop()
	i.until("the truth, two levels down", func() bool { return i.beat != nil && i.beat.GetAsOf() != nil })
	require.True(t, lower.Standing().Connected)
	require.NotZero(t, lower.Standing().CutOff, "its upstream is connected and cut off itself")
	r = startRootAt(t, d, r.addr, push.Config{})
	i.at(r.commit(policyChange("shop", "b"))).until("all is well", func() bool { return i.beat.GetAsOf() == nil })
}

func TestRelay_loop_is_refused(t *testing.T) {
	t.Run("a relay of itself", func(t *testing.T) {
		l := listen(t, "127.0.0.1:0")
		n := startRelayOn(t, l, t.TempDir(), l.Addr().String())
		eventually(t, "it is told", func() bool { return status.Code(n.Standing().Err) == codes.FailedPrecondition })
		require.Contains(t, n.Standing().Err.Error(), "loop")
	})
	t.Run("two relays of each other", func(t *testing.T) {
		la, lb := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
		a := startRelayOn(t, la, t.TempDir(), lb.Addr().String())
		b := startRelayOn(t, lb, t.TempDir(), la.Addr().String())
		eventually(t, "one of them is told", func() bool {
			return status.Code(a.Standing().Err) == codes.FailedPrecondition || status.Code(b.Standing().Err) == codes.FailedPrecondition
		})
	})
}

func TestRelay_hands_on_policyds_clock(t *testing.T) {
	ahead := func() time.Time { return time.Now().Add(3 * time.Hour) }
	never := func() time.Time { return time.Time{} }
	r := startRootAt(t, newData("e1"), "127.0.0.1:0", push.Config{Relay: &push.Relay{ID: "root", Clock: ahead, AsOf: never}})
	dir := t.TempDir()
	n := startRelay(t, dir, r.addr).ready(t)
	i := newInstance(t, "a", "shop").join(n.addr).at(10)
	require.WithinDuration(t, ahead(), i.update.GetServerTime().AsTime(), patience)
	i.leave()
	n.stop()
	r.served.stop()

	n = startRelay(t, dir, r.addr).ready(t)
	i.fresh().join(n.addr).at(10)
	require.WithinDuration(t, ahead(), i.update.GetServerTime().AsTime(), patience, "also from disk")
	require.WithinDuration(t, ahead(), i.update.GetAsOf().AsTime(), patience)
}

func TestRelay_hands_on_the_proofs_of_what_was_served(t *testing.T) {
	d := newData("e1")
	d.history = &policy.History{Epoch: "e1", Number: 1, Cluster: 7, Secret: []byte("secret"), Branches: []policy.Branch{{ID: 3, After: 5}}}
	r := startRootAt(t, d, "127.0.0.1:0", push.Config{Heartbeat: 50 * time.Millisecond})
	dir := t.TempDir()
	n := startRelay(t, dir, r.addr).ready(t)
	first := r.commit(policyChange("shop", "a"))
	i := newInstance(t, "a", "shop").join(n.addr).at(first)
	require.Equal(t, d.history.Token(policy.Revision(first)), i.update.GetToken())

	// Of what does not concern its view the instance hears by heartbeats alone.
	second := r.commit(policyChange("other", "b"))
	i.until("a heartbeat", func() bool { return i.beat.GetRevision() == second })
	require.Equal(t, d.history.Token(policy.Revision(second)), i.beat.GetToken())
	i.leave()
	n.stop()
	r.served.stop()

	n = startRelay(t, dir, r.addr).ready(t)
	i.fresh().join(n.addr).at(second)
	require.Equal(t, d.history.Token(policy.Revision(second)), i.update.GetToken(), "also from disk")
}

func TestRelay_takes_no_writes(t *testing.T) {
	r := startRoot(t, newData("e1"))
	r.commit(policyChange("shop", "a"), switchChange("ks-1", "shop"))
	n := startRelay(t, t.TempDir(), r.addr).ready(t)
	_, err := n.Commit(t.Context(), policy.Transaction{})
	require.Equal(t, fault.Refused, fault.KindOf(err))
	require.Contains(t, err.Error(), r.addr)

	view := n.View()
	require.EqualValues(t, 11, view.Revision)
	require.EqualValues(t, "e1", view.Epoch)
	require.EqualValues(t, 11, view.Policies["shop"].Revision)
	last := r.commit(policyChange("mall", "b"), deletion("shop"))
	eventually(t, "a new view", func() bool { return int64(n.View().Revision) == last })
	require.NotContains(t, n.View().Policies, engine.Scope("shop"))
	require.Contains(t, n.View().Policies, engine.Scope("mall"))
	require.Contains(t, view.Policies, engine.Scope("shop"), "a view does not change")
}

func TestRelay_a_damaged_file_is_ignored_and_replaced(t *testing.T) {
	r := startRoot(t, newData("e1"))
	r.commit(policyChange("shop", "a"))
	dir := t.TempDir()
	path := filepath.Join(dir, "relay.state")
	require.NoError(t, os.WriteFile(path, []byte("policyd relay 1 00\n{}\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "relay.state.new-1"), []byte("left by a crash"), 0o600))
	n := startRelay(t, dir, r.addr).ready(t)
	newInstance(t, "a", "shop").join(n.addr).at(11)
	n.stop()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
	r.served.stop()
	require.EqualValues(t, 11, startRelay(t, dir, r.addr).ready(t).Standing().Revision)
}

func TestRelay_serves_on_when_the_disk_takes_nothing(t *testing.T) {
	r := startRoot(t, newData("e1"))
	dir := filepath.Join(t.TempDir(), "data")
	n := startRelay(t, dir, r.addr).ready(t)
	require.NoError(t, os.RemoveAll(dir))
	i := newInstance(t, "a", "shop").join(n.addr).at(10)
	i.at(r.commit(policyChange("shop", "a")))
	eventually(t, "it is counted", func() bool { return n.Stats().SaveFailures > 0 })
	i.at(r.commit(policyChange("shop", "b")))
}

func TestRelay_without_data_and_upstream_serves_nothing(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	n := startRelay(t, t.TempDir(), nobody)
	eventually(t, "it tried", func() bool { return status.Code(n.Standing().Err) == codes.Unavailable })
	select {
	case <-n.Loaded():
		require.Fail(t, "loaded")
	default:
	}
	// One that comes all the same waits.
	i := newInstance(t, "a", "shop").join(n.addr)
	startRootAt(t, newData("e1"), nobody, push.Config{})
	i.at(10)
}
