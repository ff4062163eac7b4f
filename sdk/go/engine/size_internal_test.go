// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"unsafe"
)

// An endpoint with a policy of its own takes at most 1.5 KiB: 760 bytes, with 8 of the
// allocator, and 512, a cell, the gate's ring and small change.
func TestSize_of_what_an_endpoint_keeps(t *testing.T) {
	if n := unsafe.Sizeof(Endpoint{}); n > 760 {
		t.Errorf("Endpoint takes %d bytes", n)
	}
	if n := unsafe.Sizeof(Policy{}); n > 512 {
		t.Errorf("Policy takes %d bytes", n)
	}
}
