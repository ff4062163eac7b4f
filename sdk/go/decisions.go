// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"slices"
	"sync"
	"time"
)

// maxDecisions bounds what a client remembers for its page.
const maxDecisions = 50

// decisions are the last ones that ended calls, or that would have under an observed policy.
type decisions struct {
	mu   sync.Mutex
	last []decided // guarded by mu; a ring once it is full
	next int       // guarded by mu; where the next one goes
}

// decided keeps no error of the application: it might hold on to much.
type decided struct {
	at       time.Time
	err      Error
	status   int
	observed bool
}

// note remembers a decision. Calls never wait for it: one that meets another is forgotten.
func (d *decisions) note(e *Error, status int, observed bool, at time.Time) {
	if !d.mu.TryLock() {
		return
	}
	defer d.mu.Unlock()
	if len(d.last) < maxDecisions {
		d.last = append(d.last, decided{})
	}
	kept := &d.last[d.next]
	*kept = decided{at: at, err: *e, status: status, observed: observed}
	kept.err.Err = nil
	d.next = (d.next + 1) % maxDecisions
}

// list returns the decisions, newest first.
func (d *decisions) list() []decided {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Concat(d.last[d.next:], d.last[:d.next])
	slices.Reverse(all)
	return all
}
