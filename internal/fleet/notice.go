// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// noticeEvery is the time within which changes make one notice.
const noticeEvery = 20 * time.Millisecond

// notice tells waiters that something changed, at most once per noticeEvery. Without a
// waiter a change costs one atomic load.
type notice struct {
	armed atomic.Bool

	// mu guards the fields below.
	mu      sync.Mutex
	ch      chan struct{} // nil: nobody waits
	pending bool          // fire is scheduled
}

func (n *notice) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	n.armed.Store(true)
	return n.ch
}

func (n *notice) changed() {
	if !n.armed.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil || n.pending {
		return
	}
	n.pending = true
	time.AfterFunc(noticeEvery, n.fire)
}

func (n *notice) fire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ch)
	n.ch, n.pending = nil, false
	n.armed.Store(false)
}
