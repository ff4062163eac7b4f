// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

// One line each puts HTTP, any function, and a gRPC channel under the policies of their
// endpoints.
func Example() {
	ctx := context.Background()
	fetchRates := func(context.Context) (map[string]float64, error) { return map[string]float64{"EUR": 1.08}, nil }
	creds := grpc.WithTransportCredentials(insecure.NewCredentials())

	api := &http.Client{Transport: policyd.Transport(nil)}
	rates, err := policyd.Do(ctx, "fx/rates/get", fetchRates)
	opts := append(policygrpc.DialOptions(), creds) // of grpc.NewClient

	fmt.Println(api.Transport != nil, rates, err, len(opts) > 1)
	// Output: true map[EUR:1.08] <nil> true
}
