// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// scripted is a stream whose client says what a test gives it, without a network.
type scripted struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // what a stream is asked for
	says  [][]byte
	ended ending
}

// ending is gRPC's own stream behind it, which policyd may end.
type ending struct {
	grpc.ServerTransportStream

	once sync.Once
	c    chan struct{} // closed by WriteStatus
}

func (e *ending) WriteStatus(*status.Status) error {
	e.once.Do(func() { close(e.c) })
	return nil
}

func (s *scripted) Context() context.Context            { return s.ctx }
func (s *scripted) SendMsg(any) error                   { return nil }
func (s *scripted) Send(*policydv1.WatchResponse) error { return nil }

// RecvMsg reads the next message, as gRPC does: what cannot be read ends the stream.
func (s *scripted) RecvMsg(m any) error {
	select {
	case <-s.ended.c:
		return status.Error(codes.Canceled, "ended")
	default:
	}
	if len(s.says) == 0 {
		return io.EOF
	}
	if err := push.Unmarshal(s.says[0], m); err != nil {
		return status.Error(codes.Internal, "unmarshal")
	}
	s.says = s.says[1:]
	return nil
}

func (s *scripted) Recv() (*policydv1.WatchRequest, error) {
	m := &policydv1.WatchRequest{}
	return m, s.RecvMsg(m)
}

// Whatever a client says, in whatever order, policyd neither panics nor keeps anything of it,
// and says why it ends the stream.
func FuzzWatchRequests(f *testing.F) {
	past := &policy.History{Epoch: "e1", Number: 2, Cluster: 7, Secret: []byte("s"), Branches: []policy.Branch{{ID: 1, After: 2}}}
	encode := func(requests ...*policydv1.WatchRequest) (all []byte) {
		for _, r := range requests {
			raw, err := proto.Marshal(r)
			require.NoError(f, err)
			all = append(binary.BigEndian.AppendUint16(all, uint16(len(raw))), raw...)
		}
		return all
	}
	introduce := func(h *policydv1.Hello) *policydv1.WatchRequest {
		return &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: h}}
	}
	full := hello("i", "shop", "pay/x")
	full.Resume = &policydv1.ResumePoint{Epoch: "e1", Revision: 10, Hash: 3, Token: past.Token(10)}
	full.Left, full.Capabilities = []string{"e0", "e1"}, []string{"drill"}
	ack := &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: &policydv1.Ack{
		Epoch: "e1", Revision: 10, WantSnapshot: true, Rejected: []*policydv1.Rejection{{Scope: "shop", Field: "x", Reason: "y"}},
	}}}
	subscribe := &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Subscribe{Subscribe: &policydv1.Subscribe{Targets: []string{"pay", "global"}}}}
	count := &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Report{Report: &policydv1.Report{
		Endpoints: []*policydv1.EndpointReport{{Endpoint: "shop/a/b", Calls: -4, Suppressed: map[string]int64{"x": 1}}},
	}}}
	f.Add(encode(introduce(hello("i")), ack, subscribe, count, ack))
	f.Add(encode(introduce(full), subscribe, subscribe, ack))
	f.Add(encode(introduce(&policydv1.Hello{Instance: "r", Relay: &policydv1.Relay{Id: "r", Below: []string{"a"}}}), ack, count))
	f.Add(encode(ack, introduce(hello("i"))))
	f.Add([]byte{0, 3, 0x0a, 0xff, 0xff})
	f.Add([]byte(nil)) // half-closed before anything was said

	registry := fleet.New()
	hub, err := push.New(push.Config{Fleet: registry, Logger: slog.New(slog.DiscardHandler), Limits: push.Limits{AcceptRate: 1 << 30}})
	require.NoError(f, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = hub.Run(ctx) })
	f.Cleanup(func() { cancel(); running.Wait() })
	change := policyChange("shop/payments", "x")
	change.Revision = 9
	hub.Publish(policy.Update{Epoch: "e1", Revision: 10, Reset: true, Changes: []policy.Change{change}, History: past})

	f.Fuzz(func(t *testing.T, raw []byte) {
		s := &scripted{ended: ending{c: make(chan struct{})}}
		s.ctx = grpc.NewContextWithServerTransportStream(t.Context(), &s.ended)
		for len(raw) >= 2 {
			n := min(int(binary.BigEndian.Uint16(raw)), len(raw)-2)
			s.says, raw = append(s.says, raw[2:2+n]), raw[2+n:]
		}
		if err := hub.Watch(s); err != nil {
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.Internal, codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.FailedPrecondition}, status.Code(err), "%v", err)
		}
		stats := hub.Stats()
		require.Zero(t, stats.Streams)
		require.Zero(t, stats.Views)
	})
}
