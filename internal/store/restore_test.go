// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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

// Etcd tells no progress of a watch that starts at a revision to come, and after a restart
// that is every watch until something is written.
func TestStore_nothing_written_since_the_start_is_no_silence(t *testing.T) {
	dir := t.TempDir()
	for life := range 2 {
		server, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir, FastTick: true})
		require.NoError(t, err)
		t.Run("life", func(t *testing.T) {
			logs := &logbook{}
			s := newStoreWith(t, store.Config{Client: server.Client(), Timing: quick(), Logger: logs.logger()})
			storetest.Start(t, s)
			if life == 0 {
				commit(t, s, put("shop", 2, 0))
				return
			}
			before := s.View()
			require.Eventually(t, func() bool { return s.View().AsOf.After(before.AsOf) }, 10*time.Second, 5*time.Millisecond)
			require.False(t, s.View().Stale)
			require.NotContains(t, logs.String(), "no sign of life")
			require.Equal(t, before.Revision, s.View().Revision)
		})
		require.NoError(t, server.Close())
	}
}

// As after a restore that is quicker than any silence: etcd's client goes on with its watch
// in data that have nothing to do with those before.
func TestStore_watch_that_goes_on_in_another_cluster_is_noticed(t *testing.T) {
	before, after := newCluster(t, 1), newCluster(t, 1)
	prefix := newPrefix()
	restored := newStore(t, open(t, store.External{Endpoints: after.direct()}), prefix)
	storetest.Start(t, restored)
	last := commit(t, restored, put("shop/old", 2, 0))
	for i := range 20 {
		last = commit(t, restored, put("shop/old", int64(i%9+1), last))
	}
	client := open(t, store.External{Endpoints: before.through()})
	s := newStoreWith(t, store.Config{Client: client, Prefix: prefix})
	heard := storetest.Start(t, s)
	commit(t, s, put("shop/lost", 2, 0))

	client.SetEndpoints(after.through()...)
	before.links(refuse)
	next := commit(t, restored, put("shop/new", 3, 0))
	all := heard.Wait(t, "the other data", func(all []policy.Update) bool { return all[len(all)-1].Revision >= next })
	for _, u := range all[:len(all)-1] {
		require.False(t, u.Revision >= next && !u.Reset, "a change of other data on top of the old ones: %+v", u)
	}
	require.Equal(t, storetest.StateOf(restored.View()), storetest.StateOf(s.View()))
	require.Equal(t, restored.View().Epoch, s.View().Epoch)
	require.Zero(t, s.Stats().Drift, "the full comparison is not what noticed it")
}
