// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// reader is an instance that takes updates at times of its own.
type reader struct {
	held     map[string]int64
	seq      uint64
	epoch    string
	revision int64
	hash     uint64
}

// cut is the seq of a reader whose stream ended.
const cut = math.MaxUint64

// read brings the reader to the newest state as a stream would, from where it is or, if
// resumed, from what it says it is at.
func (r *reader) read(t require.TestingT, v *view, resumed bool) {
	st := v.state.Load()
	s := &stream{view: v, position: position{epoch: r.epoch, base: r.seq}}
	if resumed || r.seq == cut {
		s.epoch, s.base = "", 0
		s.resume = &resumePoint{epoch: r.epoch, revision: r.revision, hash: r.hash}
	}
	from, due := s.next(st, st.snap.revision, 0)
	if !due {
		require.Equal(t, st.hash, r.hash, "nothing is due, so nothing is missing")
		return
	}
	m := st.message(v, from)
	for i := range m.pieces {
		f := m.stamp(i, max(st.snap.revision, s.told), 0, 0, reading{time: time.Now()})
		require.Equal(t, f.size, f.data.Len())
		var got policydv1.WatchResponse
		require.NoError(t, proto.Unmarshal(f.data.Materialize(), &got))
		u := got.GetUpdate()
		require.Equal(t, st.snap.epoch, u.GetEpoch())
		require.Equal(t, i < len(m.pieces)-1, u.GetMore())
		if u.GetSnapshot() && i == 0 {
			r.held = make(map[string]int64)
		}
		for _, e := range u.GetEntries() {
			if e.GetDeleted() {
				delete(r.held, e.GetKey())
			} else {
				r.held[e.GetKey()] = e.GetRevision()
			}
		}
		r.epoch, r.revision, r.hash = u.GetEpoch(), u.GetRevision(), u.GetHash()
	}
	r.seq = st.seq
	var sum uint64
	for key, revision := range r.held {
		sum += engine.EntryHash(key, revision)
	}
	require.Equal(t, sum, r.hash, "hash of what is held")
}

func TestReaders_at_any_point_arrive_at_what_they_may_see(t *testing.T) {
	scopes := []engine.Scope{"global", "shop", "shop/pay", "shop/pay/charge", "shop/payments", "media", "media/enc", "media/enc/job"}
	rapid.Check(t, func(t *rapid.T) {
		hub := &Hub{world: newWorld()}
		docs := make(map[string]policy.Change)
		epoch, revision, since := 1, policy.Revision(1), policy.Revision(1)

		publish := func(u policy.Update) {
			u.Epoch, u.Revision, u.DeletionsKnownSince = policy.Epoch(fmt.Sprint("e", epoch)), revision, since
			touched := make(map[*view]struct{})
			require.NoError(t, hub.apply(&u, 0, touched))
			for v := range touched {
				v.publish(hub.world.snap, 0)
			}
			hub.snap.Store(hub.world.snap)
		}
		everything := func() policy.Update {
			u := policy.Update{Reset: true}
			for _, c := range docs {
				if !c.Deleted() || c.Revision >= since {
					u.Changes = append(u.Changes, c)
				}
			}
			return u
		}
		targets := [][]engine.Scope{{"shop"}, {"shop/pay"}, {"shop/pay/charge", "media"}, {"global"}, nil}
		views := make([]*view, len(targets))
		readers := make([]*reader, 3*len(targets))
		for i := range readers {
			readers[i] = &reader{held: make(map[string]int64)}
		}
		restart := func() {
			hub.world, hub.views = newWorld(), newViewIndex()
			publish(everything())
			for i, set := range targets {
				views[i] = newView(newTargetSet(set, i%2 == 0), 1, 200)
				hub.views.add(views[i])
				views[i].rescan(hub.world.snap)
				views[i].publish(hub.world.snap, 0)
			}
			for _, r := range readers {
				r.seq = cut
			}
		}
		restart()

		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 13).Draw(t, "step") {
			case 0: // the store forgets deletions
				since = max(since, policy.Revision(rapid.Int64Range(int64(since), int64(revision)).Draw(t, "since")))
				for key, c := range docs {
					if c.Deleted() && c.Revision < since {
						delete(docs, key)
					}
				}
			case 1: // the store lists everything again
				revision++
				publish(everything())
			case 2: // something vanished without a word, and a list finds out
				if len(docs) == 0 {
					break
				}
				gone := docs[slices.Min(slices.Collect(maps.Keys(docs)))]
				delete(docs, gone.Key)
				revision++
				publish(everything())
				docs[gone.Key] = policy.Change{Key: gone.Key, Scope: gone.Scope, Revision: revision}
			case 3:
				if rapid.IntRange(0, 5).Draw(t, "restore") == 0 {
					epoch++
					publish(everything())
				}
			case 4, 5, 6:
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				readers[i].read(t, views[i%len(views)], rapid.Bool().Draw(t, "resumed"))
			case 7:
				for _, v := range views {
					v.renew(hub.world.snap)
				}
			case 8:
				restart()
			case 9:
				hub.world.snap = &snapshot{
					epoch: hub.world.snap.epoch, revision: hub.world.snap.revision, seq: hub.world.snap.seq,
					since: hub.world.snap.since, spaces: maps.Clone(hub.world.snap.spaces),
				}
				for name := range hub.world.snap.spaces {
					hub.world.compact(name)
				}
			default:
				revision++
				var u policy.Update
				for range rapid.IntRange(1, 4).Draw(t, "changes") {
					c := policy.Change{Revision: revision, Scope: rapid.SampledFrom(scopes).Draw(t, "scope")}
					c.Key = policy.PolicyKey(c.Scope)
					if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
						id := rapid.IntRange(0, 3).Draw(t, "id")
						c.Scope = scopes[id]
						c.Key = policy.SwitchKey(fmt.Sprint(id))
					}
					if rapid.IntRange(0, 2).Draw(t, "delete") > 0 {
						c.Document, _ = proto.Marshal(&policydv1.KillSwitch{Drill: c.Key == "switches/1"})
					}
					docs[c.Key] = c
					u.Changes = append(u.Changes, c)
				}
				publish(u)
			}
		}

		for i, r := range readers {
			v := views[i%len(views)]
			r.read(t, v, i%2 == 0)
			want := make(map[string]int64)
			for key, c := range docs {
				d := &document{scope: c.Scope, drill: key == "switches/1"}
				if !c.Deleted() && v.sees(d) {
					want[key] = int64(c.Revision)
				}
			}
			require.Equal(t, want, r.held)
		}
	})
}

func TestA_stream_that_lags_behind_forgotten_deletions_gets_everything(t *testing.T) {
	hub := &Hub{world: newWorld(), views: newViewIndex()}
	v := newView(newTargetSet([]engine.Scope{"shop"}, false), 1, 1000)
	hub.views.add(v)
	publish := func(revision, since policy.Revision, reset bool, changes ...policy.Change) {
		for i := range changes {
			changes[i].Key, changes[i].Revision = policy.PolicyKey(changes[i].Scope), revision
		}
		u := policy.Update{Epoch: "e", Revision: revision, Reset: reset, Changes: changes, DeletionsKnownSince: since}
		require.NoError(t, hub.apply(&u, 0, make(map[*view]struct{})))
		v.publish(hub.world.snap, 0)
	}
	publish(1, 1, true, policy.Change{Scope: "shop/a", Document: []byte{}}, policy.Change{Scope: "shop/b", Document: []byte{}})
	r := &reader{seq: cut}
	r.read(t, v, true)
	require.Len(t, r.held, 2)

	publish(2, 1, false, policy.Change{Scope: "shop/a"})
	publish(3, 3, false, policy.Change{Scope: "shop/c", Document: []byte{}})
	hub.world.compact("shop")
	v.renew(hub.world.snap)
	require.NotContains(t, hub.world.live, "policies/shop/a")
	r.read(t, v, false)
	require.Equal(t, map[string]int64{"policies/shop/b": 1, "policies/shop/c": 3}, r.held)
}

func TestThe_log_stays_small_under_endless_edits(t *testing.T) {
	w := newWorld()
	revision := policy.Revision(1)
	_, _, err := w.apply(&policy.Update{Epoch: "e", Revision: revision, Reset: true}, 0)
	require.NoError(t, err)
	for i := range 20_000 {
		revision++
		scope := engine.Scope(fmt.Sprint("shop/s", i%10))
		c := policy.Change{Key: policy.PolicyKey(scope), Scope: scope, Revision: revision, Document: []byte{}}
		if i%7 == 0 {
			scope = engine.Scope(fmt.Sprint("shop/gone", i))
			c = policy.Change{Key: policy.PolicyKey(scope), Scope: scope, Revision: revision}
		}
		u := policy.Update{Epoch: "e", Revision: revision, Changes: []policy.Change{c}, DeletionsKnownSince: max(1, revision-100)}
		_, _, err := w.apply(&u, 0)
		require.NoError(t, err)
	}
	require.Less(t, len(w.snap.spaces["shop"].log), 1000)
	require.Less(t, len(w.live), 1000)
}

func TestWhat_does_not_continue_the_state_changes_nothing(t *testing.T) {
	w := newWorld()
	_, _, err := w.apply(&policy.Update{Epoch: "e1", Revision: 10, Reset: true}, 0)
	require.NoError(t, err)
	snap := w.snap
	_, _, err = w.apply(&policy.Update{Epoch: "e2", Revision: 11}, 0)
	require.ErrorContains(t, err, "does not continue")
	_, _, err = w.apply(&policy.Update{Epoch: "e1", Revision: 9, Reset: true}, 0)
	require.ErrorContains(t, err, "older")
	require.Same(t, snap, w.snap)

	old := policy.Change{Key: "policies/shop", Scope: "shop", Revision: 5, Document: []byte{1}}
	for _, c := range []struct {
		change policy.Change
		moves  bool
	}{
		{policy.Change{Key: "policies/shop", Scope: "shop", Revision: 8, Document: []byte{2}}, true},
		{policy.Change{Key: "policies/shop", Scope: "shop", Revision: 8, Document: []byte{2}}, false}, // twice
		{old, false},
		{policy.Change{Key: "tokens/x", Revision: 9, Document: []byte{3}}, false}, // nothing of ours
		{policy.Change{Key: "policies/shop", Scope: "shop", Revision: 8}, true},   // a repair
	} {
		changes, _, err := w.apply(&policy.Update{Epoch: "e1", Revision: 10, Changes: []policy.Change{c.change}}, 0)
		require.NoError(t, err)
		require.Equal(t, c.moves, len(changes) == 1, "%v", c.change)
	}
}

func TestFlow_counts_what_is_not_confirmed(t *testing.T) {
	var f flow
	send := func(n int, revision int64) {
		f.sent += n
		f.note(revision, time.Duration(revision), 0)
	}
	send(100, 1)
	send(100, 2)
	send(100, 3)
	require.Equal(t, 300, f.pending())
	waited, ok := f.confirm(1, 11)
	require.True(t, ok)
	require.EqualValues(t, 10, waited)
	require.Equal(t, 200, f.pending())
	_, ok = f.confirm(2, 12)
	require.False(t, ok, "the newest is marked now")
	require.Equal(t, 200, f.pending(), "never less than what is not confirmed")
	f.sent += 30 // a heartbeat
	f.stall(50)
	f.stall(60)
	require.EqualValues(t, 20, f.stalled(70))
	waited, _ = f.confirm(3, 13)
	require.EqualValues(t, 10, waited)
	require.Zero(t, f.pending())
	require.Zero(t, f.stalled(80))
	_, ok = f.confirm(3, 14)
	require.False(t, ok)
}

func TestAsks_come_three_at_once_and_then_rarely(t *testing.T) {
	var a turns
	granted := 0
	for now := time.Duration(0); now < 10*time.Minute; now += 100 * time.Millisecond {
		if a.allow(now, askEvery, askBurst) {
			granted++
		}
		if now == time.Second {
			require.Equal(t, 3, granted)
		}
	}
	require.InDelta(t, 3+60, granted, 1)
}

func TestThe_gate_admits_at_its_rate_and_spreads_the_rest(t *testing.T) {
	g := newGate(1_000_000, 100)
	admitted := 0
	for range 100 {
		_, ok := g.enter(0)
		require.True(t, ok)
	}
	waits := make([]int, 11)
	for range 1000 {
		wait, ok := g.enter(0)
		require.False(t, ok)
		require.Positive(t, wait)
		waits[min(int(wait/time.Second), 10)]++
	}
	// A thousand at a hundred per second are told to come back over about ten seconds.
	require.Positive(t, waits[7])
	require.Less(t, waits[0], 600)
	for now := time.Duration(0); now < 10*time.Second; now += 10 * time.Millisecond {
		if _, ok := g.enter(now); ok {
			admitted++
		}
	}
	require.InDelta(t, 1000, admitted, 2)

	full := newGate(1, 100)
	_, ok := full.enter(0)
	require.True(t, ok)
	_, ok = full.enter(time.Second)
	require.False(t, ok)
	full.leave()
	_, ok = full.enter(time.Second)
	require.True(t, ok)
}

func TestTargets_that_lie_below_others_make_the_same_view(t *testing.T) {
	a := newTargetSet([]engine.Scope{"shop/pay", "shop", "media/enc", "shop"}, false)
	b := newTargetSet([]engine.Scope{"media/enc", "shop"}, false)
	require.Equal(t, a.key, b.key)
	require.NotEqual(t, a.key, newTargetSet([]engine.Scope{"media/enc", "shop"}, true).key)
	require.NotEqual(t, a.key, newTargetSet([]engine.Scope{"media/enc"}, false).key)
}
