// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"errors"
	"fmt"

	policyd "github.com/policyd/policyd/sdk/go"
)

// Calls that package policyqueue keeps end with these codes.
func ExampleError_queued() {
	err := error(&policyd.Error{Endpoint: "shop/notes/save", Code: policyd.CodeQueued, QueueID: "7f3a"})
	switch {
	case errors.Is(err, policyd.ErrQueued):
		fmt.Println("will be sent later:", err)
	case errors.Is(err, policyd.ErrQueueFull):
		fmt.Println("not kept")
	}
	for _, code := range []policyd.Code{policyd.CodeQueueFull, policyd.CodeQueueExpired} {
		fmt.Println(code)
	}
	// Output:
	// will be sent later: policyd: shop/notes/save: queued as 7f3a
	// queue_full
	// queue_expired
}
