// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/sdk/go/engine"
)

func identity(id string, targets ...engine.Scope) fleet.Identity {
	return fleet.Identity{ID: id, Namespace: "shop", Service: "web", Targets: targets}
}

func find(t *testing.T, r *fleet.Registry, id string) fleet.Instance {
	t.Helper()
	in, ok := r.Instance(id)
	require.True(t, ok)
	return in
}

func TestSession_in_force_is_only_what_was_confirmed(t *testing.T) {
	r := fleet.New()
	s := r.Connect(identity("a", "shop"), 0, false)
	require.Equal(t, fleet.Behind, find(t, r, "a").State, "it has confirmed nothing")
	s.Wanted(5)
	s.Confirmed(4, nil)
	require.Equal(t, fleet.Behind, find(t, r, "a").State, "a newer revision concerns it")
	s.Confirmed(5, nil)
	require.Equal(t, fleet.Live, find(t, r, "a").State)
	s.Wanted(6)
	require.Equal(t, fleet.Behind, find(t, r, "a").State)
	rejected := []fleet.Rejection{{Scope: "shop", Revision: 6, Field: "hedging", Reason: "not supported"}}
	s.Confirmed(6, rejected)
	in := find(t, r, "a")
	require.Equal(t, fleet.Rejected, in.State)
	require.Equal(t, rejected, in.Rejected)
	rejected[0].Reason = "changed later"
	require.Equal(t, "not supported", find(t, r, "a").Rejected[0].Reason, "the caller's slice is not kept")
	s.Confirmed(7, nil)
	require.Equal(t, fleet.Live, find(t, r, "a").State)
	s.Close()
	in = find(t, r, "a")
	require.Equal(t, fleet.Stale, in.State)
	require.EqualValues(t, 7, in.Revision, "it goes on obeying its last revision")
}

func TestSession_that_was_replaced_changes_nothing(t *testing.T) {
	r := fleet.New()
	old := r.Connect(identity("a", "shop"), 0, false)
	next := r.Connect(identity("a", "mall"), 3, true)
	next.Confirmed(3, nil)
	before := find(t, r, "a")
	old.Wanted(9)
	old.Confirmed(1, []fleet.Rejection{{Scope: "shop"}})
	old.Targets([]engine.Scope{"shop"})
	old.Reported(&fleet.Report{Period: time.Second})
	old.Seen()
	old.Close()
	require.Equal(t, before, find(t, r, "a"))
}

func TestRegistry_instances_that_a_scope_reaches(t *testing.T) {
	r := fleet.New()
	r.Connect(identity("wide", "shop"), 0, false)
	r.Connect(identity("narrow", "shop/payments"), 0, false)
	r.Connect(identity("other", "mall"), 0, false)
	r.Connect(identity("everything", engine.Global), 0, false)
	r.Connect(identity("nothing"), 0, false)
	for scope, want := range map[engine.Scope][]string{
		"":                     {"everything", "narrow", "nothing", "other", "wide"},
		engine.Global:          {"everything", "narrow", "nothing", "other", "wide"},
		"shop":                 {"everything", "narrow", "wide"},
		"shop/payments":        {"everything", "narrow", "wide"},
		"shop/payments/charge": {"everything", "narrow", "wide"},
		"shop/pay":             {"everything", "wide"},
		"mall":                 {"everything", "other"},
	} {
		var got []string
		for _, in := range r.Instances(scope) {
			got = append(got, in.ID)
		}
		require.Equal(t, want, got, "scope %q", scope)
	}
}

func TestRegistry_forgets_who_stays_away(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fleet.New()
		gone := r.Connect(identity("gone", "shop"), 1, false)
		r.Connect(identity("here", "shop"), 1, false)
		gone.Close()
		require.Equal(t, 1, r.LocalStates()[fleet.Stale])

		time.Sleep(fleet.GoneAfter - time.Second)
		require.False(t, find(t, r, "gone").Gone)
		time.Sleep(time.Second)
		require.True(t, find(t, r, "gone").Gone)
		require.Equal(t, map[fleet.State]int{fleet.Live: 1, fleet.Behind: 0, fleet.Rejected: 0, fleet.Stale: 0}, r.LocalStates(),
			"who is gone counts no more")
		require.Len(t, r.Instances(""), 2)

		time.Sleep(fleet.ForgottenAfter - fleet.GoneAfter)
		_, known := r.Instance("gone")
		require.False(t, known)
		require.Len(t, r.Instances(""), 1)
		require.Equal(t, fleet.Live, find(t, r, "here").State, "who is connected is never forgotten")
	})
}

func TestRegistry_is_bounded_and_prefers_who_is_connected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fleet.New()
		first := r.Connect(identity("first", "shop"), 1, false)
		sessions := make([]*fleet.Session, 0, fleet.MaxInstances)
		for i := range fleet.MaxInstances - 1 {
			sessions = append(sessions, r.Connect(identity(fmt.Sprint(i), "shop"), 1, false))
		}
		over := r.Connect(identity("over", "shop"), 1, false)
		over.Confirmed(2, nil)
		over.Reported(&fleet.Report{Period: time.Second})
		over.Close()
		_, known := r.Instance("over")
		require.False(t, known, "it finds no place, and its stream works all the same")

		sessions[0].Close()
		time.Sleep(time.Second)
		first.Close()
		for i := range 10 {
			r.Connect(identity(fmt.Sprint("late", i), "shop"), 1, false)
		}
		_, known = r.Instance("0")
		require.False(t, known, "who was away longest makes room")
		require.LessOrEqual(t, len(r.Instances("")), fleet.MaxInstances)
		require.Equal(t, fleet.Live, find(t, r, "1").State)
	})
}

func TestRegistry_one_notice_for_a_burst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fleet.New()
		s := r.Connect(identity("a", "shop"), 0, false)
		changed := r.Changed()
		for i := range 1000 {
			s.Confirmed(int64(i+1), nil)
		}
		select {
		case <-changed:
			require.Fail(t, "told at once")
		default:
		}
		<-changed
		again := r.Changed()
		s.Confirmed(1000, nil) // nothing new
		time.Sleep(time.Second)
		select {
		case <-again:
			require.Fail(t, "told of nothing")
		default:
		}
		s.Close()
		<-again
	})
}

func TestReport_folds_into_a_sum(t *testing.T) {
	r := &fleet.Report{}
	var calls, budget int64
	for i := range 500 {
		r.Endpoints = append(r.Endpoints, fleet.EndpointReport{
			Endpoint: fmt.Sprint("shop/pay/", i), Calls: int64(i), Attempts: 2, Failed: 3, Rescued: 4, Rejected: 5,
			Suppressed: map[string]int64{fmt.Sprint("code", i): 1, "budget": 1},
		})
		calls, budget = calls+int64(i), budget+1
	}
	r.Fold(200)
	require.Len(t, r.Endpoints, 200)
	rest := r.Endpoints[199]
	require.Equal(t, fleet.Other, rest.Endpoint)
	require.True(t, rest.Unmatched)
	var gotCalls, gotSuppressed int64
	for _, e := range r.Endpoints {
		gotCalls += e.Calls
		for _, n := range e.Suppressed {
			gotSuppressed += n
		}
	}
	require.Equal(t, calls, gotCalls, "nothing is lost")
	require.Equal(t, 2*budget, gotSuppressed)
	require.LessOrEqual(t, len(rest.Suppressed), 33, "names of codes are bounded")
	r.Fold(200)
	require.Len(t, r.Endpoints, 200)
}

func TestRegistry_readers_and_writers_at_once(t *testing.T) {
	r := fleet.New()
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 200 {
				s := r.Connect(identity(fmt.Sprint(w%4), "shop"), 0, false)
				s.Wanted(int64(i + 1))
				s.Reported(&fleet.Report{Period: time.Second, Endpoints: []fleet.EndpointReport{{Endpoint: "shop/pay/charge", Suppressed: map[string]int64{"budget": 1}}}})
				s.Confirmed(int64(i+1), nil)
				s.Close()
			}
		})
		all.Go(func() {
			for range 200 {
				for _, in := range r.Instances("shop") {
					_ = in.Report
				}
				_ = r.LocalStates()
				_ = r.Changed()
			}
		})
	}
	all.Wait()
	require.Len(t, r.Instances(""), 4)
	require.Equal(t, 4, r.LocalStates()[fleet.Stale])
}
