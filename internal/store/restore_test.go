// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
	"github.com/policyd/policyd/internal/store/storetest"
)

func TestStore_data_that_went_back_are_a_new_epoch(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	first := commit(t, s.Store, put("shop", 2, 0))
	m := c.members[0]
	m.stop()
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(m.cfg.Dir)))
	m.start(t)
	revision := first
	for i := range 5 {
		revision = eventuallyCommit(t, s.Store, put("shop", int64(i+3), revision))
	}
	lost := eventuallyCommit(t, s.Store, put("shop/lost", 3, 0))
	before := s.View()
	require.Equal(t, lost, before.Revision)

	m.stop()
	require.NoError(t, os.RemoveAll(m.cfg.Dir))
	require.NoError(t, os.CopyFS(m.cfg.Dir, os.DirFS(backup)))
	m.start(t)
	all := s.heard.Wait(t, "a reset", func(all []policy.Update) bool { return all[len(all)-1].Epoch != before.Epoch })
	require.True(t, all[len(all)-1].Reset)
	view := s.View()
	require.Less(t, view.Revision, before.Revision)
	require.Len(t, view.Policies, 1)
	require.Equal(t, first, view.Policies["shop"].Revision)
	next := eventuallyCommit(t, s.Store, put("shop", 9, first))
	s.heard.Wait(t, "an edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == next })
	storetest.Eventually(t, "the other replica", func() bool { return s.other.View().Epoch == s.View().Epoch })
}

func TestStore_epoch_survives_a_restart_and_differs_between_data(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	epoch := func(dir string) (policy.Epoch, policy.Revision) {
		server, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir, FastTick: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, server.Close()) }()
		var view *policy.View
		t.Run("once", func(t *testing.T) {
			s := newStoreWith(t, store.Config{Client: server.Client(), Timing: quick()})
			storetest.Start(t, s)
			if s.View().Policies["shop"] == nil {
				commit(t, s, put("shop", 2, 0))
			}
			view = s.View()
		})
		require.Contains(t, view.Policies, storetest.Policy("shop", 2).Scope)
		return view.Epoch, view.Revision
	}
	first, revision := epoch(dirs[0])
	again, later := epoch(dirs[0])
	require.Equal(t, first, again)
	require.Equal(t, revision, later)
	other, _ := epoch(dirs[1])
	require.NotEqual(t, first, other)
}
