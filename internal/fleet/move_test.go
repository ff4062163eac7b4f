// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/sdk/go/engine"
)

func connect(r *fleet.Registry, revision int64) *fleet.Session {
	return r.Connect(fleet.Identity{ID: "cart-1", Namespace: "shop", Targets: []engine.Scope{"shop"}}, revision, false)
}

func state(t *testing.T, r *fleet.Registry) fleet.State {
	t.Helper()
	in, ok := r.Instance("cart-1")
	require.True(t, ok)
	return in.State
}

func TestSession_closed_without_a_word_is_stale_at_once(t *testing.T) {
	r := fleet.New()
	s := connect(r, 7)
	require.Equal(t, fleet.Live, state(t, r))
	s.Close()
	require.Equal(t, fleet.Stale, state(t, r))
}

func TestSession_asked_to_leave_is_stale_only_when_it_does_not_come_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fleet.New()
		s := connect(r, 7)
		s.Leaving(10 * time.Second)
		s.Close()
		require.Equal(t, fleet.Live, state(t, r), "it does as it was told")
		time.Sleep(14 * time.Second)
		require.Equal(t, fleet.Live, state(t, r))
		time.Sleep(time.Second)
		require.Equal(t, fleet.Stale, state(t, r))
		in, _ := r.Instance("cart-1")
		require.Equal(t, time.Now(), in.Since)

		back := connect(r, 7)
		require.Equal(t, fleet.Live, state(t, r))
		back.Close()
		require.Equal(t, fleet.Stale, state(t, r), "the promise was for one move")
	})
}

func TestSession_that_is_behind_stays_behind_while_it_moves(t *testing.T) {
	r := fleet.New()
	s := connect(r, 7)
	s.Wanted(8)
	s.Leaving(time.Minute)
	s.Close()
	require.Equal(t, fleet.Behind, state(t, r), "it is never shown as in force before it confirms")
}

func TestSource_instances_on_their_way_outlive_the_replica_that_sent_them(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fleet.New()
		far := r.AddSource()
		in := fleet.Instance{Identity: fleet.Identity{ID: "cart-1", Targets: []engine.Scope{"shop"}}, State: fleet.Live, LastSeen: time.Now(), BackBy: time.Now().Add(10 * time.Second)}
		still := in
		still.ID, still.BackBy = "cart-2", time.Time{}
		far.Update([]fleet.Instance{in, still}, true)
		far.Lost()
		states := func() []fleet.State {
			var all []fleet.State
			for _, in := range r.Instances("shop") {
				all = append(all, in.State)
			}
			return all
		}
		require.Equal(t, []fleet.State{fleet.Live, fleet.Stale}, states())
		time.Sleep(10 * time.Second)
		require.Equal(t, []fleet.State{fleet.Stale, fleet.Stale}, states())
		far.Close()
		require.Empty(t, states())
	})
}

func TestRegistry_tells_what_changed_since(t *testing.T) {
	r := fleet.New()
	s := connect(r, 7)
	first, at := r.LocalSince(0)
	require.Len(t, first, 1)
	none, again := r.LocalSince(at)
	require.Empty(t, none)
	require.Equal(t, at, again)
	s.Confirmed(8, nil)
	changed, _ := r.LocalSince(at)
	require.Len(t, changed, 1)
	require.EqualValues(t, 8, changed[0].Revision)
}
