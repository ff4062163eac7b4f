// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/peer"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// node is a policyd with a store, or a relay, as far as cells see it.
type node struct {
	*peer.Cells

	fleet *fleet.Registry
	about *policydv1.Relay
	addr  string
	crash func()
	// what WatchCell received, in bytes and instances
	mu        sync.Mutex
	bytes     int
	instances int
}

func startNode(t *testing.T, id string) *node {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &node{fleet: fleet.New(), addr: listener.Addr().String()}
	n.about = &policydv1.Relay{Id: id, Home: "home of " + id, Address: n.addr, Version: "1"}
	n.Cells = peer.NewCells(peer.CellsConfig{Self: id, Fleet: n.fleet, Logger: slog.New(slog.DiscardHandler)})
	server := grpc.NewServer(grpc.StreamInterceptor(n.count))
	n.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	n.crash = sync.OnceFunc(func() { server.Stop(); <-served })
	t.Cleanup(n.crash)
	return n
}

// count sees what comes in.
func (n *node) count(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &counted{ServerStream: ss, n: n})
}

type counted struct {
	grpc.ServerStream

	n *node
}

func (c *counted) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if r, ok := m.(*policydv1.WatchCellRequest); ok && err == nil {
		c.n.mu.Lock()
		c.n.bytes += proto.Size(r)
		c.n.instances += len(r.GetInstances())
		c.n.mu.Unlock()
	}
	return err
}

func (n *node) received() (bytes, instances int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bytes, n.instances
}

// follow reports to an upstream until the returned function is called, which gives the end.
func (n *node) follow(t *testing.T, up *node) (leave func() error) {
	t.Helper()
	leave, _ = n.report(t, up)
	return leave
}

// report is follow; over is closed when the report ends by itself.
func (n *node) report(t *testing.T, up *node) (leave func() error, over <-chan struct{}) {
	t.Helper()
	conn, err := grpc.NewClient(up.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	reporter := &peer.Reporter{Fleet: n.fleet, Cells: n.Cells, About: func() *policydv1.Relay {
		about := proto.CloneOf(n.about)
		about.Below = n.Below()
		return about
	}}
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() { ended <- reporter.Run(ctx, conn); close(done) }()
	leave = sync.OnceValue(func() error {
		cancel()
		defer conn.Close()
		return <-ended
	})
	t.Cleanup(func() { _ = leave() })
	return leave, done
}

func (n *node) connect(id string, revision int64) *fleet.Session {
	return n.fleet.Connect(fleet.Identity{ID: id, Namespace: "shop", Service: "cart", Mode: "enforce", Targets: []engine.Scope{"shop"}}, revision, false)
}

func (n *node) states() map[fleet.State]int {
	states := map[fleet.State]int{}
	for _, in := range n.fleet.Instances("") {
		states[in.State]++
	}
	return states
}

// ask waits until so many relays have answered and none is silent.
func (n *node) ask(t *testing.T, relays int) {
	t.Helper()
	eventually(t, "answers of all", func() bool { return fmt.Sprint(n.silent(t)) == fmt.Sprint(relays, 0) })
}

func (n *node) silent(t *testing.T) (all, silent int) {
	t.Helper()
	answers := n.Ask(t.Context())
	for _, a := range answers {
		require.True(t, a.Relay)
		if a.Silent {
			silent++
		}
	}
	return len(answers), silent
}

func TestCells_a_policyd_answers_for_the_instances_behind_its_relays(t *testing.T) {
	root, mid, low := startNode(t, ""), startNode(t, "mid"), startNode(t, "low")
	mid.follow(t, root)
	low.follow(t, mid)
	root.connect("here", 7)
	for i := range 1200 { // more than two messages carry
		mid.connect(fmt.Sprintf("mid-%d", i), 7)
	}
	far := low.connect("far", 7)
	far.Confirmed(7, []fleet.Rejection{{Scope: "shop", Revision: 7, Field: "hedging", Reason: "not supported"}})
	far.Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{{Endpoint: "shop/cart/get", Calls: 100, Breaker: "closed"}}})
	require.Len(t, root.fleet.Instances(""), 1, "nothing is told until somebody asks")

	root.ask(t, 2)
	require.Equal(t, map[fleet.State]int{fleet.Live: 1201, fleet.Rejected: 1}, root.states())
	seen, ok := root.fleet.Instance("far")
	require.True(t, ok)
	own, _ := low.fleet.Instance("far")
	require.Equal(t, own.Identity, seen.Identity)
	require.Equal(t, own.Rejected, seen.Rejected)
	require.Equal(t, own.Report, seen.Report)
	eventually(t, "all relays below are known", func() bool { return len(root.Below()) == 2 })
}

func TestCells_confirmations_of_a_cell_are_added_up(t *testing.T) {
	root, relay := startNode(t, ""), startNode(t, "relay")
	relay.follow(t, root)
	const size = 10_000
	sessions := make([]*fleet.Session, size)
	for i := range sessions {
		sessions[i] = relay.connect(fmt.Sprintf("instance-%05d", i), 7)
	}
	root.ask(t, 1)
	bytes, instances := root.received()
	require.Equal(t, size, instances)
	t.Logf("the first answer: %d bytes per instance", bytes/size)

	for revision := int64(8); revision <= 10; revision++ {
		for _, s := range sessions {
			s.Wanted(revision)
		}
		for i, s := range sessions {
			if i != 4711 {
				s.Confirmed(revision, nil)
			}
		}
		eventually(t, "all but one have it, and that one is known", func() bool {
			have := 0
			for _, in := range root.fleet.Instances("") {
				if in.State == fleet.Live && in.Revision == revision {
					have++
				}
			}
			in, _ := root.fleet.Instance("instance-04711")
			return have == size-1 && in.State == fleet.Behind && in.Revision == 7 && in.Wanted == revision
		})
	}
	after, named := root.received()
	require.Equal(t, size, named, "no instance was named again")
	t.Logf("three edits, confirmed by %d instances: %d bytes", size, after-bytes)
	// Whatever is gathered at one moment is a set of at most size numbers.
	require.Less(t, after-bytes, 3*size*2)
}

func TestCells_progress_of_one_who_rejects_is_told_in_full(t *testing.T) {
	root, relay := startNode(t, ""), startNode(t, "relay")
	relay.follow(t, root)
	s := relay.connect("a", 7)
	root.ask(t, 1)
	s.Wanted(8)
	s.Confirmed(8, []fleet.Rejection{{Scope: "shop", Revision: 8, Field: "x", Reason: "no"}})
	eventually(t, "rejected", func() bool {
		in, _ := root.fleet.Instance("a")
		return in.State == fleet.Rejected && len(in.Rejected) == 1
	})
	s.Wanted(9)
	s.Confirmed(9, nil)
	eventually(t, "live", func() bool {
		in, _ := root.fleet.Instance("a")
		return in.State == fleet.Live && len(in.Rejected) == 0 && in.Revision == 9
	})
	s.Targets([]engine.Scope{"mall"})
	eventually(t, "its targets", func() bool { return len(root.fleet.Instances("mall")) == 1 })
	s.Close()
	eventually(t, "stale", func() bool { return root.states()[fleet.Stale] == 1 })
}

func TestCells_a_relay_that_is_gone_is_missed_until_it_is_back(t *testing.T) {
	root, relay := startNode(t, ""), startNode(t, "relay")
	leave := relay.follow(t, root)
	relay.connect("a", 7)
	root.ask(t, 1)
	require.NoError(t, leave())
	eventually(t, "its instances have no connection that is known", func() bool { return root.states()[fleet.Stale] == 1 })
	answers := root.Ask(t.Context())
	require.Len(t, answers, 1)
	require.True(t, answers[0].Silent)
	require.Equal(t, relay.addr, answers[0].Address)

	relay.about.Id = "the same after a restart"
	relay.follow(t, root)
	root.ask(t, 1)
	eventually(t, "live again", func() bool { return fmt.Sprint(root.states()) == fmt.Sprint(map[fleet.State]int{fleet.Live: 1}) })
}

func TestCells_an_instance_that_moves_counts_once_and_is_never_stale(t *testing.T) {
	root, one, two := startNode(t, ""), startNode(t, "one"), startNode(t, "two")
	one.follow(t, root)
	two.follow(t, root)
	old := one.connect("a", 7)
	root.ask(t, 2)
	two.connect("a", 7)
	old.Close()
	eventually(t, "both have told", func() bool {
		in, _ := root.fleet.Instance("a")
		mine, _ := two.fleet.Instance("a")
		return in.ConnectedAt.Sub(mine.ConnectedAt).Abs() < time.Second && in.State == fleet.Live
	})
	require.Equal(t, map[fleet.State]int{fleet.Live: 1}, root.states())
}

func TestCells_a_relay_below_that_does_not_answer_is_named_at_the_root(t *testing.T) {
	root, mid, low := startNode(t, ""), startNode(t, "mid"), startNode(t, "low")
	mid.follow(t, root)
	leave := low.follow(t, mid)
	low.connect("a", 7)
	root.ask(t, 2)
	require.NoError(t, leave())
	eventually(t, "it is missed", func() bool { return fmt.Sprint(root.silent(t)) == fmt.Sprint(2, 1) })
}

func TestCells_loops_are_refused(t *testing.T) {
	a, b := startNode(t, "a"), startNode(t, "b")
	refused := func(leave func() error, over <-chan struct{}) {
		t.Helper()
		<-over
		require.Equal(t, codes.FailedPrecondition, status.Code(leave()))
	}
	refused(a.report(t, a))
	first := b.follow(t, a)
	eventually(t, "a knows b", func() bool { return len(a.Below()) == 1 })
	refused(a.report(t, b))
	require.NoError(t, first())
}

// witness is an upstream that notes how reports end.
type witness struct {
	policydv1.UnimplementedRelayServiceServer

	began chan struct{}
	ends  chan error
}

func (w *witness) WatchCell(stream grpc.BidiStreamingServer[policydv1.WatchCellRequest, policydv1.WatchCellResponse]) error {
	for {
		_, err := stream.Recv()
		if err != nil {
			w.ends <- err
			return err
		}
		w.began <- struct{}{}
	}
}

func TestReporter_takes_leave_only_when_its_relay_does(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &witness{began: make(chan struct{}, 100), ends: make(chan error, 1)}
	server := grpc.NewServer()
	policydv1.RegisterRelayServiceServer(server, w)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	registry := fleet.New()
	reporter := &peer.Reporter{Fleet: registry, About: func() *policydv1.Relay { return &policydv1.Relay{Id: "x"} }}

	end := func(cause error) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		over := make(chan error, 1)
		go func() { over <- reporter.Run(ctx, conn) }()
		<-w.began
		cancel(cause)
		require.NoError(t, <-over)
		return <-w.ends
	}
	require.ErrorIs(t, end(nil), io.EOF)
	require.Equal(t, codes.Canceled, status.Code(end(errors.New("its stream has ended"))), "it is missed until it is back")
}

func TestCells_refuse_what_makes_no_sense(t *testing.T) {
	for what, said := range map[string][]*policydv1.WatchCellRequest{
		"nobody":                      {{}},
		"another relay":               {{Relay: &policydv1.Relay{Id: "x"}}, {Relay: &policydv1.Relay{Id: "y"}}},
		"too many below":              {{Relay: &policydv1.Relay{Id: "x", Below: make([]string, 1001)}}},
		"a number left out":           {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Instances: []*policydv1.CellInstance{named(1, "a")}}},
		"progress of nobody":          {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Complete: true, Progress: []*policydv1.CellProgress{{Runs: []uint32{0, 1}}}}},
		"progress of everybody":       {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Complete: true, Progress: []*policydv1.CellProgress{{Runs: []uint32{1 << 31, 1 << 31, 1 << 31, 1 << 31}}}}},
		"a number given to two":       {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Instances: []*policydv1.CellInstance{named(0, "a"), named(0, "b")}}},
		"relays without an end":       {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Answered: make([]*policydv1.Relay, 1001)}},
		"a name that nobody can read": {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Instances: []*policydv1.CellInstance{named(0, "a\x00")}}},
		"a relay below of no name":    {{Relay: &policydv1.Relay{Id: "x", Below: []string{""}}}},
		"an instance of no number":    {{Relay: &policydv1.Relay{Id: "x"}}, {Question: 1, Instances: []*policydv1.CellInstance{named(4_000_000_000, "a")}}},
	} {
		t.Run(what, func(t *testing.T) {
			n := startNode(t, "n")
			conn, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			stream, err := policydv1.NewRelayServiceClient(conn).WatchCell(t.Context())
			require.NoError(t, err)
			for i, m := range said {
				require.NoError(t, stream.Send(m))
				if i == 0 && len(said) > 1 {
					eventually(t, "it is known", func() bool { return len(n.Below()) == 1 })
					n.Ask(canceled(t))
					_, err := stream.Recv()
					require.NoError(t, err)
				}
			}
			for err = nil; err == nil; {
				_, err = stream.Recv()
			}
			require.NotErrorIs(t, err, io.EOF)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		})
	}
}

func named(number uint32, id string) *policydv1.CellInstance {
	return &policydv1.CellInstance{Number: number, Instance: &policydv1.PeerInstance{Instance: &policydv1.Instance{Id: id}}}
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
