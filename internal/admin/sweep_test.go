// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// sweep runs the sweepers of n replicas until the test ends.
func (h *house) sweep(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, n)
	for i := range n {
		s := h.Service
		if i > 0 {
			s = h.another()
		}
		go func() { done <- s.RunSweeper(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range n {
			require.NoError(t, <-done)
		}
	})
}

func TestSweeper_ends_a_switch_and_later_removes_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.sweep(t, 1)
		sw := h.start(t, named("a"), lasting(2*time.Minute))

		time.Sleep(2*time.Minute - time.Nanosecond)
		synctest.Wait()
		require.Equal(t, policy.PhaseActive, h.store.View().Switches["a"].Phase)

		time.Sleep(time.Nanosecond)
		synctest.Wait()
		ended := h.store.View().Switches["a"]
		require.Equal(t, policy.PhaseRestoring, ended.Phase)
		require.Equal(t, sw.Ends, ended.Ends)
		require.Equal(t, sw.Ends, ended.EndedAt)
		entries := h.store.entries("switch.expired")
		require.Len(t, entries, 1)
		require.Equal(t, "policyd", entries[0].Actor.Name)
		require.Equal(t, "a", entries[0].SwitchID)
		require.Equal(t, "INC-1", entries[0].Incident)

		time.Sleep(2*time.Minute - time.Nanosecond)
		synctest.Wait()
		require.Contains(t, h.store.View().Switches, "a", "retries are still coming back")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.NotContains(t, h.store.View().Switches, "a")
		require.Equal(t, policy.PhaseExpired, h.store.View().Ended["a"].Phase)
		require.Len(t, h.store.entries(""), 2, "the removal is house-keeping, not a record")
	})
}

func TestSweeper_a_reverted_switch_stays_reverted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.sweep(t, 1)
		h.start(t, named("a"))
		time.Sleep(time.Minute)
		_, _, err := h.RevertSwitches(t.Context(), sam, admin.RevertRequest{IDs: []string{"a"}})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, policy.PhaseReverted, h.store.View().Ended["a"].Phase)
		require.Equal(t, sam.Actor, h.store.View().Ended["a"].UpdatedBy)
		require.Empty(t, h.store.entries("switch.expired"))
	})
}

func TestSweeper_without_a_restore_ends_and_removes_at_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.sweep(t, 1)
		h.start(t, named("a"), lasting(time.Minute), func(r *admin.StartRequest) { r.Spec.Restore = 0 })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, h.store.View().Switches)
		require.Equal(t, policy.PhaseExpired, h.store.View().Ended["a"].Phase)
		require.Len(t, h.store.entries("switch.expired"), 1)
	})
}

func TestSweeper_O_CL_09_an_extended_switch_expires_once_at_its_new_end(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.sweep(t, 3)
		h.start(t, named("a"), lasting(2*time.Minute))
		time.Sleep(time.Minute)
		_, err := h.ExtendSwitch(t.Context(), alex, "a", 58*time.Minute) // 1 h in all
		require.NoError(t, err)

		time.Sleep(58*time.Minute - time.Second)
		synctest.Wait()
		require.Empty(t, h.store.entries("switch.expired"), "nothing happens at the old end")
		require.Equal(t, policy.PhaseActive, h.store.View().Switches["a"].Phase)
		e, err := h.Effective(t.Context(), payments)
		require.NoError(t, err)
		require.Equal(t, engine.Int(1), valueOf(t, e, engine.MaxAttempts).Value, "retries are still off")

		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Len(t, h.store.entries("switch.expired"), 1)
	})
}

func TestSweeper_O_CL_09_an_extension_that_races_the_end_wins_or_loses_whole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t, named("a"), lasting(time.Minute))
		extended := false
		h.store.before = func(tx policy.Transaction) error {
			if tx.Entry != nil && tx.Entry.Action == "switch.expired" && !extended {
				extended = true // between the sweeper's look and its write
				_, err := h.another().ExtendSwitch(t.Context(), alex, "a", time.Hour)
				return err
			}
			return nil
		}
		h.sweep(t, 1)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		require.Equal(t, policy.PhaseActive, h.store.View().Switches["a"].Phase)
		require.Empty(t, h.store.entries("switch.expired"))
		time.Sleep(40 * time.Minute)
		synctest.Wait()
		require.Len(t, h.store.entries("switch.expired"), 1)
	})
}

func TestSweeper_of_many_replicas_records_each_end_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		for i := range 50 {
			h.start(t, named(fmt.Sprint("s", i)), lasting(time.Duration(1+i%5)*time.Minute))
		}
		h.sweep(t, 5)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		require.Len(t, h.store.entries("switch.expired"), 50)
		require.Empty(t, h.store.View().Switches)
		require.Len(t, h.store.View().Ended, 50)
	})
}

func TestSweeper_O_ST_02_ends_on_time_after_a_store_without_leader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		var down atomic.Bool
		var tries atomic.Int64
		h.store.before = func(policy.Transaction) error {
			if down.Load() {
				tries.Add(1)
				return fault.New(fault.Unavailable, "no_quorum", "no leader")
			}
			return nil
		}
		sw := h.start(t, named("a"), lasting(10*time.Minute))
		h.sweep(t, 1)
		time.Sleep(9 * time.Minute)
		down.Store(true)
		time.Sleep(11 * time.Minute) // no leader for 10 min beyond the end
		down.Store(false)
		require.Positive(t, tries.Load())
		require.Less(t, tries.Load(), int64(60), "backs off")
		time.Sleep(time.Minute)
		synctest.Wait()
		entries := h.store.entries("switch.expired")
		require.Len(t, entries, 1)
		require.Contains(t, entries[0].Changes[0].After, sw.Ends.UTC().Format(time.RFC3339), "ended at its own end, not when the store came back")
		require.Equal(t, sw.Ends, h.store.View().Ended["a"].EndedAt, "and the restore ran from there")
	})
}

func TestSwitch_O_ST_05_time_left_only_falls_and_stays_in_bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t, named("a"), lasting(time.Minute))
		last := time.Minute
		for range 1300 {
			st, err := h.Switch(t.Context(), "a")
			require.NoError(t, err)
			require.LessOrEqual(t, st.Left, last)
			require.GreaterOrEqual(t, st.Left, time.Duration(0))
			last = st.Left
			time.Sleep(50 * time.Millisecond)
		}
		require.Zero(t, last)
	})
}

func TestSweeper_sleeps_while_nothing_is_due(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t, named("a"), lasting(24*time.Hour))
		h.sweep(t, 1)
		synctest.Wait()
		looks := h.store.looks.Load()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, h.store.looks.Load()-looks, int64(12))
	})
}
