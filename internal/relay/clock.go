// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"sync"
	"time"
)

const (
	// readings that an estimate is made of; heartbeats come every 15 s.
	readings = 8
	// A difference above this is a clock that was set; set back, if two messages say so.
	clockSet = 2 * time.Second
)

// clock is policyd's, estimated from what the upstream says, and carried on by this
// process's monotonic clock: setting this machine's clock changes nothing. The ends of
// switches are times of it. Safe for concurrent use.
type clock struct {
	origin time.Time // of this process, with its monotonic reading

	// mu guards the fields below.
	mu    sync.Mutex
	ahead [readings]time.Duration // of the latest messages; a late one says too little
	next  int
	known time.Duration // the estimate
	heard bool          // from an upstream, by this process
	late  bool          // the last message was, or the clock was set back
}

func newClock() *clock { return &clock{origin: time.Now()} }

// restore takes the difference that another process knew.
func (c *clock) restore(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = ahead
}

// fill forgets all readings but one. Guarded by mu.
func (c *clock) fill(ahead time.Duration) {
	for i := range c.ahead {
		c.ahead[i] = ahead
	}
}

// now returns policyd's time.
func (c *clock) now() time.Time { return c.at(time.Now()) }

// at returns policyd's time at a moment of this process.
func (c *clock) at(t time.Time) time.Time {
	return c.origin.Round(0).Add(t.Sub(c.origin)).Add(c.lead())
}

// lead is how far policyd's clock is ahead of this process's.
func (c *clock) lead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// seen takes the time in a message that came at now.
func (c *clock) seen(server, now time.Time) {
	if server.IsZero() {
		return
	}
	ahead := server.Sub(c.origin.Round(0).Add(now.Sub(c.origin)))
	c.mu.Lock()
	defer c.mu.Unlock()
	behind := c.known-ahead > clockSet
	if !c.heard || ahead-c.known > clockSet || behind && c.late {
		c.fill(ahead)
	}
	c.heard, c.late = true, behind && !c.late
	c.ahead[c.next%readings] = ahead
	c.next++
	// Messages are late, never early: the largest reading is the nearest.
	c.known = c.ahead[0]
	for _, a := range c.ahead {
		c.known = max(c.known, a)
	}
}
