// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"sync"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

const (
	pollFileEvery = time.Second
	saveEvery     = time.Second
	// vouchEvery is how old the time of the last confirmation may be on disk: it is what the
	// age of the cache is counted from.
	vouchEvery = 5 * time.Minute
)

// keep does what must not hold up the watch: it writes the disk cache, looks after the
// policy file and tells when switches end.
func (c *Client) keep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var saved time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.disk.wake:
		case <-timer.C:
		}
		now := time.Now()
		next := c.announce(now)
		if c.file != nil && !c.remote.inUse.Load() {
			c.pollFile(now)
			next = min(next, pollFileEvery)
		}
		if c.disk.unsaved.Load() != nil {
			if rest := saved.Add(saveEvery).Sub(now); rest > 0 {
				next = min(next, rest)
			} else {
				c.flush()
				saved = now
			}
		}
		timer.Reset(next)
	}
}

// save has the state that policyd and this client agree on written soon.
func (c *Client) save(now time.Time) {
	if len(c.disk.file.Paths) == 0 {
		return
	}
	image := c.remote.Image(now)
	status := c.link.snapshot()
	image.Meta.AsOf, image.Meta.From = status.AsOf.Round(0), status.Source
	c.disk.unsaved.Store(image)
	c.remote.saved = status.AsOf
	c.stir()
}

// vouch has the time saved at which policyd last confirmed what is in force, if the one on
// disk is older than d.
func (c *Client) vouch(d time.Duration, now time.Time) {
	if c.remote.inUse.Load() && c.link.snapshot().AsOf.Sub(c.remote.saved) > d {
		c.save(now)
	}
}

// stir wakes the keeper.
func (c *Client) stir() {
	select {
	case c.disk.wake <- struct{}{}:
	default:
	}
}

// flush writes what has not been written yet.
func (c *Client) flush() {
	image := c.disk.unsaved.Swap(nil)
	if image == nil {
		return
	}
	if err := c.disk.file.Save(image); err != nil {
		c.disk.failed.Do(func() {
			c.cfg.logger.Warn("disk cache not written; later failures are not logged", "error", err)
		})
		return
	}
	c.disk.file.Sweep(time.Now())
}

// loadCache puts in force what the disk cache holds and reports whether it did.
func (c *Client) loadCache(now time.Time) bool {
	saved, err := c.disk.file.Load()
	if err != nil {
		c.cfg.logger.Warn("disk cache ignored; the next good policy replaces it", "error", err)
	}
	if saved == nil {
		return false
	}
	held, dropped := saved.Restore(now)
	if held.Epoch() == "" {
		return false
	}
	if dropped > 0 {
		c.cfg.logger.Warn("disk cache holds documents that this SDK cannot honour; they are left out", "documents", dropped)
	}
	c.remote.State, c.remote.source, c.remote.saved = held, sourceCache, saved.Meta.AsOf
	c.use(contentOf(&c.remote.State, now), sourceCache, now)
	c.link.update(func(s *Status) { s.AsOf = saved.Meta.AsOf })
	c.cfg.logger.Info("policies loaded from disk cache", "revision", held.Revision(), "age", age(now.Sub(saved.Meta.AsOf)))
	return true
}

// announced are the switches that were told to be on.
type announced struct {
	mu sync.Mutex
	on map[string]Switch
}

// announce tells of the switches that came into force or ended since the last time, and
// returns how long it is until the next one ends.
func (c *Client) announce(now time.Time) time.Duration {
	c.switches.mu.Lock()
	defer c.switches.mu.Unlock()
	on := map[string]Switch{}
	next := time.Hour
	switches := c.current.Load().switches
	for i := range switches {
		if left := switches[i].Ends.Sub(now); left > 0 {
			next = min(next, left)
		}
	}
	for _, sw := range activeSwitches(switches, c.cfg.instance, now) {
		on[sw.ID] = sw
		if old, told := c.switches.on[sw.ID]; !told || old != sw {
			c.cfg.logger.Warn("kill switch on", "id", sw.ID, "action", sw.Action, "scope", sw.Scope,
				"until", sw.ExpiresAt.UTC().Format(time.RFC3339), "incident", state.Printable(sw.Incident), "reason", state.Printable(sw.Reason))
			c.switchChanged(sw, true)
		}
	}
	for id, sw := range c.switches.on {
		if _, still := on[id]; !still {
			c.cfg.logger.Info("kill switch off", "id", id, "action", sw.Action, "scope", sw.Scope)
			c.switchChanged(sw, false)
		}
	}
	c.switches.on = on
	return next
}

// breakerTurned tells of changes of breakers' states; nil is none.
func (c *Client) breakerTurned(e *endpoint, ch *engine.BreakerChange) {
	for ; ch != nil; ch = ch.Next {
		c.turned(e, ch)
	}
}

func (c *Client) turned(e *endpoint, ch *engine.BreakerChange) {
	event := BreakerEvent{Endpoint: e.name, Host: ch.Host, From: ch.From.String(), To: ch.To.String(), Rule: ch.Rule.String()}
	attrs := []any{"endpoint", e.name, "from", event.From}
	if ch.Host != "" {
		attrs = append(attrs, "host", state.Printable(ch.Host))
	}
	if event.Rule != "" {
		attrs = append(attrs, "rule", event.Rule)
	}
	if ch.Until != 0 && ch.Until != engine.Never {
		event.Until = c.origin.Add(time.Duration(ch.Until))
		attrs = append(attrs, "until", event.Until.UTC().Format(time.RFC3339))
	}
	if ch.By != nil {
		attrs = append(attrs, "switch", ch.By.ID)
	}
	switch {
	case ch.To == engine.BreakerOpen:
		c.cfg.logger.Warn("breaker open", attrs...)
	case ch.To == engine.BreakerHalfOpen:
		c.cfg.logger.Info("breaker half-open", attrs...)
	case forced(ch.From) || forced(ch.To):
		// The line about the kill switch says it once for all endpoints.
		c.cfg.logger.Debug("breaker forced or released", append(attrs, "to", event.To)...)
	default:
		c.cfg.logger.Info("breaker closed", attrs...)
	}
	c.breakerChanged(event)
}

func forced(s engine.BreakerState) bool {
	return s == engine.BreakerForcedOpen || s == engine.BreakerForcedClosed
}
