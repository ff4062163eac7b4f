// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/store"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// crowd is a replica with so many instances.
type crowd struct {
	policydv1.UnimplementedPeerServiceServer

	instances int
}

func (c crowd) WatchFleet(_ *policydv1.WatchFleetRequest, stream grpc.ServerStreamingServer[policydv1.WatchFleetResponse]) error {
	for sent := 0; sent < c.instances; {
		m := &policydv1.WatchFleetResponse{ServerTime: timestamppb.Now()}
		for ; len(m.GetInstances()) < 500 && sent < c.instances; sent++ {
			m.Instances = append(m.Instances, &policydv1.PeerInstance{Instance: &policydv1.Instance{
				Id: fmt.Sprint(sent), State: policydv1.InstanceState_INSTANCE_STATE_LIVE,
			}})
		}
		m.Complete = sent == c.instances
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func TestPeers_a_replica_with_more_instances_than_are_kept_is_named(t *testing.T) {
	l := &list{}
	a := l.start(t, "a")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	policydv1.RegisterPeerServiceServer(server, crowd{instances: fleet.MaxInstances + 1})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	l.change(func(all []store.Peer) []store.Peer {
		return append(all[:len(all):len(all)], store.Peer{ID: "b", Address: listener.Addr().String()})
	})
	eventually(t, "its answer", func() bool {
		a.Ask(t.Context())
		return len(a.fleet.Instances("")) == fleet.MaxInstances
	})
	require.True(t, a.Ask(t.Context())[0].Silent, "one of its instances is not counted")
}
