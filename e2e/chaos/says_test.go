// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import "sync"

// says is what the instances said, by instance.
type says struct {
	mu      sync.Mutex
	all     [][]event
	answers []event // the last of each instance
	sizes   map[int]event
	// last confirmation that names a hash
	last  []event
	count []int  // of the events that came
	up    []bool // has a connection
}

func newSays() *says {
	return &says{
		all: make([][]event, instances), answers: make([]event, instances), sizes: map[int]event{},
		last: make([]event, instances), up: make([]bool, instances), count: make([]int, instances),
	}
}

func (s *says) add(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case "answer":
		s.answers[e.Instance] = e
		return
	case "size":
		s.sizes[e.Instance/perFleet] = e
		return
	case "start":
		s.last[e.Instance], s.up[e.Instance] = event{}, false
	case "ack":
		s.last[e.Instance] = e
	case "open":
		s.up[e.Instance] = true
	case "closed":
		s.up[e.Instance] = false
	}
	s.count[e.Instance]++
	e.n = s.count[e.Instance]
	s.all[e.Instance] = append(s.all[e.Instance], e)
}

func (s *says) history(i int) []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]event(nil), s.all[i]...)
}

// forget drops what was checked and is not needed to judge what follows.
func (s *says) forget() {
	const recent = 300
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, all := range s.all {
		var kept []event
		acks := map[string]int{}
		for n, e := range all {
			if e.Kind == "ack" {
				acks[e.Epoch] = n
			}
		}
		for n, e := range all {
			switch {
			case n >= len(all)-recent, e.Kind == "start", e.Kind == "on", e.Kind == "off", e.Kind == "switch", e.Kind == "snapshot",
				e.Kind == "ack" && acks[e.Epoch] == n:
				kept = append(kept, e)
			}
		}
		s.all[i] = kept
	}
}
