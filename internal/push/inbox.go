// SPDX-License-Identifier: Apache-2.0

package push

import (
	"sync"
	"time"

	"github.com/policyd/policyd/internal/policy"
)

// inbox holds published updates until they are applied.
type inbox struct {
	wake chan struct{} // one slot

	// mu guards the fields below.
	mu      sync.Mutex
	updates []policy.Update
	since   time.Duration // when the oldest of them came
	urgent  bool
	flushed time.Duration // when they were last taken
	ever    bool
}

func (b *inbox) put(u policy.Update, now time.Duration) {
	b.mu.Lock()
	if u.Reset {
		b.updates = b.updates[:0]
	}
	if len(b.updates) == 0 {
		b.since = now
	}
	b.updates = append(b.updates, u)
	b.urgent = b.urgent || u.Reset
	for i := range u.Changes {
		b.urgent = b.urgent || u.Changes[i].Urgent
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// wait returns how long the updates may still wait for more. The first after a pause does
// not wait at all, so that a single edit is not slowed by the gathering of bursts.
func (b *inbox) wait(now, gather time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.urgent || !b.ever || len(b.updates) == 0 {
		return 0
	}
	return b.flushed + gather - now
}

func (b *inbox) take(now time.Duration) (updates []policy.Update, urgent bool, since time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	updates, urgent = b.updates, b.urgent
	b.updates, b.urgent = nil, false
	b.flushed, b.ever = now, true
	return updates, urgent, b.since
}
