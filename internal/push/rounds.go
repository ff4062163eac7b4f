// SPDX-License-Identifier: Apache-2.0

package push

import "time"

// startRounds has the shards visit the streams of the views that were touched, and of those
// whose time has come. After a round a view waits with edits for the next one, and the longer
// the more streams there are; an urgent round waits for nothing. The state of a view is the
// newest all the while: who looks at a stream for another reason brings it there.
func (h *Hub) startRounds(touched map[*view]struct{}, readers int64, urgent bool) {
	due := make(map[*view]struct{})
	h.mu.Lock()
	now := h.now()
	pause := min(time.Duration(readers)*perRound, longestRound)
	for v := range touched {
		h.views.later[v] = struct{}{}
		v.pause = max(v.pause, pause)
	}
	for v := range h.views.later {
		if _, fresh := touched[v]; v.nextRound > now && (!urgent || !fresh) {
			continue
		}
		delete(h.views.later, v)
		due[v] = struct{}{}
		v.nextRound, v.pause = now+v.pause, 0
	}
	h.mu.Unlock()
	if len(due) == 0 {
		return
	}
	for _, s := range h.shards {
		s.dirty(due, urgent)
	}
}

// nextRound returns how long it is until a view that waits has its round.
func (h *Hub) nextRound() (wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for v := range h.views.later {
		if left := max(v.nextRound-now, 0); !ok || left < wait {
			wait, ok = left, true
		}
	}
	return wait, ok
}
