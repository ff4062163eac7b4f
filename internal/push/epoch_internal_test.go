// SPDX-License-Identifier: Apache-2.0

package push

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// pipe is a connection that keeps what it is sent.
type pipe struct {
	grpc.ServerStream

	sent []*policydv1.WatchResponse
}

func (p *pipe) SendMsg(m any) error {
	f, _ := m.(*frame)
	var r policydv1.WatchResponse
	if err := proto.Unmarshal(f.data.Materialize(), &r); err != nil {
		return err
	}
	p.sent = append(p.sent, &r)
	return nil
}

func TestA_heartbeat_of_an_epoch_that_ended_this_moment_is_not_sent_into_the_next(t *testing.T) {
	h, err := New(Config{Fleet: fleet.New(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	h.Publish(policy.Update{Epoch: "e1", Revision: 100, Reset: true})
	h.flush()
	conn := &pipe{}
	s := &stream{hub: h, conn: conn, session: h.fleet.Connect(fleet.Identity{ID: "i"}, 0, false), resume: &resumePoint{}}
	s.view = h.acquire(newTargetSet([]engine.Scope{"shop"}, false))
	s.pump(h.now())
	require.NoError(t, s.confirm(&plainAck{epoch: "e1", revision: 100}, nil))

	hub := h.snap.Load()
	hb := heartbeatFrame(hub, h.reading())
	h.Publish(policy.Update{Epoch: "e2", Revision: 50, Reset: true}) // the store was put back
	h.flush()
	s.beat(hub, hb, h.now())
	s.beat(h.snap.Load(), heartbeatFrame(h.snap.Load(), h.reading()), h.now())

	require.Len(t, conn.sent, 3)
	require.Equal(t, "e1", conn.sent[0].GetUpdate().GetEpoch())
	require.Equal(t, "e2", conn.sent[1].GetUpdate().GetEpoch())
	require.EqualValues(t, 50, conn.sent[2].GetHeartbeat().GetRevision())
	require.EqualValues(t, 50, s.told)
}
