// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestO_ST_01_batches_are_whole_or_refused(t *testing.T) {
	for _, c := range []struct {
		documents int
		fits      bool
	}{{64, true}, {65, true}, {100, true}, {101, false}, {128, false}, {129, false}, {500, false}} {
		t.Run(fmt.Sprintf("%d documents", c.documents), func(t *testing.T) {
			s := newStore(t, embedded.Client(), newPrefix())
			storetest.Start(t, s)
			tx := policy.Transaction{Entry: &policy.Entry{Action: "policy.apply"}}
			for i := range c.documents {
				tx.PutPolicies = append(tx.PutPolicies, policy.PolicyPut{Policy: storetest.Policy(engine.Scope(fmt.Sprintf("shop/s%d", i)), 3)})
			}
			_, err := s.Commit(t.Context(), tx)
			if c.fits {
				require.NoError(t, err)
				require.Len(t, s.View().Policies, c.documents)
				return
			}
			require.Equal(t, fault.Exhausted, fault.KindOf(err))
			require.ErrorContains(t, err, "at most 100")
			require.Empty(t, s.View().Policies)
		})
	}
	t.Run("switches that end count twice", func(t *testing.T) {
		s := newStore(t, embedded.Client(), newPrefix())
		storetest.Start(t, s)
		start, end := policy.Transaction{}, policy.Transaction{}
		for i := range 64 {
			start.PutSwitches = append(start.PutSwitches, policy.SwitchPut{Switch: storetest.Switch(fmt.Sprintf("ks-%d", i), "shop")})
		}
		started := commit(t, s, start)
		for _, p := range start.PutSwitches {
			end.End = append(end.End, policy.SwitchPut{Switch: p.Switch, Expected: started})
		}
		_, err := s.Commit(t.Context(), end)
		require.Equal(t, fault.Exhausted, fault.KindOf(err))
		end.End = end.End[:63]
		commit(t, s, end)
		require.Len(t, s.View().Switches, 1)
	})
}

func TestO_ST_04_full_store_refuses_writes_and_recovers_without_a_restart(t *testing.T) {
	server, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: t.TempDir(), FastTick: true, Quota: 16 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	s := newStoreWith(t, store.Config{Client: server.Client(), Timing: quick(), OutboxEntries: 10})
	storetest.Start(t, s)

	created := commit(t, s, put("shop/old", 2, 0))
	commit(t, s, remove("shop/old", created))

	history := strings.Repeat("x", 400<<10)
	var revision policy.Revision
	for i := 0; ; i++ {
		require.Less(t, i, 200, "the quota does not bite")
		tx := put("shop", int64(i%9+1), revision)
		tx.Entry.Reason = history
		next, err := s.Commit(t.Context(), tx)
		if err == nil {
			revision = next
			continue
		}
		require.Equal(t, fault.Exhausted, fault.KindOf(err))
		require.Equal(t, "store_full", reason(t, err))
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		require.NotEmpty(t, f.Hint)
		break
	}
	storetest.Eventually(t, "the last edit: reads go on", func() bool { return s.View().Policies["shop"].Revision == revision })
	require.False(t, s.View().Stale)
	asOf := s.View().AsOf
	storetest.Eventually(t, "a sign of life", func() bool { return s.View().AsOf.After(asOf) })

	// Deletions are let through, so the bound of the outbox makes room, also while the
	// tombstone, which needs a mark to be written, has to wait.
	later := time.Now().Add(2 * time.Hour)
	require.Equal(t, "store_full", reason(t, s.Sweep(t.Context(), later)))
	require.Positive(t, s.Stats().OutboxDropped)
	waiting, err := s.OutboxCount(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, waiting)
	require.NoError(t, server.Reclaim(t.Context()))
	require.NoError(t, s.Sweep(t.Context(), later))
	for i := range 5 {
		revision = commit(t, s, put("shop", int64(i+1), revision))
	}
	require.Equal(t, revision, s.View().Policies["shop"].Revision)
}

func TestStore_request_too_large_for_etcd_is_exhausted(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	tx := put("shop", 2, 0)
	tx.Entry.Reason = strings.Repeat("x", 2<<20)
	_, err := s.Commit(t.Context(), tx)
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	require.Equal(t, "batch_too_large", reason(t, err))
	tx.Entry.Reason = strings.Repeat("x", 11<<20)
	_, err = s.Commit(t.Context(), tx)
	require.Equal(t, "batch_too_large", reason(t, err), "more than the client itself sends")
	commit(t, s.Store, put("shop", 2, 0))
}

func TestStore_outcome_of_a_write_without_an_answer(t *testing.T) {
	lost := errors.New("connection reset by peer")
	open := func(t *testing.T) (*link, *store.Store, *store.Store, policy.Revision) {
		t.Helper()
		cable, prefix := newLink(embedded.Client()), newPrefix()
		s, other := newStore(t, cable.client, prefix), newStore(t, embedded.Client(), prefix)
		storetest.Start(t, s)
		storetest.Start(t, other)
		return cable, s, other, commit(t, s, put("shop", 2, 0))
	}
	t.Run("written, and said to be", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.answer = func(*clientv3.TxnResponse) error {
				l.answer = nil
				return lost
			}
		})
		revision := commit(t, s, put("shop", 3, first))
		require.Equal(t, revision, s.View().Policies["shop"].Revision)
	})
	t.Run("written, its record gone to the audit log since", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.answer = func(answer *clientv3.TxnResponse) error {
				l.answer = nil
				for _, kv := range everyKey(t, "/") {
					if kv.ModRevision == answer.Header.Revision && strings.Contains(string(kv.Key), "/outbox/") {
						_, err := embedded.Client().Delete(context.WithoutCancel(t.Context()), string(kv.Key))
						require.NoError(t, err)
					}
				}
				return lost
			}
		})
		revision := commit(t, s, put("shop", 3, first))
		require.Equal(t, revision, s.View().Policies["shop"].Revision)
	})
	t.Run("deleted, and said to be", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.answer = func(*clientv3.TxnResponse) error {
				l.answer = nil
				return lost
			}
		})
		commit(t, s, remove("shop", first))
		require.Empty(t, s.View().Policies)
	})
	t.Run("not written, and never to be", func(t *testing.T) {
		cable, s, _, first := open(t)
		var late func() (*clientv3.TxnResponse, error)
		cable.set(func(l *link) {
			l.before = func(send func() (*clientv3.TxnResponse, error)) error {
				l.before = nil
				late = send // stuck on the way
				return rpctypes.ErrTimeout
			}
		})
		_, err := s.Commit(t.Context(), put("shop", 3, first))
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		require.Equal(t, "store_unavailable", reason(t, err))
		require.ErrorContains(t, err, "nothing was written")
		answer, err := late()
		require.NoError(t, err)
		require.False(t, answer.Succeeded, "what was said not to be written is written later")
		require.Equal(t, first, s.View().Policies["shop"].Revision)
	})
	t.Run("written by a store that was full with it, and said to be", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.answer = func(*clientv3.TxnResponse) error {
				l.answer = nil
				return rpctypes.ErrNoSpace
			}
		})
		revision := commit(t, s, put("shop", 3, first))
		require.Equal(t, revision, s.View().Policies["shop"].Revision)
	})
	t.Run("refused by a full store, without a fence that it would refuse too", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.before = func(func() (*clientv3.TxnResponse, error)) error { return rpctypes.ErrNoSpace }
		})
		fences := len(fenceKeys(t))
		_, err := s.Commit(t.Context(), put("shop", 3, first))
		require.Equal(t, fault.Exhausted, fault.KindOf(err))
		require.Equal(t, "store_full", reason(t, err))
		require.ErrorContains(t, err, "nothing was written")
		require.Len(t, fenceKeys(t), fences)
		require.Equal(t, first, s.View().Policies["shop"].Revision)
		cable.set(func(l *link) { l.before = nil })
	})
	t.Run("not known, and said so", func(t *testing.T) {
		cable, s, _, first := open(t)
		cable.set(func(l *link) {
			l.answer = func(*clientv3.TxnResponse) error {
				l.broken = true
				return lost
			}
		})
		_, err := s.Commit(t.Context(), put("shop", 3, first))
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		require.Equal(t, "outcome_unknown", reason(t, err))
		cable.set(func(l *link) { l.broken, l.answer = false, nil })
	})
	t.Run("the caller is gone", func(t *testing.T) {
		cable, s, _, first := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cable.set(func(l *link) {
			l.answer = func(*clientv3.TxnResponse) error {
				l.answer = nil
				cancel()
				return context.Canceled
			}
		})
		revision, err := s.Commit(ctx, put("shop", 3, first))
		require.NoError(t, err)
		require.Greater(t, revision, first)
	})
}

// fenceKeys lists the fences of all tests.
func fenceKeys(t *testing.T) []string {
	t.Helper()
	var fences []string
	for _, kv := range everyKey(t, "/") {
		if strings.Contains(string(kv.Key), "/fences/") {
			fences = append(fences, string(kv.Key))
		}
	}
	return fences
}

func TestStore_writes_before_the_first_reading_are_refused(t *testing.T) {
	s := newStore(t, embedded.Client(), newPrefix())
	require.True(t, s.View().Stale)
	require.Empty(t, s.View().Policies)
	_, err := s.Commit(t.Context(), put("shop", 2, 0))
	require.Equal(t, "store_not_read", reason(t, err))
	select {
	case <-s.Loaded():
		require.Fail(t, "loaded without a reading")
	default:
	}
	storetest.Start(t, s)
	<-s.Loaded()
	commit(t, s, put("shop", 2, 0))
}

func TestStore_revision_seen_through_another_replica_may_be_expected(t *testing.T) {
	cable, prefix := newLink(embedded.Client()), newPrefix()
	s, other := newStore(t, cable.client, prefix), newStore(t, embedded.Client(), prefix)
	storetest.Start(t, s)
	storetest.Start(t, other)
	first := commit(t, s, put("shop", 2, 0))
	cable.set(func(l *link) { l.muted = true })
	second := commit(t, other, put("shop", 3, first))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	third, err := s.Commit(ctx, put("shop", 4, second))
	require.NoError(t, err, "the view is behind, the writer is not")
	require.Greater(t, third, second)
	cable.set(func(l *link) { l.muted = false })
}

func TestStore_readers_and_writers_at_once(t *testing.T) {
	s := newStore(t, embedded.Client(), newPrefix())
	storetest.Start(t, s)
	var all sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		all.Go(func() {
			last := policy.Revision(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				view := s.View()
				if view.Revision < last {
					panic("the view went back")
				}
				last = view.Revision
				for scope, p := range view.Policies {
					if p.Revision > view.Revision || p.Scope != scope {
						panic("the view mixes revisions")
					}
				}
				_ = s.Stats()
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			revision := policy.Revision(0)
			for i := range 25 {
				var err error
				revision, err = s.Commit(t.Context(), put(engine.Scope(fmt.Sprintf("shop/s%d", w)), int64(i%9+1), revision))
				if err != nil {
					panic(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	all.Wait()
	require.Len(t, s.View().Policies, 4)
}

func TestStore_outbox_drops_the_oldest_beyond_its_bound(t *testing.T) {
	logs := &logbook{}
	s := newStoreWith(t, store.Config{Client: embedded.Client(), Prefix: newPrefix(), Timing: quick(), OutboxEntries: 150, Logger: logs.logger()})
	storetest.Start(t, s)
	var revision policy.Revision
	for i := range 300 {
		tx := put("shop", int64(i%9+1), revision)
		tx.Entry.ID = fmt.Sprintf("entry-%03d", i)
		revision = commit(t, s, tx)
	}
	require.NoError(t, s.Sweep(t.Context(), time.Now()))
	require.EqualValues(t, 150, s.Stats().OutboxDropped)
	require.Equal(t, 1, logs.count(t, "audit records dropped, too many waited"))
	waiting, err := s.Outbox(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, []string{"entry-150", "entry-151"}, []string{waiting[0].ID, waiting[1].ID})
	require.Less(t, waiting[0].Revision, waiting[1].Revision)
	count, err := s.OutboxCount(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 150, count)

	require.NoError(t, s.Sweep(t.Context(), time.Now()))
	require.EqualValues(t, 150, s.Stats().OutboxDropped, "nothing is dropped twice")
}

func TestStore_sweeps_at_once_remove_each_key_once(t *testing.T) {
	prefix := newPrefix()
	var stores []*store.Store
	for range 4 {
		s := newStoreWith(t, store.Config{Client: embedded.Client(), Prefix: prefix, Timing: quick(), OutboxEntries: 10})
		storetest.Start(t, s)
		stores = append(stores, s)
	}
	var revision policy.Revision
	for i := range 40 {
		revision = commit(t, stores[0], put("shop", int64(i%9+1), revision))
	}
	deleted := commit(t, stores[0], remove("shop", revision))
	var all sync.WaitGroup
	errs := make([]error, len(stores))
	for i, s := range stores {
		all.Go(func() { errs[i] = s.Sweep(t.Context(), time.Now().Add(2*time.Hour)) })
	}
	all.Wait()
	dropped := int64(0)
	for i, s := range stores {
		require.NoError(t, errs[i])
		dropped += s.Stats().OutboxDropped
	}
	require.EqualValues(t, 31, dropped)
	late := newStore(t, embedded.Client(), prefix)
	require.Equal(t, deleted, storetest.Start(t, late).All()[0].DeletionsKnownSince)
}

func TestStore_fences_are_swept(t *testing.T) {
	cable, prefix := newLink(embedded.Client()), newPrefix()
	s := newStore(t, cable.client, prefix)
	storetest.Start(t, s)
	cable.set(func(l *link) {
		l.before = func(func() (*clientv3.TxnResponse, error)) error {
			l.before = nil
			return rpctypes.ErrTimeout
		}
	})
	_, err := s.Commit(t.Context(), put("shop", 2, 0))
	require.Error(t, err)
	require.Len(t, everyKey(t, prefix+"fences/"), 1)
	require.NoError(t, s.Sweep(t.Context(), time.Now().Add(30*time.Minute)))
	require.Len(t, everyKey(t, prefix+"fences/"), 1)
	require.NoError(t, s.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
	require.Empty(t, everyKey(t, prefix+"fences/"))
}

func TestNew_says_what_is_missing(t *testing.T) {
	_, err := store.New(store.Config{Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "Client")
}

func TestStore_write_for_data_that_were_replaced_is_refused(t *testing.T) {
	cable, prefix := newLink(embedded.Client()), newPrefix()
	s := newStore(t, cable.client, prefix)
	storetest.Start(t, s)
	first := commit(t, s, put("shop", 2, 0))
	cable.set(func(l *link) { l.muted = true })
	_, err := embedded.Client().Put(t.Context(), prefix+"meta/epoch", "\x0a\x05other")
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("shop", 3, first))
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.Equal(t, "epoch_changed", reason(t, err))
	cable.set(func(l *link) { l.muted = false })
}
