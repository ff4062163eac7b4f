// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
)

func everyKey(t testing.TB, prefix string) []*mvccpb.KeyValue {
	t.Helper()
	answer, err := embedded.Client().Get(t.Context(), prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	return answer.Kvs
}

// logbook collects log lines. Safe for concurrent use.
type logbook struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}

func (b *logbook) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(b, nil)) }

// count returns the lines with a message.
func (b *logbook) count(t testing.TB, message string) (n int) {
	t.Helper()
	for line := range strings.Lines(b.String()) {
		var entry struct{ Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		if entry.Msg == message {
			n++
		}
	}
	return n
}

func encoded(t testing.TB, scope engine.Scope, attempts int64) string {
	t.Helper()
	raw, err := wire.EncodePolicy(storetest.Policy(scope, attempts))
	require.NoError(t, err)
	return string(raw)
}

func TestO_WA_02_nothing_is_lost_between_the_reading_and_the_watch(t *testing.T) {
	prefix := newPrefix()
	const edits, repeats = 1000, 20
	var writing sync.WaitGroup
	var done atomic.Int64
	values := make([]string, 10)
	for i := range values {
		values[i] = encoded(t, engine.Scope(fmt.Sprintf("shop/s%d", i)), 3)
	}
	ctx := context.WithoutCancel(t.Context())
	failed := make(chan error, 1)
	writing.Go(func() {
		for i := range edits {
			key := fmt.Sprintf("%spolicies/shop/s%d", prefix, i%10)
			var err error
			if i%7 == 6 {
				_, err = embedded.Client().Delete(ctx, key)
			} else {
				_, err = embedded.Client().Put(ctx, key, values[i%10])
			}
			if err != nil {
				failed <- err
				return
			}
			done.Add(1)
		}
	})
	var stores []*store.Store
	var heard []*storetest.Recorder
	for i := range repeats {
		storetest.Eventually(t, "some edits", func() bool { return done.Load() >= int64(i*edits/repeats/2) })
		timing := quick()
		timing.Silence = time.Minute
		s := newStoreWith(t, store.Config{Client: embedded.Client(), Prefix: prefix, Timing: timing})
		stores, heard = append(stores, s), append(heard, storetest.Start(t, s))
	}
	writing.Wait()
	require.Empty(t, failed)
	want := make(map[string]policy.Revision)
	for _, kv := range everyKey(t, prefix+"policies/") {
		want[strings.TrimPrefix(string(kv.Key), prefix)] = policy.Revision(kv.ModRevision)
	}
	for i, s := range stores {
		storetest.Eventually(t, "the store's state", func() bool {
			return fmt.Sprint(want) == fmt.Sprint(storetest.StateOf(s.View()))
		})
		storetest.Eventually(t, "the sink's state", func() bool { return fmt.Sprint(want) == fmt.Sprint(heard[i].State()) })
		require.EqualValues(t, 1, s.Stats().Relists)
	}
}

func TestO_WA_03_lost_deletion_is_found_and_counted(t *testing.T) {
	cable := newLink(embedded.Client())
	prefix := newPrefix()
	timing := quick()
	timing.Compare = 50 * time.Millisecond
	logs := &logbook{}
	s := newStoreWith(t, store.Config{Client: cable.client, Prefix: prefix, Timing: timing, Logger: logs.logger()})
	heard := storetest.Start(t, s)
	first := commit(t, s, put("shop/x", 2, 0))
	commit(t, s, put("shop/y", 2, 0))
	seen := s.Stats().Comparisons
	storetest.Eventually(t, "some comparisons", func() bool { return s.Stats().Comparisons > seen+3 })
	require.Zero(t, s.Stats().Drift, "in health nothing drifts")

	other := newStore(t, embedded.Client(), prefix)
	storetest.Start(t, other)
	lost := make(chan struct{})
	cable.set(func(l *link) {
		l.filter = func(e *clientv3.Event) bool {
			if e.Type != clientv3.EventTypeDelete {
				return true
			}
			close(lost)
			l.filter = nil
			return false
		}
	})
	commit(t, other, remove("shop/x", first))
	<-lost
	storetest.Eventually(t, "the policy to go", func() bool { return s.View().Policies["shop/x"] == nil })
	require.EqualValues(t, 1, s.Stats().Drift)
	require.Equal(t, 1, logs.count(t, "view drifted from the store"))
	all := heard.Wait(t, "a reset", func(all []policy.Update) bool { return len(all) > 1 && all[len(all)-1].Reset })
	require.Equal(t, storetest.StateOf(s.View()), heard.State())
	require.Equal(t, all[0].Epoch, all[len(all)-1].Epoch)

	// A lost write is found as well.
	cable.set(func(l *link) {
		l.filter = func(e *clientv3.Event) bool { return !strings.HasSuffix(string(e.Kv.Key), "policies/shop/new") }
	})
	last := commit(t, other, put("shop/new", 2, 0))
	storetest.Eventually(t, "the policy to come", func() bool { return s.View().Policies["shop/new"] != nil })
	require.Equal(t, last, s.View().Revision)
	require.EqualValues(t, 2, s.Stats().Drift)
}

func TestO_WA_04_silent_watch_is_noticed_though_reads_pass(t *testing.T) {
	cable := newLink(embedded.Client())
	prefix := newPrefix()
	timing := quick()
	timing.Silence = 500 * time.Millisecond
	logs := &logbook{}
	s := newStoreWith(t, store.Config{Client: cable.client, Prefix: prefix, Timing: timing, Logger: logs.logger()})
	storetest.Start(t, s)
	other := newStore(t, embedded.Client(), prefix)
	storetest.Start(t, other)
	cable.set(func(l *link) { l.muted = true })
	last := commit(t, other, put("shop", 2, 0))
	storetest.Eventually(t, "the view to be stale", func() bool { return logs.count(t, "view is stale") > 0 })
	cable.set(func(l *link) { l.muted = false })
	storetest.Eventually(t, "the edit", func() bool { return s.View().Revision == last && !s.View().Stale })
}

func TestO_WA_05_reconnects_pause_longer_and_longer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	logs := &logbook{}
	// As in production, but for the time after which the first reading fails.
	timing := store.Timing{Request: time.Second}
	s := newStoreWith(t, store.Config{
		Client: open(t, store.External{Endpoints: c.through()}), Prefix: newPrefix(), Logger: logs.logger(), Timing: timing,
	})
	heard := storetest.Start(t, s)
	link := c.members[0].clients
	link.count()
	link.set(refuse)
	began := time.Now()
	storetest.Eventually(t, "the view to be stale", func() bool { return s.View().Stale })
	// 100 ms doubling: tries at 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 s.
	storetest.Eventually(t, "seven seconds without etcd", func() bool { return time.Since(began) > 7*time.Second })
	tries := link.count()
	require.LessOrEqual(t, tries, 9)
	require.GreaterOrEqual(t, tries, 4)
	require.Equal(t, 1, logs.count(t, "store is read again"), "one line for one outage")

	link.set(pass)
	back := time.Now()
	storetest.Eventually(t, "the view to be current", func() bool { return !s.View().Stale })
	require.Less(t, time.Since(back), 6*time.Second)
	require.Len(t, heard.All(), 1, "nothing changed, so nothing is told")
}

func TestO_WA_06_expired_token_does_not_end_the_watch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *embed.Config) { cfg.AuthTokenTTL, cfg.BcryptCost = 1, 4 })
	admin := open(t, store.External{Endpoints: c.direct()})
	for _, step := range []func() error{
		func() error { _, err := admin.RoleAdd(t.Context(), "root"); return err },
		func() error { _, err := admin.UserAdd(t.Context(), "root", "s3cr3t"); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := admin.RoleAdd(t.Context(), "policyd"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(t.Context(), "policyd", "/policyd/v1/", "/policyd/v10", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserAdd(t.Context(), "svc", "s3cr3t"); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "svc", "policyd"); return err },
		func() error { _, err := admin.AuthEnable(t.Context()); return err },
	} {
		require.NoError(t, step())
	}
	logs := &logbook{}
	through := strings.Replace(c.through()[0], "http://", "http://svc:s3cr3t@", 1)
	s := newStoreWith(t, store.Config{
		Client: open(t, store.External{Endpoints: []string{through}}), Logger: logs.logger(),
		// Idle for longer than a token lives.
		Timing: store.Timing{Probe: time.Hour, Silence: 2 * time.Hour},
	})
	heard := storetest.Start(t, s)
	other := open(t, store.External{Endpoints: c.direct(), User: "root", Password: "s3cr3t"})
	idle := time.Now()
	storetest.Eventually(t, "the token to expire", func() bool { return time.Since(idle) > 3*time.Second })
	c.members[0].stop()
	c.members[0].start(t)
	storetest.Eventually(t, "an edit", func() bool {
		_, err := other.Put(t.Context(), "/policyd/v1/policies/shop", encoded(t, "shop", 3))
		return err == nil
	})
	edited := time.Now()
	heard.Wait(t, "the edit", func(all []policy.Update) bool { return len(all) > 1 && len(all[len(all)-1].Changes) == 1 })
	require.Less(t, time.Since(edited), 10*time.Second)
	require.LessOrEqual(t, logs.count(t, "store is read again"), 1)
	require.NotContains(t, logs.String(), "s3cr3t")

	_, err := store.Open(t.Context(), store.External{Endpoints: c.through(), User: "svc", Password: "wr0ng"})
	require.Equal(t, "store_denied", reason(t, err))
	require.NotContains(t, err.Error(), "wr0ng")
}

func TestO_WA_07_neighbours_of_the_prefix_are_not_ours(t *testing.T) {
	prefix := newPrefix()
	s := newStore(t, embedded.Client(), prefix)
	heard := storetest.Start(t, s)
	for _, neighbour := range []string{
		strings.TrimSuffix(prefix, "/") + "0/policies/shop",
		strings.TrimSuffix(prefix, "/") + "policies/shop",
		prefix + "policiesX/shop",
		prefix + "policies",
		"/policies/shop",
	} {
		_, err := embedded.Client().Put(t.Context(), neighbour, encoded(t, "shop", 9))
		require.NoError(t, err)
	}
	last := commit(t, s, put("shop/last", 2, 0))
	all := heard.Wait(t, "the last edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == last })
	require.Len(t, all, 2)
	require.Len(t, s.View().Policies, 1)

	_, err := store.New(store.Config{Client: embedded.Client(), Prefix: "/policyd/v1", Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "must end in /")
	_, err = s.Commit(t.Context(), put("shop/pay/ments/x", 2, 0))
	require.ErrorContains(t, err, "segments")
}

func TestO_WA_08_foreign_writes_and_compactions_leave_one_watch(t *testing.T) {
	c := newCluster(t, 1)
	s := c.run(t)
	other := open(t, store.External{Endpoints: c.direct()})
	policyNow := commit(t, s.Store, put("shop", 1, 0))
	goroutines := 0
	for round := range 6 {
		for i := range 300 {
			_, err := other.Put(t.Context(), fmt.Sprintf("/elsewhere/%d", i%10), "x")
			require.NoError(t, err)
		}
		compact(t, other)
		c.members[0].stop()
		c.members[0].start(t)
		before := len(s.heard.All())
		policyNow = eventuallyCommit(t, s.other, put("shop", int64(round%9+1), policyNow))
		s.heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == policyNow })
		require.Len(t, s.heard.All(), before+1, "each edit is told once")
		if round == 1 {
			goroutines = runtime.NumGoroutine()
		}
	}
	storetest.Eventually(t, "the number of goroutines to settle", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
}

func TestO_WA_08_one_watch_at_a_time(t *testing.T) {
	cable := newLink(embedded.Client())
	s := newStore(t, cable.client, newPrefix())
	heard := storetest.Start(t, s)
	storetest.Eventually(t, "a watch", func() bool { now, _ := cable.open(); return now == 1 })
	for round := range 20 {
		cable.cut()
		cable.restore()
		storetest.Eventually(t, "a new watch", func() bool {
			now, ever := cable.open()
			return now == 1 && ever >= round+2
		})
	}
	revision := commit(t, s, put("shop", 2, 0))
	all := heard.Wait(t, "the edit", func(all []policy.Update) bool { return all[len(all)-1].Revision == revision })
	require.Len(t, all, 2, "one edit, one update")
}
