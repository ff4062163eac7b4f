// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	sdkwire "github.com/policyd/policyd/sdk/go/wire"
)

// perMessage is how many instances one message carries at most.
const perMessage = 500

// Server implements PeerService for this replica's registry. Safe for concurrent use.
type Server struct {
	policydv1.UnimplementedPeerServiceServer

	fleet    *fleet.Registry
	cells    *Cells
	draining chan struct{}
	once     sync.Once
}

// NewServer returns a Server. cells are the relays below this replica; nil: there are none.
func NewServer(registry *fleet.Registry, cells *Cells) *Server {
	return &Server{fleet: registry, cells: cells, draining: make(chan struct{})}
}

// Register adds the service to a server.
func (s *Server) Register(to grpc.ServiceRegistrar) { policydv1.RegisterPeerServiceServer(to, s) }

// Drain ends all streams and refuses new ones.
func (s *Server) Drain() { s.once.Do(func() { close(s.draining) }) }

// WatchFleet implements policydv1.PeerServiceServer.
func (s *Server) WatchFleet(_ *policydv1.WatchFleetRequest, stream grpc.ServerStreamingServer[policydv1.WatchFleetResponse]) error {
	ctx := stream.Context()
	again := time.NewTicker(linger / 3)
	defer again.Stop()
	var told []fleet.Peer
	for point, first := int64(0), true; ; first = false {
		// Taken before the look, so that no change falls between the two.
		changed := s.fleet.Changed()
		relays := s.ask(ctx, first)
		instances, next := s.fleet.LocalSince(point)
		if len(instances) > 0 || first || !slices.Equal(relays, told) {
			if err := send(stream, instances, relays, first); err != nil {
				return err
			}
		}
		point, told = next, relays
		select {
		case <-changed:
		case <-again.C: // relays stop telling when nobody asks
		case <-ctx.Done():
			return ctx.Err()
		case <-s.draining:
			return status.Error(codes.Unavailable, "policyd is stopping")
		}
	}
}

// ask asks the relays below; only the first answer is waited for.
func (s *Server) ask(ctx context.Context, wait bool) []fleet.Peer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !wait {
		cancel()
	}
	return s.cells.Ask(ctx)
}

// send splits instances over messages; the last one completes the first answer.
func send(stream grpc.ServerStreamingServer[policydv1.WatchFleetResponse], instances []fleet.Instance, relays []fleet.Peer, first bool) error {
	for part := instances; ; {
		n := min(len(part), perMessage)
		message := &policydv1.WatchFleetResponse{
			ServerTime: timestamppb.New(time.Now()),
			Instances:  make([]*policydv1.PeerInstance, n),
			Complete:   first && n == len(part),
		}
		message.Relays, message.SilentRelays = relayProtos(relays)
		for i := range n {
			message.Instances[i] = instanceProto(&part[i])
		}
		if err := stream.Send(message); err != nil {
			return err
		}
		if part = part[n:]; len(part) == 0 {
			return nil
		}
	}
}

func instanceProto(in *fleet.Instance) *policydv1.PeerInstance {
	p := &policydv1.PeerInstance{Instance: wire.InstanceProto(in), Drill: in.Drill, BackBy: sdkwire.Timestamp(in.BackBy)}
	if in.Report != nil {
		p.Report, p.ReportedAt = wire.ReportProto(in.Report), timestamppb.New(in.ReportedAt)
	}
	return p
}
