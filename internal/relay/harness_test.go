// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/internal/relay"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; none is expected to come near it.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 2*time.Millisecond, what)
}

// served is a hub on a port.
type served struct {
	*push.Hub
	addr  string
	fleet *fleet.Registry
	stop  func()
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	return l
}

func serve(t *testing.T, l net.Listener, cfg push.Config) *served {
	t.Helper()
	cfg.Fleet, cfg.Logger, cfg.Heartbeat = fleet.New(), slog.New(slog.DiscardHandler), 30*time.Millisecond
	hub, err := push.New(cfg)
	require.NoError(t, err)
	server := grpc.NewServer(push.ServerOptions()...)
	hub.Register(server)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	running.Go(func() { _ = hub.Run(ctx) })
	s := &served{Hub: hub, addr: l.Addr().String(), fleet: cfg.Fleet}
	s.stop = sync.OnceFunc(func() {
		cancel()
		server.Stop()
		running.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// data is what a store holds. It outlives the root that serves it.
type data struct {
	mu       sync.Mutex
	epoch    policy.Epoch
	revision policy.Revision
	docs     map[string]policy.Change
	history  *policy.History // nil: none is told
}

func newData(epoch policy.Epoch) *data {
	return &data{epoch: epoch, revision: 10, docs: map[string]policy.Change{}}
}

// root is a policyd with a store.
type root struct {
	*served
	*data
}

func startRoot(t *testing.T, d *data) *root { return startRootAt(t, d, "127.0.0.1:0", push.Config{}) }

func startRootAt(t *testing.T, d *data, addr string, cfg push.Config) *root {
	t.Helper()
	r := &root{served: serve(t, listen(t, addr), cfg), data: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := policy.Update{Epoch: d.epoch, Revision: d.revision, Reset: true, History: d.history}
	for _, c := range d.docs {
		u.Changes = append(u.Changes, c)
	}
	r.Publish(u)
	return r
}

func policyChange(scope engine.Scope, text string) policy.Change {
	doc, err := proto.Marshal(&policydv1.Policy{Scope: string(scope), Spec: &policydv1.PolicySpec{Description: &text}})
	if err != nil {
		panic(err)
	}
	return policy.Change{Key: policy.PolicyKey(scope), Scope: scope, Document: doc}
}

func switchChange(id string, scope engine.Scope) policy.Change {
	doc, err := proto.Marshal(&policydv1.KillSwitch{Id: id, Spec: &policydv1.SwitchSpec{Scope: string(scope), Reason: "test"}})
	if err != nil {
		panic(err)
	}
	return policy.Change{Key: policy.SwitchKey(id), Scope: scope, Document: doc, Urgent: true}
}

func deletion(scope engine.Scope) policy.Change {
	return policy.Change{Key: policy.PolicyKey(scope), Scope: scope}
}

// commit publishes changes as one transaction and returns its revision.
func (r *root) commit(changes ...policy.Change) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	u := policy.Update{Epoch: r.epoch, Revision: r.revision, History: r.history}
	for _, c := range changes {
		c.Revision = r.revision
		r.docs[c.Key] = c
		u.Changes = append(u.Changes, c)
	}
	r.Publish(u)
	return int64(r.revision)
}

// node is a relay.
type node struct {
	*relay.Relay
	*served
	dir  string
	stop func()
}

func startRelay(t *testing.T, dir string, upstream ...string) *node {
	t.Helper()
	return startRelayOn(t, listen(t, "127.0.0.1:0"), dir, upstream...)
}

func startRelayOn(t *testing.T, l net.Listener, dir string, upstream ...string) *node {
	t.Helper()
	n := &node{dir: dir}
	var err error
	n.Relay, err = relay.New(relay.Config{
		Upstream: upstream, Dir: dir, Address: l.Addr().String(), Version: "test", Logger: slog.New(slog.DiscardHandler),
		Below: func() []string { return n.Below() },
	})
	require.NoError(t, err)
	n.served = serve(t, l, push.Config{
		Gather: time.Nanosecond, Relay: &push.Relay{ID: n.ID(), Clock: n.Clock, AsOf: n.AsOf},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { require.NoError(t, n.Relay.Run(ctx, n.Publish)) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		n.served.stop()
	})
	t.Cleanup(n.stop)
	return n
}

// ready waits until the relay serves.
func (n *node) ready(t *testing.T) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-n.Loaded():
	case <-ctx.Done():
		require.Fail(t, "nothing to serve", "%+v", n.Standing())
	}
	return n
}

// instance is an SDK as far as the protocol goes. It checks what it is sent.
type instance struct {
	t       *testing.T
	name    string
	targets []string

	// used by one goroutine at a time
	epoch     string
	revision  int64
	hash      uint64
	held      map[string]*policydv1.Entry
	beat      *policydv1.Heartbeat // the last
	update    *policydv1.Update    // the last
	snapshots int
	stream    grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse]
	leave     func()
}

func newInstance(t *testing.T, name string, targets ...string) *instance {
	return &instance{t: t, name: name, targets: targets, held: map[string]*policydv1.Entry{}}
}

// join opens a stream, resuming from what is held.
func (i *instance) join(addr string) *instance {
	i.t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(i.t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), patience)
	i.leave = sync.OnceFunc(func() { cancel(); _ = conn.Close() })
	i.t.Cleanup(i.leave)
	i.stream, err = policydv1.NewWatchServiceClient(conn).Watch(ctx)
	require.NoError(i.t, err)
	hello := &policydv1.Hello{Instance: i.name, Namespace: "shop", Targets: i.targets}
	if i.epoch != "" {
		hello.Resume = &policydv1.ResumePoint{Epoch: i.epoch, Revision: i.revision, Hash: i.hash}
	}
	require.NoError(i.t, i.stream.Send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: hello}}))
	return i
}

var errOver = errors.New("the stream ended")

// next takes one message.
func (i *instance) next() error {
	m, err := i.stream.Recv()
	if err != nil {
		return errors.Join(errOver, err)
	}
	switch kind := m.GetKind().(type) {
	case *policydv1.WatchResponse_Heartbeat:
		i.beat = kind.Heartbeat
	case *policydv1.WatchResponse_Update:
		i.take(kind.Update)
	case *policydv1.WatchResponse_GoAway:
	}
	return nil
}

func (i *instance) take(u *policydv1.Update) {
	i.t.Helper()
	require.False(i.t, u.GetMore(), "the tests' updates fit one piece")
	if u.GetEpoch() == i.epoch {
		require.GreaterOrEqual(i.t, u.GetRevision(), i.revision, "never back within an epoch")
	} else {
		require.True(i.t, u.GetSnapshot(), "another epoch comes whole")
	}
	if u.GetSnapshot() {
		i.snapshots++
		i.held, i.hash = map[string]*policydv1.Entry{}, 0
	}
	for _, e := range u.GetEntries() {
		if old := i.held[e.GetKey()]; old != nil {
			i.hash -= engine.EntryHash(e.GetKey(), old.GetRevision())
			require.GreaterOrEqual(i.t, e.GetRevision(), old.GetRevision())
		}
		if delete(i.held, e.GetKey()); !e.GetDeleted() {
			i.held[e.GetKey()] = e
			i.hash += engine.EntryHash(e.GetKey(), e.GetRevision())
		}
	}
	require.Equal(i.t, u.GetHash(), i.hash)
	i.epoch, i.revision, i.update = u.GetEpoch(), u.GetRevision(), u
	require.NoError(i.t, i.stream.Send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{
		Ack: &policydv1.Ack{Epoch: i.epoch, Revision: i.revision},
	}}))
}

// until takes messages until ok.
func (i *instance) until(what string, ok func() bool) *instance {
	i.t.Helper()
	for !ok() {
		require.NoError(i.t, i.next(), what)
	}
	return i
}

// at waits for a revision.
func (i *instance) at(revision int64) *instance {
	i.t.Helper()
	return i.until("revision", func() bool { return i.update != nil && i.revision >= revision })
}

// fresh forgets the messages so far.
func (i *instance) fresh() *instance {
	i.beat, i.update, i.snapshots = nil, nil, 0
	return i
}
