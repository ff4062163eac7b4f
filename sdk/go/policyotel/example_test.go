// SPDX-License-Identifier: Apache-2.0

package policyotel_test

import (
	"context"
	"fmt"
	"net/http"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policyotel"
)

// A client with metrics, and calls with a span per attempt.
func ExampleInstall() {
	client, err := policyd.New(policyotel.Install(), policyd.WithCacheDir(""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(context.Background())
	api := &http.Client{Transport: policyotel.ClientTransport(client, nil,
		policyd.Route("GET", "/v1/items/{id}", "shop/catalog/items.get"))}
	fmt.Println(api.Transport != nil)
	// Output: true
}

// Spans for the calls of the process's client.
func ExampleTransport() {
	api := &http.Client{Transport: policyotel.Transport(nil)}
	fmt.Println(api.Transport != nil)
	// Output: true
}
