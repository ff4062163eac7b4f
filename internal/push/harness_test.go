// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
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
	"github.com/policyd/policyd/internal/push/lean"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; none is expected to come near it.
const patience = 120 * time.Second

// bench is a hub on a real TCP port with a store that the test plays.
type bench struct {
	*push.Hub
	fleet  *fleet.Registry
	addr   string
	server server
	stop   func()

	mu       sync.Mutex
	epoch    policy.Epoch
	revision policy.Revision
	since    policy.Revision
	docs     map[string]policy.Change
}

// server is one of the two transports.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// leanVariable makes a run of the tests use the other transport; see TestLean.
const leanVariable = "POLICYD_TEST_LEAN"

func overLean() bool { return os.Getenv(leanVariable) != "" }

// TestLean runs all tests of this package once more, over the lean transport.
func TestLean_holds_whatever_the_other_transport_does(t *testing.T) {
	if overLean() {
		t.Skip("this is that run")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=10m", "-test.run="+flag.Lookup("test.run").Value.String())
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Env = append(os.Environ(), leanVariable+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestO_PU_01_", "the run had tests")
}

// leanServer is the lean transport with grpc-go's server behind it.
type leanServer struct {
	*lean.Server
	rest *grpc.Server
}

func newLeanServer(opts ...grpc.ServerOption) (*leanServer, error) {
	l, err := lean.New(lean.Config{Codec: push.Codec(), Logger: slog.New(slog.DiscardHandler)})
	return &leanServer{Server: l, rest: grpc.NewServer(opts...)}, err
}

func (s *leanServer) RegisterService(d *grpc.ServiceDesc, impl any) {
	s.Server.RegisterService(d, impl)
	s.rest.RegisterService(d, impl)
}

func (s *leanServer) Serve(l net.Listener) error {
	var rest sync.WaitGroup
	defer rest.Wait()
	rest.Go(func() { _ = s.rest.Serve(s.Others()) })
	return s.Server.Serve(l)
}

func (s *leanServer) GracefulStop() {
	s.Shutdown(context.Background())
	s.rest.GracefulStop()
}

func (s *leanServer) Stop() {
	s.Close()
	s.rest.Stop()
}

func start(t *testing.T, change func(*push.Config)) *bench {
	t.Helper()
	return startOn(t, listen(t), change, push.ServerOptions()...)
}

func startOn(t *testing.T, l net.Listener, change func(*push.Config), opts ...grpc.ServerOption) *bench {
	t.Helper()
	b := &bench{fleet: fleet.New(), epoch: "e1", revision: 10, docs: make(map[string]policy.Change)}
	cfg := push.Config{Fleet: b.fleet, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	var err error
	b.Hub, err = push.New(cfg)
	require.NoError(t, err)
	if b.server = grpc.NewServer(opts...); overLean() {
		b.server, err = newLeanServer(opts...)
		require.NoError(t, err)
	}
	b.Register(b.server)
	b.addr = l.Addr().String()

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.server.Serve(l) })
	running.Go(func() { _ = b.Run(ctx) })
	b.stop = sync.OnceFunc(func() {
		cancel()
		b.server.Stop()
		running.Wait()
	})
	t.Cleanup(b.stop)
	return b
}

// load publishes everything, as a store does at its start.
func (b *bench) load() {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := policy.Update{Epoch: b.epoch, Revision: b.revision, Reset: true, DeletionsKnownSince: b.since}
	for _, c := range b.docs {
		u.Changes = append(u.Changes, c)
	}
	b.Publish(u)
}

func policyChange(scope engine.Scope, text string) policy.Change {
	doc, err := proto.Marshal(&policydv1.Policy{
		Scope: string(scope), Spec: &policydv1.PolicySpec{Description: &text},
	})
	if err != nil {
		panic(err)
	}
	return policy.Change{Key: policy.PolicyKey(scope), Scope: scope, Document: doc}
}

func switchChange(id string, scope engine.Scope, drill bool) policy.Change {
	doc, err := proto.Marshal(&policydv1.KillSwitch{
		Id: id, Spec: &policydv1.SwitchSpec{Scope: string(scope)}, Drill: drill,
	})
	if err != nil {
		panic(err)
	}
	return policy.Change{Key: policy.SwitchKey(id), Scope: scope, Document: doc, Urgent: true}
}

func deletion(scope engine.Scope) policy.Change {
	return policy.Change{Key: policy.PolicyKey(scope), Scope: scope}
}

// commit publishes changes as one transaction and returns its revision.
func (b *bench) commit(changes ...policy.Change) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision++
	u := policy.Update{Epoch: b.epoch, Revision: b.revision, DeletionsKnownSince: b.since}
	for _, c := range changes {
		c.Revision = b.revision
		b.docs[c.Key] = c
		u.Changes = append(u.Changes, c)
	}
	b.Publish(u)
	return int64(b.revision)
}

// put publishes a policy.
func (b *bench) put(scope engine.Scope, text string) int64 {
	return b.commit(policyChange(scope, text))
}

// hashOf is what somebody who sees the given scopes, and nothing else, must have.
func (b *bench) hashOf(sees func(policy.Change) bool) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var h uint64
	for key, c := range b.docs {
		if !c.Deleted() && sees(c) {
			h += engine.EntryHash(key, int64(c.Revision))
		}
	}
	return h
}

// peer is an instance that the test plays, message by message.
type peer struct {
	t       *testing.T
	stream  grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse]
	leave   func()
	held    map[string]*policydv1.Entry
	pending []*policydv1.Update // pieces so far
	at      *policydv1.ResumePoint
	// updates counts whole updates, pieces messages of updates, entries what was in them.
	updates, pieces, entries int
	last                     *policydv1.Update
	lastSize                 int
}

func dial(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// open starts a stream and says nothing yet.
func open(t *testing.T, conn *grpc.ClientConn) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := policydv1.NewWatchServiceClient(conn).Watch(ctx)
	require.NoError(t, err)
	return &peer{t: t, stream: stream, leave: cancel, held: make(map[string]*policydv1.Entry), at: &policydv1.ResumePoint{}}
}

func hello(id string, targets ...string) *policydv1.Hello {
	return &policydv1.Hello{
		Instance: id, Namespace: "shop", Service: "checkout", SdkLanguage: "go", SdkVersion: "1.0.0",
		Mode: policydv1.Mode_MODE_ENFORCE, Targets: targets,
	}
}

// join opens a stream and introduces itself.
func (b *bench) join(t *testing.T, h *policydv1.Hello) *peer {
	t.Helper()
	p := open(t, dial(t, b.addr))
	p.say(h)
	return p
}

func (p *peer) say(m any) {
	p.t.Helper()
	r := &policydv1.WatchRequest{}
	switch m := m.(type) {
	case *policydv1.Hello:
		r.Kind = &policydv1.WatchRequest_Hello{Hello: m}
	case *policydv1.Subscribe:
		r.Kind = &policydv1.WatchRequest_Subscribe{Subscribe: m}
	case *policydv1.Ack:
		r.Kind = &policydv1.WatchRequest_Ack{Ack: m}
	case *policydv1.Report:
		r.Kind = &policydv1.WatchRequest_Report{Report: m}
	}
	if err := p.stream.Send(r); !errors.Is(err, io.EOF) {
		require.NoError(p.t, err)
	}
}

func (p *peer) ack() {
	p.t.Helper()
	p.say(&policydv1.Ack{Epoch: p.at.GetEpoch(), Revision: p.at.GetRevision()})
}

// next returns the next message; updates are taken in, not confirmed.
func (p *peer) next() (*policydv1.WatchResponse, error) {
	r, err := p.stream.Recv()
	if err == nil && r.GetUpdate() != nil {
		p.take(r.GetUpdate())
		p.lastSize = proto.Size(r)
	}
	return r, err
}

// take does what an SDK does with an update and checks what an SDK relies on.
func (p *peer) take(u *policydv1.Update) {
	p.t.Helper()
	p.pieces++
	p.entries += len(u.GetEntries())
	p.pending = append(p.pending, u)
	require.Equal(p.t, p.pending[0].GetRevision(), u.GetRevision(), "pieces of one update")
	require.False(p.t, u.GetServerTime().AsTime().After(time.Now()))
	if u.GetMore() {
		return
	}
	if u.GetEpoch() == p.at.GetEpoch() {
		require.GreaterOrEqual(p.t, u.GetRevision(), p.at.GetRevision(), "revisions go up within an epoch")
	} else {
		require.True(p.t, u.GetSnapshot(), "a new epoch starts with a snapshot")
	}
	if u.GetSnapshot() {
		clear(p.held)
	}
	for _, piece := range p.pending {
		for _, e := range piece.GetEntries() {
			if e.GetDeleted() {
				delete(p.held, e.GetKey())
			} else {
				p.held[e.GetKey()] = e
			}
		}
	}
	var hash uint64
	for key, e := range p.held {
		hash += engine.EntryHash(key, e.GetRevision())
	}
	require.Equal(p.t, u.GetHash(), hash, "hash of what is held after revision %d", u.GetRevision())
	p.pending, p.last = nil, u
	p.updates++
	p.at = &policydv1.ResumePoint{Epoch: u.GetEpoch(), Revision: u.GetRevision(), Hash: hash}
}

// until reads and confirms until the peer is at a revision or beyond.
func (p *peer) until(revision int64) *peer {
	p.t.Helper()
	for p.updates == 0 || p.at.GetRevision() < revision || len(p.pending) > 0 {
		before := p.updates
		_, err := p.next()
		require.NoError(p.t, err, "at revision %d of %d", p.at.GetRevision(), revision)
		if p.updates > before {
			p.ack()
		}
	}
	return p
}

// update reads to the end of the next update, without confirming it.
func (p *peer) update() *policydv1.Update {
	p.t.Helper()
	for before := p.updates; p.updates == before; {
		_, err := p.next()
		require.NoError(p.t, err)
	}
	return p.last
}

// goAway reads until the hub asks the peer to leave.
func (p *peer) goAway() *policydv1.GoAway {
	p.t.Helper()
	for {
		r, err := p.next()
		require.NoError(p.t, err)
		if r.GetGoAway() != nil {
			return r.GetGoAway()
		}
	}
}

// end reads until the stream ends.
func (p *peer) end() error {
	for {
		if _, err := p.next(); err != nil {
			return err
		}
	}
}

func (p *peer) text(scope engine.Scope) string {
	return p.held[policy.PolicyKey(scope)].GetPolicy().GetSpec().GetDescription()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 2*time.Millisecond, what)
}

func name(i int) engine.Scope { return engine.Scope(fmt.Sprintf("shop/payments/endpoint-%05d", i)) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

func serve(t *testing.T, s *grpc.Server) string {
	t.Helper()
	l := listen(t)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return l.Addr().String()
}

// h is the instance that back gives itself.
func h(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", "-") }

func hashOf(c policy.Change) uint64 { return engine.EntryHash(c.Key, int64(c.Revision)) }
