// SPDX-License-Identifier: Apache-2.0

package push

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// blockedAfter is the time from which on a send counts as blocked, once or twice over.
const blockedAfter = time.Second

// watchSends ends streams whose instances confirm what they do not read: a send to them
// blocks, and with it whoever sends to others.
func (h *Hub) watchSends(over <-chan struct{}) {
	tick := time.NewTicker(blockedAfter)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		for _, s := range h.blocked() {
			h.stats.cutOff.Add(1)
			// Not by end: whoever sends has the lock.
			_ = s.terminal.WriteStatus(status.New(codes.ResourceExhausted, "what was confirmed was not read"))
		}
	}
}

// blocked returns the streams that were in the same send the last time.
func (h *Hub) blocked() []*stream {
	h.roster.Lock()
	defer h.roster.Unlock()
	var all []*stream
	for s := range h.streams {
		n := s.sends.Load()
		if n%2 == 1 && n == s.watched {
			all = append(all, s)
		}
		s.watched = n
	}
	return all
}
