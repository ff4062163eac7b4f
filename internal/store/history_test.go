// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// embeddedLives is an embedded etcd whose data directory is copied and put back between the
// lives of a policyd, which remembers nothing.
type embeddedLives struct {
	dir, copied string
}

func newLives(t *testing.T) *embeddedLives {
	return &embeddedLives{dir: filepath.Join(t.TempDir(), "data"), copied: filepath.Join(t.TempDir(), "copy")}
}

func (e *embeddedLives) save(t *testing.T) {
	t.Helper()
	require.NoError(t, os.RemoveAll(e.copied))
	require.NoError(t, os.CopyFS(e.copied, os.DirFS(e.dir)))
}

func (e *embeddedLives) putBack(t *testing.T) {
	t.Helper()
	require.NoError(t, os.RemoveAll(e.dir))
	require.NoError(t, os.CopyFS(e.dir, os.DirFS(e.copied)))
}

// live runs a policyd over the data.
func (e *embeddedLives) live(t *testing.T, during func(s *store.Store, heard *storetest.Recorder), change ...func(*store.Config)) {
	t.Helper()
	server, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: e.dir, FastTick: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	t.Run("life", func(t *testing.T) {
		cfg := store.Config{Client: server.Client(), Timing: quick()}
		for _, f := range change {
			f(&cfg)
		}
		s := newStoreWith(t, cfg)
		during(s, storetest.Start(t, s))
	})
}

// point is what an instance was served that has everything.
func point(t testing.TB, heard *storetest.Recorder) policy.Point {
	t.Helper()
	all := heard.All()
	u := all[len(all)-1]
	require.NotNil(t, u.History)
	return policy.Point{Epoch: u.Epoch, Revision: u.Revision, Token: u.History.Token(u.Revision)}
}

func TestStore_restart_on_an_older_copy_is_told_by_what_instances_were_served(t *testing.T) {
	e := newLives(t)
	var first, lost policy.Revision
	var before, after policy.Point
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		first = commit(t, s, put("shop", 2, 0))
		before = point(t, heard)
	})
	e.save(t)
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		lost = commit(t, s, put("shop", 3, first))
		heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == lost })
		after = point(t, heard)
	})
	// As it was left: every point that was served lies in the past, those of before a restart too.
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		for range 5 {
			s.Suspect(before)
			s.Suspect(after)
		}
		later := commit(t, s, put("shop", 4, lost))
		heard.Wait(t, "an edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == later })
		require.Equal(t, before.Epoch, s.View().Epoch)
	})
	e.putBack(t)
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		require.Equal(t, before.Epoch, s.View().Epoch, "nothing tells the copy from the data yet")
		s.Suspect(before)
		// As if nothing had happened: the same document, and the revisions go on over what was lost.
		revision := first
		for revision < lost {
			revision = commit(t, s, put("shop", 5, revision))
		}
		require.Equal(t, before.Epoch, s.View().Epoch)
		forged := after
		forged.Revision = 1 << 40
		s.Suspect(forged)
		commit(t, s, put("shop/other", 5, 0))
		require.Equal(t, before.Epoch, s.View().Epoch, "who can prove nothing changes nothing")

		storetest.Eventually(t, "a new epoch", func() bool {
			s.Suspect(after)
			return s.View().Epoch != before.Epoch
		})
		all := heard.Wait(t, "a reset", func(all []policy.Update) bool { return all[len(all)-1].Reset })
		require.Equal(t, storetest.StateOf(s.View()), heard.State())
		epoch := all[len(all)-1].Epoch
		for range 5 {
			s.Suspect(after)
		}
		commit(t, s, put("shop", 6, revision))
		require.Equal(t, epoch, s.View().Epoch, "one proof, one epoch")
	})
	// And the copy once more, which knows nothing of that epoch.
	var second policy.Point
	e.live(t, func(s *store.Store, heard *storetest.Recorder) { second = point(t, heard) })
	e.putBack(t)
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		require.Equal(t, before.Epoch, s.View().Epoch)
		storetest.Eventually(t, "a new epoch", func() bool {
			s.Suspect(second)
			return s.View().Epoch != before.Epoch
		})
		require.NotEqual(t, second.Epoch, s.View().Epoch)
		third := point(t, heard)
		require.Equal(t, policy.Past, heard.All()[len(heard.All())-1].History.Judge(second), "it is an earlier epoch now")
		require.NotEqual(t, second.Epoch, third.Epoch)
	})
}

func TestStore_new_epoch_is_given_once_when_asked_for(t *testing.T) {
	e := newLives(t)
	var before policy.Point
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		commit(t, s, put("shop", 2, 0))
		before = point(t, heard)
	})
	e.live(t, func(s *store.Store, heard *storetest.Recorder) {
		epoch := s.View().Epoch
		require.NotEqual(t, before.Epoch, epoch)
		require.Contains(t, s.View().Policies, storetest.Policy("shop", 2).Scope)
		require.Equal(t, policy.Past, heard.All()[0].History.Judge(before))
		relists := s.Stats().Relists
		s.Sound()
		storetest.Eventually(t, "another reading", func() bool { return s.Stats().Relists > relists })
		require.Equal(t, epoch, s.View().Epoch)
	}, func(cfg *store.Config) { cfg.NewEpoch = true })
}

// What no instance is there to tell, replicas tell each other: one of them has seen what was
// lost, and another writes over it before the first is back.
func TestStore_replica_that_was_cut_off_is_not_fooled_by_data_that_were_put_back(t *testing.T) {
	c := newCluster(t, 1)
	prefix := newPrefix()
	m := c.members[0]
	backup := filepath.Join(t.TempDir(), "backup")
	var first policy.Revision
	t.Run("before", func(t *testing.T) {
		s := newStore(t, open(t, store.External{Endpoints: c.direct()}), prefix)
		storetest.Start(t, s)
		first = commit(t, s, put("shop", 2, 0))
	})
	m.stop()
	require.NoError(t, os.CopyFS(backup, os.DirFS(m.cfg.Dir)))
	m.start(t)
	s := newStore(t, open(t, store.External{Endpoints: c.through()}), prefix)
	heard := storetest.Start(t, s)
	lost := eventuallyCommit(t, s, put("shop", 3, first))
	epoch := s.View().Epoch

	c.links(refuse)
	m.stop()
	require.NoError(t, os.RemoveAll(m.cfg.Dir))
	require.NoError(t, os.CopyFS(m.cfg.Dir, os.DirFS(backup)))
	m.start(t)
	// A policyd that remembers nothing writes as much as was lost, and more.
	fresh := newStore(t, open(t, store.External{Endpoints: c.direct()}), prefix)
	storetest.Start(t, fresh)
	revision := fresh.View().Policies["shop"].Revision
	require.Equal(t, first, revision)
	for range 10 {
		revision = commit(t, fresh, put("shop", 7, revision))
	}
	require.Greater(t, revision, lost)
	require.Equal(t, epoch, fresh.View().Epoch)
	c.links(pass)
	all := heard.Wait(t, "the other data", func(all []policy.Update) bool { return all[len(all)-1].Epoch != epoch })
	for _, u := range all {
		require.False(t, u.Epoch == epoch && u.Revision > lost, "what others wrote after the restore on top of what was lost: %+v", u)
	}
	storetest.Eventually(t, "one state", func() bool { return s.View().Epoch == fresh.View().Epoch })
	require.Equal(t, storetest.StateOf(fresh.View()), storetest.StateOf(s.View()))
	require.EqualValues(t, 7, s.View().Policies["shop"].Settings[engine.MaxAttempts].Int)
}

// The quickest of restores: etcd is back before anybody has noticed that it was gone, and has
// got further than it was.
func TestStore_watch_does_not_go_on_over_another_connection(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	commit(t, s.other, put("shop", 2, 0))
	relists, epoch := s.Stats().Relists, s.View().Epoch
	for range 3 {
		c.links(refuse)
		c.links(pass)
		storetest.Eventually(t, "a reading", func() bool { return s.Stats().Relists > relists })
		relists = s.Stats().Relists
	}
	next := commit(t, s.other, put("shop/x", 2, 0))
	s.heard.Wait(t, "an edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == next })
	require.Equal(t, epoch, s.View().Epoch)
	require.Len(t, s.heard.All(), 3, "the start and two edits")
}

// The same between the reading and the watch that goes on from it.
func TestStore_watch_goes_on_from_what_was_read_over_its_connection(t *testing.T) {
	c := newCluster(t, 1)
	client := open(t, store.External{Endpoints: c.through()})
	s := newStore(t, client, newPrefix())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var once sync.Once
	running.Go(func() {
		_ = s.Run(ctx, func(policy.Update) {
			once.Do(func() {
				c.links(refuse)
				c.links(pass)
				for ctx.Err() == nil {
					if _, err := client.Get(ctx, "any"); err == nil {
						return
					}
				}
			})
		})
	})
	storetest.Eventually(t, "another reading", func() bool { return s.Stats().Relists > 1 })
}

// A replica that lags is told of a revision that one was served which began a branch later.
func TestStore_replica_that_lags_does_not_take_what_is_new_for_lost(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	first := commit(t, s.other, put("shop", 2, 0))
	s.heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == first })
	epoch, relists := s.View().Epoch, s.Stats().Relists
	c.links(swallow)
	fresh := newStore(t, open(t, store.External{Endpoints: c.direct()}), s.prefix)
	heard := storetest.Start(t, fresh)
	next := commit(t, fresh, put("shop", 3, first))
	heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == next })
	for range 5 {
		s.Suspect(point(t, heard))
	}
	c.links(pass)
	storetest.Eventually(t, "the edit", func() bool {
		s.Suspect(point(t, heard))
		return s.View().Revision == next
	})
	s.Suspect(point(t, heard))
	s.Sound()
	storetest.Eventually(t, "another reading", func() bool { return s.Stats().Relists > relists })
	require.Equal(t, epoch, s.View().Epoch)
	require.Equal(t, epoch, fresh.View().Epoch)
}

// A policyd of before wrote epochs without a secret; nobody has to take anything anew for one.
func TestStore_epoch_of_an_older_policyd_gets_its_secret(t *testing.T) {
	client, prefix := embedded.Client(), newPrefix()
	answer, err := client.Get(t.Context(), prefix)
	require.NoError(t, err)
	old, err := proto.Marshal(&policydv1.StoredEpoch{Id: "old", ClusterId: answer.Header.GetClusterId()})
	require.NoError(t, err)
	_, err = client.Put(t.Context(), prefix+"meta/epoch", string(old))
	require.NoError(t, err)
	s, other := newStore(t, client, prefix), newStore(t, client, prefix)
	heard := storetest.Start(t, s)
	storetest.Start(t, other)
	require.EqualValues(t, "old", s.View().Epoch)
	require.NotEmpty(t, point(t, heard).Token)
	next := commit(t, other, put("shop", 2, 0))
	all := heard.Wait(t, "an edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == next })
	require.Len(t, all, 2)
}
