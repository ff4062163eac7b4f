// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// BenchmarkUnary compares a channel under policies with a bare one and one with gRPC's own
// retry policy.
func BenchmarkUnary(b *testing.B) {
	const retries = `{"methodConfig":[{"name":[{"service":"test.Echo"}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
	c := newClient(b)
	for name, dial := range map[string][]grpc.DialOption{
		"bare":   {grpc.WithDisableRetry()},
		"grpc":   {grpc.WithDefaultServiceConfig(retries)},
		"policy": policygrpc.ClientDialOptions(c),
	} {
		b.Run(name, func(b *testing.B) {
			listener := bufconn.Listen(1 << 20)
			s := &server{unary: func(_ context.Context, _ int, in string) (string, error) { return in, nil }}
			g := grpc.NewServer()
			g.RegisterService(s.desc(), nil)
			go func() { _ = g.Serve(listener) }()
			defer g.Stop()
			conn, err := grpc.NewClient("passthrough:///echo.shop", append(dial,
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			in, out := &text{Value: "x"}, &text{}
			b.ReportAllocs()
			for b.Loop() {
				if err := conn.Invoke(b.Context(), unaryMethod, in, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkInterceptor is what the interceptor costs beside the call.
func BenchmarkInterceptor(b *testing.B) {
	intercept := policygrpc.UnaryClientInterceptor(newClient(b))
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	conn, err := grpc.NewClient("passthrough:///echo.shop", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := intercept(b.Context(), unaryMethod, nil, nil, conn, invoke); err != nil {
			b.Fatal(err)
		}
	}
}

func newClient(b *testing.B) *policyd.Client {
	b.Helper()
	c, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close(context.WithoutCancel(b.Context())) })
	return c
}
