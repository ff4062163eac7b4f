// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// text is the message of the test's service.
type text = wrapperspb.StringValue

// server is a service whose methods a test plays. Each call is counted with its metadata.
type server struct {
	unary  func(ctx context.Context, n int, in string) (string, error)
	stream func(n int, s grpc.ServerStream) error

	mu    sync.Mutex
	calls []metadata.MD // guarded by mu
}

func (s *server) count(ctx context.Context) int {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, md)
	return len(s.calls)
}

// seen returns the metadata of the calls so far.
func (s *server) seen() []metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]metadata.MD(nil), s.calls...)
}

const (
	unaryMethod  = "/test.Echo/Unary"
	clientMethod = "/test.Echo/Client"
	serverMethod = "/test.Echo/Server"
	bidiMethod   = "/test.Echo/Bidi"
)

func (s *server) desc() *grpc.ServiceDesc {
	stream := func(_ any, stream grpc.ServerStream) error { return s.stream(s.count(stream.Context()), stream) }
	return &grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, with grpc.UnaryServerInterceptor) (any, error) {
			in := &text{}
			if err := dec(in); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, _ any) (any, error) {
				out, err := s.unary(ctx, s.count(ctx), in.GetValue())
				return &text{Value: out}, err
			}
			if with == nil {
				return handle(ctx, in)
			}
			return with(ctx, in, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, handle)
		}}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Client", Handler: stream, ClientStreams: true},
			{StreamName: "Server", Handler: stream, ServerStreams: true},
			{StreamName: "Bidi", Handler: stream, ClientStreams: true, ServerStreams: true},
		},
	}
}

// policies is a base that lets tests fail as often as they like.
const policies = `
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: global}
spec: {ceilings: {maxAttempts: 10, minRetriesPerSecond: 1000, budgetRatio: 1}}
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo}
spec:
  match: {grpc: {method: /test.Echo/*}}
  maxAttempts: 5
  backoff: {base: 200ms, max: 10s, jitter: none}
  budget: {minRetriesPerSecond: 1000, successGate: off}
`

// endpoint is whose attempts are counted: all of the service's.
const endpoint = "shop/echo"

// rig is a server in memory and a channel to it under policies. Inside of a synctest bubble
// its time is virtual.
type rig struct {
	*policytest.Fake
	conn     *grpc.ClientConn
	server   *grpc.Server
	listener *bufconn.Listener
}

func newRig(t testing.TB, s *server, yaml string, dial ...grpc.DialOption) *rig {
	t.Helper()
	return newRigOf(t, s, yaml, nil, dial...)
}

func newRigOf(t testing.TB, s *server, yaml string, options []grpc.ServerOption, dial ...grpc.DialOption) *rig {
	t.Helper()
	f := policytest.New(t, policies+yaml)
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(options...)
	g.RegisterService(s.desc(), nil)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = g.Serve(listener)
	}()
	r := &rig{Fake: f, server: g, listener: listener}
	t.Cleanup(func() {
		g.Stop()
		<-over
	})
	r.conn = r.dial(t, "passthrough:///echo.shop:443", dial...)
	return r
}

// dial opens a channel under the rig's policies to its server, by whatever name.
func (r *rig) dial(t testing.TB, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.listener.DialContext(ctx) }),
	)
	conn, err := grpc.NewClient(target, append(policygrpc.ClientDialOptions(r.Client()), options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// repeatable is the context of a call that may be repeated.
func repeatable(ctx context.Context) context.Context {
	return policyd.WithCall(ctx, policyd.Idempotent(true))
}

// unary makes a unary call.
func (r *rig) unary(ctx context.Context, opts ...grpc.CallOption) (string, error) {
	out := &text{}
	err := r.conn.Invoke(ctx, unaryMethod, &text{Value: "ping"}, out, opts...)
	return out.GetValue(), err
}

func streamDesc(method string) *grpc.StreamDesc {
	return &grpc.StreamDesc{ClientStreams: method != serverMethod, ServerStreams: method != clientMethod}
}

// open opens a stream.
func (r *rig) open(ctx context.Context, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return r.conn.NewStream(ctx, streamDesc(method), method, opts...)
}

func send(tb testing.TB, s interface{ SendMsg(any) error }, values ...string) {
	tb.Helper()
	for _, v := range values {
		if err := s.SendMsg(&text{Value: v}); err != nil {
			tb.Fatalf("send %q: %v", v, err)
		}
	}
}

// receive receives until the end and returns what came and the error, io.EOF for none.
func receive(s interface{ RecvMsg(any) error }) (got []string, err error) {
	for {
		m := &text{}
		if err := s.RecvMsg(m); err != nil {
			return got, err
		}
		got = append(got, m.GetValue())
	}
}
