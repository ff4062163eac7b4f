// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Whatever bytes lie in etcd, the store does not panic, does not publish what it cannot read
// under the right name, and sees the same whether it hears of them or lists them.
func FuzzStoredValue(f *testing.F) {
	shop, err := wire.EncodePolicy(storetest.Policy("shop", 3))
	require.NoError(f, err)
	sw, err := wire.EncodeSwitch(storetest.Switch("ks-1", "shop"))
	require.NoError(f, err)
	nameless, err := wire.EncodeSwitch(storetest.Switch("", "shop"))
	require.NoError(f, err)
	tombstones, err := proto.Marshal(&policydv1.StoredTombstones{Keys: []string{"policies/shop", "\x00", "policies/"}})
	require.NoError(f, err)
	deletions, err := proto.Marshal(&policydv1.StoredDeletions{SinceRevision: -4})
	require.NoError(f, err)
	future, err := proto.Marshal(&policydv1.StoredDeletions{SinceRevision: 1 << 40})
	require.NoError(f, err)
	branches, err := proto.Marshal(&policydv1.StoredBranches{Branches: []*policydv1.StoredBranch{{Id: 1, After: 3}, {Id: 2, After: 5}}})
	require.NoError(f, err)
	disordered, err := proto.Marshal(&policydv1.StoredBranches{Branches: []*policydv1.StoredBranch{{Id: 1, After: 5}, {Id: 0, After: -2}}})
	require.NoError(f, err)
	epoch, err := proto.Marshal(&policydv1.StoredEpoch{Id: "e", ClusterId: 1, Number: -4, Secret: []byte("x")})
	require.NoError(f, err)
	for _, seed := range []struct {
		key   string
		value []byte
	}{
		{"policies/shop", shop},
		{"policies/shop/cart", shop},
		{"policies/", shop},
		{"switches/ks-1", sw},
		{"switches/", nameless},
		{"ended/ks-1", sw},
		{"switches/ks-2", shop},
		{"tombstones/a", tombstones},
		{"meta/deletions", deletions},
		{"meta/deletions", future},
		{"meta/epoch", []byte{0xff}},
		{"meta/epoch", epoch},
		{"meta/branches", branches},
		{"meta/branches", disordered},
		{"outbox/a", shop},
		{"fences/a", tombstones},
		{"peers/a", shop},
		{"policies/shop", []byte{}},
		{"policies/../meta/epoch", []byte{0x0a, 0x80}},
		{"", nil},
	} {
		f.Add(seed.key, seed.value, false)
		f.Add(seed.key, seed.value, true)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte, deleted bool) {
		s := newStore(t, embedded.Client(), "/fuzz/v1/")
		updates, live, listed := store.Absorb(s, key, value, deleted)
		require.Equal(t, listed, live)
		view := s.View()
		for scope, p := range view.Policies {
			require.Equal(t, scope, p.Scope)
			require.Equal(t, key, policy.PolicyKey(scope))
		}
		for id, sw := range view.Switches {
			require.Equal(t, id, sw.ID)
		}
		for _, u := range updates {
			require.LessOrEqual(t, u.Revision, policy.Revision(7))
			for _, c := range u.Changes {
				require.Equal(t, key, c.Key)
				require.NotEmpty(t, c.Scope)
			}
		}
	})
}
