// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/state"
)

// Hooks are told of decisions and state changes; nil ones are skipped. OnRetry and OnGiveUp
// run on the caller's goroutine. The state hooks run on one goroutine of the client behind a
// bounded queue that drops the oldest event, so a slow hook can never hold up calls or the
// watch. A panic is recovered and logged once.
type Hooks struct {
	OnRetry   func(ctx context.Context, e RetryEvent)
	OnGiveUp  func(ctx context.Context, e *Error)
	OnBreaker func(e BreakerEvent)
	OnPolicy  func(e PolicyEvent)
	OnSwitch  func(s Switch, active bool)
	// OnClient is given the client before New returns it, on New's goroutine.
	OnClient func(c *Client)
}

// and returns hooks that tell both, h first, also when one panics.
func (h Hooks) and(o Hooks) Hooks {
	return Hooks{
		OnRetry:   both2(h.OnRetry, o.OnRetry),
		OnGiveUp:  both2(h.OnGiveUp, o.OnGiveUp),
		OnBreaker: both(h.OnBreaker, o.OnBreaker),
		OnPolicy:  both(h.OnPolicy, o.OnPolicy),
		OnSwitch:  both2(h.OnSwitch, o.OnSwitch),
		OnClient:  both(h.OnClient, o.OnClient),
	}
}

func both[A any](f, g func(A)) func(A) {
	if f == nil || g == nil {
		if f == nil {
			f = g
		}
		return f
	}
	return func(a A) {
		defer g(a)
		f(a)
	}
}

func both2[A, B any](f, g func(A, B)) func(A, B) {
	if f == nil || g == nil {
		if f == nil {
			f = g
		}
		return f
	}
	return func(a A, b B) {
		defer g(a, b)
		f(a, b)
	}
}

// RetryEvent is told before the wait that precedes an attempt.
type RetryEvent struct {
	Endpoint string
	Next     Attempt
	Wait     time.Duration
	Cause    error
	Status   int // HTTP status of the last answer, 0 without one
	// Unmatched: no policy and no route names the endpoint, which is a host then. Metrics
	// should count it under one name: hosts can be many.
	Unmatched bool
}

// BreakerEvent is a change of a breaker's state.
type BreakerEvent struct {
	Endpoint, From, To string
	Host               string    // whose breaker it is under breaker.per: host; "" for that of the endpoint
	Rule               string    // what opened it; empty otherwise
	Until              time.Time // when an open breaker lets the first probe through
}

// PolicyEvent is a new revision, in force or rejected.
type PolicyEvent struct {
	Revision int64
	Changed  []string // endpoints in use whose effective policy changed
	Err      error    // what was rejected; nil when all of it is in force
}

// maxEvents bounds the queue of state hooks.
const maxEvents = 256

// notifier runs state hooks in order on one goroutine that lives only while there is work.
type notifier struct {
	log *slog.Logger

	mu      sync.Mutex
	queue   []func() // guarded by mu
	running bool     // guarded by mu
	idle    chan struct{}

	panicked sync.Once
}

func newNotifier(log *slog.Logger) *notifier {
	idle := make(chan struct{})
	close(idle)
	return &notifier{log: log, idle: idle}
}

// tell queues an event and never blocks; when the queue is full the oldest event is lost.
func (n *notifier) tell(event func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == maxEvents {
		copy(n.queue, n.queue[1:])
		n.queue = n.queue[:maxEvents-1]
	}
	n.queue = append(n.queue, event)
	if !n.running {
		n.running = true
		n.idle = make(chan struct{})
		go n.run()
	}
}

func (n *notifier) run() {
	ended := false
	defer func() {
		if !ended { // a hook left by runtime.Goexit, as testing.T.FailNow does
			go n.run()
		}
	}()
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.running, n.queue = false, nil
			close(n.idle)
			n.mu.Unlock()
			ended = true
			return
		}
		event := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		n.guard(event)
	}
}

// guard runs a hook and survives its panic.
func (n *notifier) guard(hook func()) {
	defer func() {
		if p := recover(); p != nil {
			n.panicked.Do(func() { n.log.Error("hook panicked; later panics are not logged", "panic", state.Printable(p)) })
		}
	}()
	hook()
}

// wait returns once every queued hook has run, or ctx ends.
func (n *notifier) wait(ctx context.Context) error {
	n.mu.Lock()
	idle := n.idle
	n.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retrying tells OnRetry on the caller's goroutine.
func (c *Client) retrying(ctx context.Context, e RetryEvent) {
	if hook := c.cfg.hooks.OnRetry; hook != nil {
		c.notify.guard(func() { hook(ctx, e) })
	}
}

// gaveUp tells OnGiveUp on the caller's goroutine.
func (c *Client) gaveUp(ctx context.Context, e *Error) {
	if hook := c.cfg.hooks.OnGiveUp; hook != nil {
		c.notify.guard(func() { hook(ctx, e) })
	}
}

func (c *Client) breakerChanged(e BreakerEvent) {
	if hook := c.cfg.hooks.OnBreaker; hook != nil {
		c.notify.tell(func() { hook(e) })
	}
}

func (c *Client) policyChanged(e PolicyEvent) {
	if hook := c.cfg.hooks.OnPolicy; hook != nil {
		c.notify.tell(func() { hook(e) })
	}
}

func (c *Client) switchChanged(s Switch, active bool) {
	if hook := c.cfg.hooks.OnSwitch; hook != nil {
		c.notify.tell(func() { hook(s, active) })
	}
}
