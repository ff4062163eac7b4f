// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// A channel under the policies of the process's client.
func ExampleDialOptions() {
	conn, err := grpc.NewClient("dns:///payments.shop:443",
		append(policygrpc.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println(conn.Target())
	// Output: dns:///payments.shop:443
}

// A call that creates something is repeated because it carries a key. The first answer is
// lost on its way.
func ExampleClientDialOptions() {
	listener := bufconn.Listen(1 << 16)
	calls := 0
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if calls++; calls == 1 {
				return nil, status.Error(codes.Unavailable, "going down")
			}
			return handler(ctx, req)
		}))
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	client, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(context.Background())
	conn, err := grpc.NewClient("passthrough:///health.shop", append(policygrpc.ClientDialOptions(client),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	ctx := policyd.WithCall(context.Background(), policyd.IdempotencyKey("order-42"))
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	var stopped *policyd.Error
	if errors.As(err, &stopped) {
		fmt.Println("stopped by", stopped.Scope, "because", stopped.Code)
		return
	}
	fmt.Println(answer.GetStatus(), "after", calls, "attempts")
	// Output: SERVING after 2 attempts
}

// Interceptors alone, for channels that are dialled elsewhere.
func ExampleUnaryClientInterceptor() {
	conn, err := grpc.NewClient("dns:///payments.shop:443",
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(policygrpc.UnaryClientInterceptor(nil)),
		grpc.WithChainStreamInterceptor(policygrpc.StreamClientInterceptor(nil)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(conn.Close())
	// Output: <nil>
}
