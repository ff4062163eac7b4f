// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// watchServer is policyd as a test plays it: every stream is handed to the test.
type watchServer struct {
	policydv1.UnimplementedWatchServiceServer
	t     testing.TB
	conns chan *watchConn
	open  atomic.Int64
	most  atomic.Int64
	count atomic.Int64
	// refuse, if set, ends each stream at once.
	refuse atomic.Pointer[error]

	addr string
	pipe atomic.Pointer[bufconn.Listener] // nil over TCP
	grpc *grpc.Server
	over chan struct{}
}

// watchConn is one stream.
type watchConn struct {
	stream  grpc.BidiStreamingServer[policydv1.WatchRequest, policydv1.WatchResponse]
	hello   *policydv1.Hello
	md      metadata.MD
	acks    chan *policydv1.Ack
	reports chan *policydv1.Report
	left    chan struct{} // closed when the client is gone
	end     chan error
}

// pipeServer serves in memory: inside a synctest bubble time is virtual.
func pipeServer(tb testing.TB) *watchServer {
	tb.Helper()
	s := &watchServer{t: tb, conns: make(chan *watchConn, 100), addr: "127.0.0.1:7400"}
	s.start()
	tb.Cleanup(s.stop)
	return s
}

func (s *watchServer) start() {
	listener := bufconn.Listen(1 << 20)
	s.pipe.Store(listener)
	s.serve(listener)
}

// tcpServer serves on a free port, and on the same again after a restart.
func tcpServer(tb testing.TB) *watchServer {
	tb.Helper()
	s := &watchServer{t: tb, conns: make(chan *watchConn, 2000)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.addr = listener.Addr().String()
	s.serve(listener)
	tb.Cleanup(s.stop)
	return s
}

func (s *watchServer) restartTCP() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.serve(listener)
}

func (s *watchServer) serve(listener net.Listener) {
	s.grpc = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	policydv1.RegisterWatchServiceServer(s.grpc, s)
	s.over = make(chan struct{})
	over, server := s.over, s.grpc
	go func() {
		defer close(over)
		_ = server.Serve(listener) // ends with the listener
	}()
}

// stop cuts every connection.
func (s *watchServer) stop() {
	s.grpc.Stop()
	<-s.over
}

// Watch hands the stream to the test and keeps it until the test or the client ends it.
func (s *watchServer) Watch(stream grpc.BidiStreamingServer[policydv1.WatchRequest, policydv1.WatchResponse]) error {
	s.count.Add(1)
	open := s.open.Add(1)
	defer s.open.Add(-1)
	for most := s.most.Load(); open > most && !s.most.CompareAndSwap(most, open); most = s.most.Load() {
	}
	if err := s.refuse.Load(); err != nil {
		return *err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	c := &watchConn{
		stream: stream, hello: first.GetHello(), md: md, left: make(chan struct{}), end: make(chan error, 1),
		acks: make(chan *policydv1.Ack, 1000), reports: make(chan *policydv1.Report, 1000),
	}
	go func() {
		defer close(c.left)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if a := m.GetAck(); a != nil {
				c.acks <- a
			}
			if r := m.GetReport(); r != nil {
				c.reports <- r
			}
		}
	}()
	s.conns <- c
	select {
	case err = <-c.end:
		return err
	case <-c.left:
		return nil
	}
}

// options connect a client to the server.
func (s *watchServer) options() []policyd.Option {
	opts := []policyd.Option{
		policyd.WithAddr(s.addr), policyd.WithService("shop", "web"), policyd.WithInstance("i-1"),
		policyd.WithCacheDir(""), policyd.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if s.pipe.Load() != nil {
		opts = append(opts, policyd.WithDialOptions(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.pipe.Load().DialContext(ctx)
		})))
	}
	return opts
}

// client returns a client of the server that has started its watch.
func (s *watchServer) client(opts ...policyd.Option) *policyd.Client {
	s.t.Helper()
	c := newWatched(s.t, append(s.options(), opts...)...)
	c.Touch("shop/web/start")
	return c
}

func newWatched(tb testing.TB, opts ...policyd.Option) *policyd.Client {
	tb.Helper()
	c, err := policyd.New(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return c
}

// next returns the next stream.
func (s *watchServer) next() *watchConn {
	s.t.Helper()
	return receive(s.t, s.conns, "a stream")
}

// receive takes one value, or fails when nothing comes for long.
func receive[T any](tb testing.TB, from <-chan T, what string) T {
	tb.Helper()
	timeout := time.NewTimer(time.Hour)
	defer timeout.Stop()
	select {
	case v := <-from:
		return v
	case <-timeout.C:
		tb.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}

func (c *watchConn) send(tb testing.TB, m *policydv1.WatchResponse) {
	tb.Helper()
	if err := c.stream.Send(m); err != nil {
		tb.Errorf("send: %v", err)
	}
}

func (c *watchConn) update(tb testing.TB, u *policydv1.Update) {
	tb.Helper()
	c.send(tb, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Update{Update: u}})
}

// apply sends an update and returns its confirmation.
func (c *watchConn) apply(tb testing.TB, u *policydv1.Update) *policydv1.Ack {
	tb.Helper()
	c.update(tb, u)
	return receive(tb, c.acks, "an ack")
}

func (c *watchConn) heartbeat(tb testing.TB, revision int64) {
	tb.Helper()
	c.send(tb, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{
		Heartbeat: &policydv1.Heartbeat{Revision: revision, ServerTime: timestamppb.Now()},
	}})
}

// beat sends heartbeats until the stream ends.
func (c *watchConn) beat(tb testing.TB, revision int64) {
	tb.Helper()
	go func() {
		ticker := time.NewTicker(15 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = c.stream.Send(&policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{
					Heartbeat: &policydv1.Heartbeat{Revision: revision, ServerTime: timestamppb.Now()},
				}})
			case <-c.stream.Context().Done():
				return
			}
		}
	}()
}

func policyEntry(scope string, revision int64, spec *policydv1.PolicySpec) *policydv1.Entry {
	return &policydv1.Entry{Key: "policies/" + scope, Revision: revision, Document: &policydv1.Entry_Policy{
		Policy: &policydv1.Policy{Scope: scope, Spec: spec},
	}}
}

// tries is a policy with that many attempts.
func tries(scope string, revision, n int64) *policydv1.Entry {
	return policyEntry(scope, revision, &policydv1.PolicySpec{MaxAttempts: &n})
}

func switchEntry(id, scope string, revision int64, d time.Duration) *policydv1.Entry {
	return &policydv1.Entry{Key: "switches/" + id, Revision: revision, Document: &policydv1.Entry_KillSwitch{
		KillSwitch: &policydv1.KillSwitch{
			Id: id, ExpiresAt: timestamppb.New(time.Now().Add(d)), Phase: policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE,
			Spec: &policydv1.SwitchSpec{
				Action: policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES, Scope: scope,
				Reason: "brown-out", Incident: "INC-1", Restore: &policydv1.Restore{Over: durationpb.New(2 * time.Minute)},
			},
		},
	}}
}

func deletion(key string, revision int64) *policydv1.Entry {
	return &policydv1.Entry{Key: key, Revision: revision, Document: &policydv1.Entry_Deleted{Deleted: true}}
}

func stateHash(entries ...*policydv1.Entry) (h uint64) {
	for _, e := range entries {
		h += engine.EntryHash(e.GetKey(), e.GetRevision())
	}
	return h
}

func wholeState(epoch string, revision int64, entries ...*policydv1.Entry) *policydv1.Update {
	return &policydv1.Update{
		Epoch: epoch, Revision: revision, Snapshot: true, Hash: stateHash(entries...),
		ServerTime: timestamppb.Now(), Entries: entries,
	}
}

// changes is an update of some entries; held is everything afterwards.
func changes(epoch string, revision int64, held []*policydv1.Entry, entries ...*policydv1.Entry) *policydv1.Update {
	return &policydv1.Update{
		Epoch: epoch, Revision: revision, Hash: stateHash(held...), ServerTime: timestamppb.Now(), Entries: entries,
	}
}

// maxAttempts is what an endpoint's policy says now.
func maxAttempts(c *policyd.Client, endpoint string) int64 {
	n, _ := c.Effective(endpoint).Values["maxAttempts"].Value.(int64)
	return n
}

// logLines keeps what is logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
	fresh chan string
}

func newLog() *logLines { return &logLines{fresh: make(chan string, 10_000)} }

func (l *logLines) logger() *slog.Logger { return slog.New(l) }

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b.String())
	select {
	case l.fresh <- b.String():
	default:
	}
	return nil
}

func (l *logLines) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logLines) WithGroup(string) slog.Handler      { return l }

// count returns the lines that hold every word.
func (l *logLines) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	return n
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
