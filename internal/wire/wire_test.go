// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func at(sec int64) time.Time { return time.Unix(sec, 0).UTC() }

func TestPolicy_survives_encoding(t *testing.T) {
	want := &policy.Policy{
		Scope: "shop/payments", Revision: 9,
		Settings: engine.Settings{engine.MaxAttempts: engine.Int(4), engine.RetryOnHTTP: engine.Set()},
		Metadata: policy.Metadata{
			Owner: "team", Labels: map[string]string{"tier": "1"}, Annotations: map[string]string{"runbook": "x"}, ManagedBy: "git",
			CreatedBy: policy.Actor{Name: "a", Via: "policyctl"}, CreatedAt: at(1), UpdatedBy: policy.Actor{Name: "b"}, UpdatedAt: at(2),
		},
	}
	raw, err := wire.EncodePolicy(want)
	require.NoError(t, err)
	got, err := wire.DecodePolicy(raw, 9)
	require.NoError(t, err)
	require.Equal(t, want.Metadata, got.Metadata)
	require.Len(t, got.Settings, 2)
	for f, v := range want.Settings {
		require.True(t, got.Settings[f].Equal(v), f)
	}
	again, err := wire.EncodePolicy(got)
	require.NoError(t, err)
	require.Equal(t, raw, again, "the same document has the same bytes")
}

func TestSwitch_survives_encoding_in_every_phase(t *testing.T) {
	for _, phase := range []policy.Phase{policy.PhaseActive, policy.PhaseRestoring, policy.PhaseExpired, policy.PhaseReverted} {
		want := &policy.Switch{
			Switch: engine.Switch{ID: "ks-1", Revision: 3, Action: engine.ForceOpen, Scope: "shop", Percent: 100, Admit: 50_000, Ends: at(10), Restore: time.Minute, Reason: "r"},
			Phase:  phase, EndedAt: at(9), CreatedBy: policy.Actor{Name: "a"}, CreatedAt: at(1), UpdatedBy: policy.Actor{Name: "b"}, UpdatedAt: at(2),
		}
		raw, err := wire.EncodeSwitch(want)
		require.NoError(t, err)
		got, err := wire.DecodeSwitch(raw, 3)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestEntry_survives_encoding(t *testing.T) {
	want := &policy.Entry{
		ID: "e", At: at(1), Actor: policy.Actor{Name: "a", Via: "v"}, Action: "policy.apply", Scopes: []engine.Scope{"shop", "global"},
		SwitchID: "s", Incident: "i", Reason: "r", RequestID: "q", Changes: []policy.EntryChange{{Key: "k", Before: "{}", After: "{ }"}},
	}
	raw, err := wire.EncodeEntry(want)
	require.NoError(t, err)
	got, err := wire.DecodeEntry(raw)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestDecode_refuses_what_is_no_document(t *testing.T) {
	_, err := wire.DecodePolicy([]byte{0xff, 0xff}, 1)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = wire.DecodeSwitch([]byte{0xff, 0xff}, 1)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = wire.DecodeEntry([]byte{0xff, 0xff})
	require.Equal(t, fault.Invalid, fault.KindOf(err))

	_, err = wire.Policy(&policydv1.Policy{Scope: "Shop"}, 1)
	require.ErrorContains(t, err, "metadata.scope")
	jitter := policydv1.Jitter(99)
	_, err = wire.Policy(&policydv1.Policy{Scope: "shop", Spec: &policydv1.PolicySpec{Backoff: &policydv1.Backoff{Jitter: &jitter}}}, 1)
	require.ErrorContains(t, err, "spec.backoff.jitter")
	_, err = wire.EncodePolicy(&policy.Policy{Scope: "shop", Metadata: policy.Metadata{Owner: "\xff"}})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}
