// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math/rand/v2"
	"sync"
	"time"
)

// gate bounds how many streams there are and how fast they come.
type gate struct {
	// set once, read-only
	limit int
	rate  float64 // per second

	// mu guards the fields below.
	mu     sync.Mutex
	open   int
	tokens float64
	// turned is how many were turned away lately, less those that found a place since: they
	// all come back.
	turned float64
	at     time.Duration
}

// Waits that those who are turned away are told.
const (
	minTurnedAway = time.Second
	maxTurnedAway = 30 * time.Second
)

func newGate(limit, rate int) *gate {
	return &gate{limit: limit, rate: float64(rate), tokens: float64(rate)}
}

// enter admits a stream, or says how long to stay away.
func (g *gate) enter(now time.Duration) (wait time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gained := (now - g.at).Seconds() * g.rate
	g.at = now
	g.tokens = min(g.tokens+gained, g.rate)
	g.turned = max(g.turned-gained, 0)
	if g.open < g.limit && g.tokens >= 1 {
		g.open++
		g.tokens--
		return 0, true
	}
	g.turned++
	// Long enough for all that wait to be admitted one after the other, at a random place.
	span := minTurnedAway + time.Duration(g.turned/g.rate*float64(time.Second))
	span = min(span, maxTurnedAway)
	return minTurnedAway/2 + rand.N(span), false
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}
