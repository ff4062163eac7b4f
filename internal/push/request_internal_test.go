// SPDX-License-Identifier: Apache-2.0

package push

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func encodedAck(t testing.TB, a *policydv1.Ack) []byte {
	b, err := proto.Marshal(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: a}})
	require.NoError(t, err)
	return b
}

func TestAn_ack_is_read_without_garbage(t *testing.T) {
	var r request
	b := encodedAck(t, &policydv1.Ack{Epoch: "e1", Revision: 1 << 40, WantSnapshot: true})
	data := mem.BufferSlice{mem.SliceBuffer(b)}
	c := newCodec()
	require.NoError(t, c.Unmarshal(data, &r))
	require.Equal(t, request{plain: true, ack: plainAck{"e1", 1 << 40, true}, size: len(b)}, r)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = c.Unmarshal(data, &r) }))

	// Nothing of one message is left in the next.
	again := encodedAck(t, &policydv1.Ack{Revision: 3})
	require.NoError(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(again)}, &r))
	require.Equal(t, plainAck{"", 3, false}, r.ack)
	report, err := proto.Marshal(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Report{Report: &policydv1.Report{}}})
	require.NoError(t, err)
	require.NoError(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(report)}, &r))
	m, err := r.message()
	require.NoError(t, err)
	require.NotNil(t, m.GetReport())
	require.NoError(t, c.Unmarshal(data, &r))
	require.True(t, r.plain)

	require.NoError(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:len(b)-1])}, &r))
	_, err = r.message()
	require.ErrorContains(t, err, "cannot be read")
}

// What is read by hand means the same as what protobuf reads; what means more is left to it.
func FuzzPlainAck(f *testing.F) {
	f.Add(encodedAck(f, &policydv1.Ack{Epoch: "e1", Revision: 7}))
	f.Add(encodedAck(f, &policydv1.Ack{Epoch: "e1", Revision: -7, WantSnapshot: true}))
	f.Add(encodedAck(f, &policydv1.Ack{Rejected: []*policydv1.Rejection{{Scope: "shop"}}}))
	f.Add(append(encodedAck(f, &policydv1.Ack{Revision: 7}), encodedAck(f, &policydv1.Ack{Epoch: "e2"})...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a := plainAck{epoch: "e1"}
		if !a.read(b) {
			return
		}
		var want policydv1.WatchRequest
		if err := (proto.UnmarshalOptions{}).Unmarshal(b, &want); err != nil {
			require.ErrorContains(t, err, "UTF-8", "an epoch that is no text belongs to nobody's data")
			return
		}
		require.Empty(t, want.GetAck().GetRejected())
		require.Empty(t, want.GetAck().ProtoReflect().GetUnknown())
		require.Equal(t, plainAck{want.GetAck().GetEpoch(), want.GetAck().GetRevision(), want.GetAck().GetWantSnapshot()}, a)
	})
}
