// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// State of the link to policyd.
type State string

// States of the link. In every one of them calls proceed.
const (
	StateStatic     State = "static"     // no address configured; built-in or file policy
	StateConnecting State = "connecting" // never had an answer from policyd yet
	StateLive       State = "live"       // watch open, everything confirmed
	StateStale      State = "stale"      // watch lost, or its relay is; last good policy in force since AsOf
	StateRejected   State = "rejected"   // newest revision invalid for this SDK; older one kept
)

// Status is what a client is doing now.
type Status struct {
	State    State
	Since    time.Time // of State
	Revision int64     // newest revision that is in force as a whole
	Offered  int64     // newest revision seen (differs when rejected)
	AsOf     time.Time // last time policyd confirmed what is in force; zero for never
	Source   string    // "policyd.prod:7400", "disk cache", "file policies.json", "built-in"
	Switches []Switch  // kill switches in force here
	LastErr  error     // why State is what it is; nil when all is well
}

// Switch is an active kill switch as the SDK sees it.
type Switch struct {
	ID, Action, Scope, Reason, Incident string
	ExpiresAt                           time.Time
}

// Sources of policies, as Hello and Status name them.
const (
	sourceBuiltIn = "built-in"
	sourceCache   = "disk cache"
	sourceFile    = "file"
)

// link is what is known of the connection to policyd. Safe for concurrent use.
type link struct {
	log       *slog.Logger
	tokenFile string

	mu     sync.Mutex
	status Status // guarded by mu; without Switches
	told   string // guarded by mu; the last failure that was logged
}

func (l *link) snapshot() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// update changes the status and keeps Since in step.
func (l *link) update(change func(*Status)) (before, after Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.status
	change(&l.status)
	if l.status.State != before.State {
		l.status.Since = time.Now()
	}
	return before, l.status
}

// tell reports whether a failure is another one than the last that was told; "" forgets it.
func (l *link) tell(failure string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := failure != "" && failure != l.told
	l.told = failure
	return fresh
}

// confirmed notes that policyd vouches for what was in force at asOf: now, or earlier if it
// is a relay that is cut off.
func (l *link) confirmed(held *state.State, addr string, asOf, now time.Time) {
	rejected := held.Rejections()
	before, after := l.update(func(s *Status) {
		s.State, s.LastErr = StateLive, nil
		if len(rejected) > 0 {
			s.State, s.LastErr = StateRejected, &rejected[0]
		}
		if now.Sub(asOf) >= silence {
			s.State, s.LastErr = StateStale, errCutOff
		}
		s.Revision, s.Offered, s.AsOf, s.Source = held.Complete(), held.Revision(), asOf, addr
	})
	l.tell("")
	switch linked := before.State == StateLive || before.State == StateRejected; {
	case after.State == StateStale && before.State != StateStale:
		l.log.Warn("the relay is cut off from policyd; keeping the last good policy", "addr", addr, "revision", held.Revision(), "age", age(now.Sub(asOf)))
	case after.State == StateStale:
	case !linked:
		l.log.Info("policyd connected", "addr", addr, "revision", held.Revision(), "state", string(after.State))
	case before.State != after.State:
		l.log.Info("policyd state changed", "state", string(after.State), "revision", held.Revision())
	}
}

// lost notes that there is no stream, and why. One line is logged per kind of failure.
func (l *link) lost(addr string, err error, refused bool) {
	before, after := l.update(func(s *Status) {
		s.LastErr = err
		if s.State != StateConnecting {
			s.State = StateStale
		}
	})
	using := after.Source
	if after.Source != sourceBuiltIn {
		using = fmt.Sprintf("%s rev %d", after.Source, after.Revision)
		if !after.AsOf.IsZero() {
			using += ", " + age(time.Since(after.AsOf)) + " old"
		}
	}
	switch {
	case errors.Is(err, errGoAway):
		l.log.Info("policyd asked to reconnect; keeping the last good policy until then", "addr", addr, "revision", after.Revision)
	case refused:
		if l.tell("refused") {
			l.log.Warn("policyd refused the token; retrying every 30s", "addr", addr, "file", cmp.Or(l.tokenFile, "none"), "using", using, "error", err)
		}
	case errors.Is(err, state.ErrLeft):
		if l.tell("left") {
			l.log.Warn("policyd offers data that others have replaced; keeping the last good policy", "addr", addr, "using", using, "error", err)
		}
	case before.State == StateLive || before.State == StateRejected:
		l.tell("unreachable")
		l.log.Warn("policyd connection lost; keeping the last good policy", "addr", addr, "revision", after.Revision, "error", err)
	case l.tell("unreachable"):
		l.log.Warn("policyd unreachable; retrying", "addr", addr, "using", using, "error", err)
	default:
		l.log.Debug("policyd still unreachable", "addr", addr, "error", err)
	}
}

// closed notes that there will be no stream any more: what is in force is not confirmed again.
func (l *link) closed() {
	l.update(func(s *Status) {
		if s.State == StateLive || s.State == StateRejected {
			s.State, s.LastErr = StateStale, errClosed
		}
	})
}

// age writes how old something is for people: 12s, 4m, 3h, 5d.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Status returns a snapshot for health endpoints and logs. It takes no lock that a call or
// the network holds.
func (c *Client) Status() Status {
	s := c.link.snapshot()
	s.Switches = activeSwitches(c.current.Load().switches, c.cfg.instance, time.Now())
	return s
}

// activeSwitches returns those that act on something of this instance, soonest end first.
func activeSwitches(all []engine.Switch, instance string, now time.Time) []Switch {
	var active []Switch
	for i := range all {
		if sw := &all[i]; now.Before(sw.Ends) && sw.Selects(sw.Scope, engine.Sheddable, instance) {
			active = append(active, shown(sw))
		}
	}
	slices.SortStableFunc(active, func(a, b Switch) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ID, b.ID))
	})
	return active
}

// shown is a switch as applications see it.
func shown(sw *engine.Switch) Switch {
	return Switch{
		ID: sw.ID, Action: string(sw.Action), Scope: string(sw.Scope),
		Reason: sw.Reason, Incident: sw.Incident, ExpiresAt: sw.Ends.Round(0),
	}
}
