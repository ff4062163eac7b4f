// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	policyd "github.com/policyd/policyd/sdk/go"
)

// RetryableBefore is a client of go-retryablehttp.
func RetryableBefore() *http.Client {
	client := retryablehttp.NewClient()
	client.RetryMax = 2
	client.RetryWaitMin, client.RetryWaitMax = 200*time.Millisecond, 2*time.Second
	client.Logger = nil
	api := client.StandardClient()
	return api
}

// RetryableAfter is a client under policies.
func RetryableAfter() *http.Client {
	api := &http.Client{Transport: policyd.Transport(nil)}
	return api
}

// RetryableObserve lets policyd look on, below the client that acts.
func RetryableObserve(client *retryablehttp.Client) *http.Client {
	client.HTTPClient.Transport = policyd.Transport(client.HTTPClient.Transport) // with POLICYD_MODE=observe
	return client.StandardClient()
}
