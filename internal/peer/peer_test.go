// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/peer"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is the announcements of all replicas.
type list struct {
	mu    sync.Mutex
	peers []store.Peer
	tell  []func([]store.Peer)
}

func (l *list) follow(ctx context.Context, changed func([]store.Peer), listed chan<- struct{}) {
	l.mu.Lock()
	l.tell = append(l.tell, changed)
	changed(l.peers)
	l.mu.Unlock()
	close(listed)
	<-ctx.Done()
}

func (l *list) change(f func([]store.Peer) []store.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers = f(l.peers)
	for _, tell := range l.tell {
		tell(l.peers)
	}
}

// replica is a policyd as far as peers see it.
type replica struct {
	*peer.Peers
	fleet *fleet.Registry
	self  store.Peer
	list  *list
	crash func() // ends its server without a word
}

func (l *list) start(t *testing.T, id string) *replica {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &replica{
		fleet: fleet.New(), list: l,
		self: store.Peer{ID: id, Address: listener.Addr().String(), Version: "1", StartedAt: time.Now()},
	}
	server := grpc.NewServer()
	peer.NewServer(r.fleet, nil).Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	r.crash = sync.OnceFunc(func() { server.Stop(); <-served }) // which may not have begun
	t.Cleanup(r.crash)

	r.Peers = peer.New(peer.Config{Self: r.self, Fleet: r.fleet, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	listed := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, func(ctx context.Context, changed func([]store.Peer)) { l.follow(ctx, changed, listed) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-listed
	l.change(func(all []store.Peer) []store.Peer { return append(all[:len(all):len(all)], r.self) })
	return r
}

// forget takes the announcement out, as the end of its lease would.
func (r *replica) forget() {
	r.list.change(func(all []store.Peer) []store.Peer {
		var left []store.Peer
		for _, p := range all {
			if p.ID != r.self.ID {
				left = append(left, p)
			}
		}
		return left
	})
}

func (r *replica) connect(id string, revision int64) *fleet.Session {
	return r.fleet.Connect(fleet.Identity{ID: id, Namespace: "shop", Service: "cart", Mode: "enforce", Targets: []engine.Scope{"shop"}}, revision, false)
}

func (r *replica) states() map[string]fleet.State {
	states := map[string]fleet.State{}
	for _, in := range r.fleet.Instances("") {
		states[in.ID] = in.State
	}
	return states
}

// ask waits until every other replica has answered.
func (r *replica) ask(t *testing.T, others int) {
	t.Helper()
	eventually(t, "answers of all", func() bool {
		answers := r.Ask(t.Context())
		for _, a := range answers {
			if a.Silent {
				return false
			}
		}
		return len(answers) == others
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}

func TestPeers_each_replica_answers_for_the_whole_fleet(t *testing.T) {
	l := &list{}
	a, b, c := l.start(t, "a"), l.start(t, "b"), l.start(t, "c")
	a.connect("cart-1", 7)
	for i := range 1200 { // more than two messages carry
		b.connect(fmt.Sprintf("order-%d", i), 7)
	}
	far := b.connect("pay-1", 7)
	far.Confirmed(7, []fleet.Rejection{{Scope: "shop", Revision: 7, Field: "hedging", Reason: "not supported"}})
	far.Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{
		{Endpoint: "shop/cart/get", Calls: 100, Attempts: 110, Suppressed: map[string]int64{"budget_exhausted": 3}, Breaker: "closed"},
	}})

	for _, r := range []*replica{a, c} {
		r.ask(t, 2)
		require.Len(t, r.fleet.Instances(""), 1202)
	}
	seen, ok := c.fleet.Instance("pay-1")
	require.True(t, ok)
	own, _ := b.fleet.Instance("pay-1")
	require.Equal(t, own.Identity, seen.Identity)
	require.Equal(t, own.Rejected, seen.Rejected)
	require.Equal(t, own.Report, seen.Report)
	require.Equal(t, fleet.Rejected, seen.State)
	require.WithinDuration(t, own.ReportedAt, seen.ReportedAt, time.Minute)
	require.Empty(t, c.fleet.Instances("media"), "a scope selects instances of others too")
}

func TestPeers_a_confirmation_elsewhere_is_seen_here(t *testing.T) {
	l := &list{}
	a, b := l.start(t, "a"), l.start(t, "b")
	far := b.connect("pay-1", 7)
	a.ask(t, 1)
	far.Wanted(8)
	eventually(t, "behind", func() bool { return a.states()["pay-1"] == fleet.Behind })
	changed := a.fleet.Changed()
	far.Confirmed(8, nil)
	select {
	case <-changed: // progress is followed, not polled
	case <-t.Context().Done():
		t.Fatal("no notice")
	}
	eventually(t, "live", func() bool { return a.states()["pay-1"] == fleet.Live })
}

func TestPeers_an_instance_that_moves_counts_once_and_is_never_stale(t *testing.T) {
	l := &list{}
	a, b := l.start(t, "a"), l.start(t, "b")
	old := a.connect("pay-1", 7)
	b.ask(t, 1)
	b.connect("pay-1", 7)
	old.Close()
	a.ask(t, 1)
	eventually(t, "the old replica's word", func() bool { in, _ := a.fleet.LocalSince(0); return len(in) == 1 && in[0].State == fleet.Stale })
	require.Equal(t, map[string]fleet.State{"pay-1": fleet.Live}, a.states())
	require.Equal(t, map[string]fleet.State{"pay-1": fleet.Live}, b.states())
	in, ok := a.fleet.Instance("pay-1")
	require.True(t, ok)
	require.Equal(t, fleet.Live, in.State)
}

func TestPeers_a_replica_that_does_not_answer_is_named_and_its_instances_are_stale(t *testing.T) {
	l := &list{}
	a, b := l.start(t, "a"), l.start(t, "b")
	b.connect("pay-1", 7)
	a.ask(t, 1)
	require.Equal(t, fleet.Live, a.states()["pay-1"])

	b.crash()
	eventually(t, "silence is noticed", func() bool { return a.states()["pay-1"] == fleet.Stale })
	answers := a.Ask(t.Context())
	require.Len(t, answers, 1)
	require.True(t, answers[0].Silent)
	require.Equal(t, b.self.Address, answers[0].Address)

	b.forget()
	eventually(t, "who is not announced any more is not asked", func() bool { return len(a.Ask(t.Context())) == 0 })
	eventually(t, "and not known", func() bool { return len(a.fleet.Instances("")) == 0 })
}

func TestPeers_a_question_that_may_not_wait_is_answered_at_once(t *testing.T) {
	l := &list{}
	a, b := l.start(t, "a"), l.start(t, "b")
	b.connect("pay-1", 7)
	hurry, cancel := context.WithCancel(t.Context())
	cancel()
	answers := a.Ask(hurry)
	require.Len(t, answers, 1)
	// The question has opened the exchange all the same.
	eventually(t, "the answer", func() bool { return len(a.fleet.Instances("")) == 1 })
}

func TestPeers_nothing_is_exchanged_until_somebody_asks(t *testing.T) {
	l := &list{}
	a, b := l.start(t, "a"), l.start(t, "b")
	b.connect("pay-1", 7)
	require.Empty(t, a.fleet.Instances(""))
}
