// SPDX-License-Identifier: Apache-2.0

package push

import (
	"log/slog"
	"strings"
	"testing"
	"time"

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

// piped returns a stream that was served a snapshot of nothing, and confirmed it.
func piped(t *testing.T) (*Hub, *stream, *pipe) {
	t.Helper()
	h, err := New(Config{Fleet: fleet.New(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	h.Publish(policy.Update{Epoch: "e1", Revision: 100, Reset: true})
	h.flush()
	conn := &pipe{}
	s := &stream{hub: h, conn: conn, session: h.fleet.Connect(fleet.Identity{ID: "i"}, 0, false), resume: &resumePoint{}}
	s.view = h.acquire(newTargetSet([]engine.Scope{"shop"}, false))
	s.pump(h.now())
	require.NoError(t, s.confirm(&plainAck{epoch: "e1", revision: 100}, nil))
	return h, s, conn
}

// edit publishes a document of some size and brings the stream forward.
func edit(s *stream, revision policy.Revision, size int) {
	h := s.hub
	h.Publish(policy.Update{Epoch: "e1", Revision: revision, Changes: []policy.Change{{
		Key: "policies/shop", Scope: "shop", Revision: revision, Document: policyOf(size),
	}}})
	h.flush()
	s.pump(h.now())
}

func policyOf(size int) []byte {
	text := strings.Repeat("x", size)
	doc, _ := proto.Marshal(&policydv1.Policy{Spec: &policydv1.PolicySpec{Description: &text}})
	return doc
}

func TestWhat_leaves_no_room_for_a_switch_is_confirmed_at_once(t *testing.T) {
	_, s, conn := piped(t)
	s.view.refs.Store(10_000)
	edit(s, 101, 100)
	require.Equal(t, 400*time.Millisecond, conn.sent[1].GetUpdate().GetConfirmWithin().AsDuration())
	require.NoError(t, s.confirm(&plainAck{epoch: "e1", revision: 101}, nil))
	edit(s, 102, 20<<10)
	require.Nil(t, conn.sent[2].GetUpdate().GetConfirmWithin())
}

func TestA_snapshot_that_is_asked_for_does_not_wait_for_what_it_replaces(t *testing.T) {
	h, s, conn := piped(t)
	edit(s, 101, 40<<10)
	require.Greater(t, s.flow.pending(), h.cfg.Limits.Unconfirmed)
	require.NoError(t, s.confirm(&plainAck{epoch: "e1", revision: 100, wantSnapshot: true}, nil))
	require.Len(t, conn.sent, 3)
	require.True(t, conn.sent[2].GetUpdate().GetSnapshot())
}

func TestA_heartbeat_of_an_epoch_that_ended_this_moment_is_not_sent_into_the_next(t *testing.T) {
	h, s, conn := piped(t)

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
