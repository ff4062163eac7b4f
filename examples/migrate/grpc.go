// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"

	"google.golang.org/grpc"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// GRPCBefore dials with a retry policy in the service config.
func GRPCBefore(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	const retries = `{"methodConfig": [{
		"name": [{"service": "grpc.health.v1.Health"}],
		"retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.2s", "maxBackoff": "2s",
			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}],
		"retryThrottling": {"maxTokens": 20, "tokenRatio": 0.1}}`
	conn, err := grpc.NewClient(target, append(opts, grpc.WithDefaultServiceConfig(retries))...)
	return conn, err
}

// GRPCAfter dials a channel under policies.
func GRPCAfter(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(target, append(opts, policygrpc.DialOptions()...)...)
	return conn, err
}

// GRPCRepeatable says of the calls made with a context that they may be repeated, where
// their .proto does not.
func GRPCRepeatable(ctx context.Context) context.Context {
	ctx = policyd.WithCall(ctx, policyd.Idempotent(true))
	return ctx
}

// GRPCObserve lets policyd look on, above the retries of the channel.
func GRPCObserve(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	observed := grpc.WithChainUnaryInterceptor(policygrpc.UnaryClientInterceptor(nil)) // with POLICYD_MODE=observe
	return GRPCBefore(target, append(opts, observed)...)
}
