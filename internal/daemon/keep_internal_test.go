// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestO_ST_04_a_full_embedded_store_makes_room_by_itself(t *testing.T) {
	member, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: t.TempDir(), FastTick: true, Quota: 16 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, member.Close()) }()
	log := slog.New(slog.DiscardHandler)
	st, err := store.New(store.Config{Client: member.Client(), Logger: log, OutboxEntries: 10})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- st.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-ended) }()
	<-st.Loaded()
	keep := &housekeeping{store: st, member: member, backlog: &backlog{store: st}, log: log}

	var revision policy.Revision
	write := func(attempts int) error {
		next, err := st.Commit(ctx, policy.Transaction{
			PutPolicies: []policy.PolicyPut{{Expected: revision, Policy: &policy.Policy{
				Scope: "shop", Settings: engine.Settings{engine.MaxAttempts: engine.Int(int64(attempts%9 + 1))},
			}}},
			Entry: &policy.Entry{Action: "policy.apply", Reason: strings.Repeat("x", 400<<10)},
		})
		if err == nil {
			revision = next
		}
		return err
	}
	for i := 0; err == nil; i++ {
		require.Less(t, i, 200, "the quota does not bite")
		err = write(i)
	}
	require.Equal(t, fault.Exhausted, fault.KindOf(err))

	require.NoError(t, keep.once(ctx, time.Now()))
	require.NoError(t, write(1))
	require.EqualValues(t, 10, keep.backlog.load())
	require.NoError(t, keep.once(ctx, time.Now()), "a store with room is left alone")
}
