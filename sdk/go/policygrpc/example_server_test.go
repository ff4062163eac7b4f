// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// A server in the middle, whose calls are sent once where the caller repeats and the policy
// says nested.whenMarked: single-attempt.
func ExampleServerOptions() {
	server := grpc.NewServer(policygrpc.ServerOptions()...)
	defer server.Stop()

	// Or in a chain of one's own.
	other := grpc.NewServer(
		grpc.ChainUnaryInterceptor(policygrpc.IncomingUnary()),
		grpc.ChainStreamInterceptor(policygrpc.IncomingStream()),
	)
	defer other.Stop()
	fmt.Println(len(server.GetServiceInfo()), len(other.GetServiceInfo()))
	// Output: 0 0
}
