// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
)

// The limit on documents is checked before they are encoded; the bound must hold.
func TestPolicy_size_bounds_the_encoded_document(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 300, 2000)
		names := rapid.MapOfN(rapid.StringN(1, 20, 63), text, 0, 6)
		actor := policy.Actor{Name: text.Draw(t, "name"), Via: "policyctl"}
		p := &policy.Policy{
			Scope: "shop/payments/charge", Settings: engine.Settings{},
			Metadata: policy.Metadata{
				Owner: text.Draw(t, "owner"), ManagedBy: text.Draw(t, "managedBy"), Labels: names.Draw(t, "labels"), Annotations: names.Draw(t, "annotations"),
				CreatedBy: actor, CreatedAt: time.Unix(1<<40, 999_999_999), UpdatedBy: actor, UpdatedAt: time.Unix(1<<40, 1),
			},
		}
		for _, f := range engine.Fields() {
			spec := f.Spec()
			v := engine.Value{Kind: spec.Kind}
			switch spec.Kind {
			case engine.KindBool:
				v.Int = 1
			case engine.KindInt, engine.KindDecimal, engine.KindDuration:
				v.Int = rapid.SampledFrom([]int64{spec.Max, spec.Min, spec.Max - 1}).Draw(t, f.Path())
			case engine.KindEnum:
				v.Text = spec.Words[len(spec.Words)-1]
			case engine.KindText:
				v.Text = text.Draw(t, f.Path())
			case engine.KindSet:
				v = engine.Set(rapid.SliceOfN(rapid.StringN(0, 10, 40), 0, 40).Draw(t, f.Path())...)
			}
			if rapid.Bool().Draw(t, "set") {
				p.Settings[f] = v
			}
		}
		size := proto.Size(wire.PolicyProto(p))
		require.GreaterOrEqual(t, policy.Size(p), size)
		require.LessOrEqual(t, policy.Size(p), 2*size+32*len(p.Settings)+256)
	})
	long := &policy.Policy{Scope: "shop", Settings: engine.Settings{engine.Description: engine.Text(strings.Repeat("a", 60_000))}}
	require.Less(t, policy.Size(long)-proto.Size(wire.PolicyProto(long)), 300)
}
