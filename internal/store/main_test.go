// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
	"github.com/policyd/policyd/internal/store/storetest"
)

// embedded is one member for all tests of the package; each test has a prefix of its own.
var embedded *etcdembed.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "policyd-store-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	embedded, err = etcdembed.Start(context.Background(), etcdembed.Config{Dir: dir, FastTick: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := embedded.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// quick makes what takes seconds take tenths.
func quick() store.Timing {
	return store.Timing{
		Probe: 50 * time.Millisecond, Silence: 2 * time.Second, Compare: time.Hour, Request: 5 * time.Second,
		Pause: 10 * time.Millisecond, MaxPause: 200 * time.Millisecond,
		Lease: time.Second,
	}
}

var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("/test%d/v1/", prefixes.Add(1)) }

func newStore(t testing.TB, client *clientv3.Client, prefix string) *store.Store {
	t.Helper()
	return newStoreWith(t, store.Config{Client: client, Prefix: prefix, Timing: quick()})
}

func newStoreWith(t testing.TB, cfg store.Config) *store.Store {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := store.New(cfg)
	require.NoError(t, err)
	return s
}

// environment is a store that reaches etcd over link, and others that use client.
func environment(t *testing.T, client *clientv3.Client, link *link) storetest.Env {
	t.Helper()
	prefix := newPrefix()
	s := newStore(t, link.client, prefix)
	return storetest.Env{
		Store: s,
		Outbox: func(ctx context.Context) ([]policy.Entry, error) {
			waiting, err := s.Outbox(ctx, 1000)
			var entries []policy.Entry
			for _, e := range waiting {
				entries = append(entries, e.Entry)
			}
			return entries, err
		},
		Replica: func() storetest.Store { return newStore(t, client, prefix) },
		Put: func(key string, value []byte) {
			_, err := client.Put(t.Context(), prefix+key, string(value))
			require.NoError(t, err)
		},
		Delete: func(key string) {
			_, err := client.Delete(t.Context(), prefix+key)
			require.NoError(t, err)
		},
		Read: func(key string) []byte {
			answer, err := client.Get(t.Context(), prefix+key)
			require.NoError(t, err)
			require.Len(t, answer.Kvs, 1)
			return answer.Kvs[0].Value
		},
		CutOff: func(during func()) {
			link.cut()
			during()
			compact(t, client)
			link.restore()
		},
	}
}

// compact makes etcd forget everything but the newest values.
func compact(t testing.TB, client *clientv3.Client) {
	t.Helper()
	now, err := client.Get(t.Context(), "x", clientv3.WithCountOnly())
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

func TestStore_on_embedded_etcd(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Env {
		return environment(t, embedded.Client(), newLink(embedded.Client()))
	})
}
