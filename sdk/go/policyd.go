// SPDX-License-Identifier: Apache-2.0

// Package policyd applies retry, budget and breaker settings that operators manage in
// policyd to the calls this process makes.
//
// Zero configuration:
//
//	http.DefaultClient.Transport = policyd.Transport(nil)
//
// With no POLICYD_ADDR the package runs on conservative built-in defaults and opens no
// connection. With it, the first call starts a background watch; calls never wait for
// policyd, and the last good policy is kept on disk across restarts.
package policyd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Version of this SDK.
const Version = "0.1.0"

// Client holds policies, budgets and breakers. Safe for concurrent use.
type Client struct {
	_ [0]func()

	// set once by New, read-only
	cfg    config
	link   *link
	notify *notifier
	cache  cacheFile
	file   *policyFile // nil without one
	random random
	origin time.Time // of the endpoints' time line

	current atomic.Pointer[snapshot]
	named   *table
	hosts   *table

	// mu guards the creation and the reload of endpoints, so that none misses a snapshot.
	mu         sync.Mutex
	reportedAt time.Time     // guarded by mu
	leftover   totals        // of endpoints that were dropped before a report; guarded by mu
	ready      chan struct{} // closed once something is in force
	isReady    bool          // guarded by mu

	// used by the watch alone once it runs
	held        holding
	heldWhole   bool // held is a point to resume from
	startSource string
	fromPolicyd atomic.Bool // what is in force comes from policyd
	// start and Close
	started   atomic.Bool
	lifecycle sync.Mutex
	closed    bool               // guarded by lifecycle
	stop      context.CancelFunc // guarded by lifecycle; nil before start
	closing   chan struct{}      // closed by Close
	running   sync.WaitGroup

	// the keeper's
	wake      chan struct{} // it has something to do
	unsaved   atomic.Pointer[savedState]
	cacheFail sync.Once

	announceMu sync.Mutex
	announced  map[string]Switch // switches that were told to be on; guarded by announceMu

	panicked sync.Map // parts whose panic was logged
}

var errClosed = errors.New("policyd: client is closed")

// New returns a client. It validates options but does not dial: the only errors are
// configuration errors, a policy file that cannot be read among them, reported all at once
// with errors.Join.
func New(opts ...Option) (*Client, error) {
	cfg, err := newConfig(os.LookupEnv, opts)
	if err != nil {
		return nil, err
	}
	c := newClient(cfg)
	if err := c.loadStart(); err != nil {
		return nil, err
	}
	return c, nil
}

var defaultClient = sync.OnceValue(func() *Client { //nolint:gochecknoglobals // the process-wide client
	cfg, err := newConfig(os.LookupEnv, nil)
	c := newClient(cfg)
	if err := errors.Join(err, c.loadStart()); err != nil {
		cfg.logger.Error("policyd configuration has errors; what is wrong is left out", "error", err)
	}
	return c
})

// Default returns the process-wide client built from the environment on first use. It never
// blocks and never fails: what is wrong in the environment is logged and left out. Status
// tells whether policyd was reached.
func Default() *Client { return defaultClient() }

func newClient(cfg config) *Client {
	state := StateStatic
	if len(cfg.addrs) > 0 {
		state = StateConnecting
	}
	c := &Client{
		cfg:         cfg,
		link:        &link{log: cfg.logger, status: Status{State: state, Since: time.Now(), Source: sourceBuiltIn}},
		notify:      newNotifier(cfg.logger),
		startSource: sourceBuiltIn,
		random:      rand.Float64,
		origin:      time.Now(),
		reportedAt:  time.Now(),
		named:       newTable(maxNamed),
		hosts:       newTable(maxUnmatched),
		announced:   map[string]Switch{},
		ready:       make(chan struct{}),
		closing:     make(chan struct{}),
		wake:        make(chan struct{}, 1),
	}
	c.current.Store(newSnapshot(cfg.namespace))
	if len(cfg.addrs) > 0 {
		c.cache = newCacheFile(&c.cfg)
	}
	if cfg.policyFile != "" {
		c.file = &policyFile{path: cfg.policyFile}
	}
	return c
}

// loadStart puts in force what this process can have without policyd: the disk cache, else
// the policy file, else what is built in.
func (c *Client) loadStart() error {
	now := time.Now()
	if c.loadCache(now) {
		return nil
	}
	if c.file != nil {
		next, _, err := c.file.read(now)
		if err != nil {
			return fmt.Errorf("policyd: policy file: %w", err)
		}
		c.use(*next, c.file.source(), now)
		return nil
	}
	if len(c.cfg.addrs) == 0 {
		c.setReady()
	}
	return nil
}

// use puts content of a source other than policyd in force.
func (c *Client) use(next content, source string, now time.Time) {
	changed := c.install(next, now)
	c.link.update(func(s *Status) {
		s.Revision, s.Offered, s.Source, s.LastErr = next.revision, next.revision, source, nil
	})
	c.setReady()
	c.announce(now)
	c.policyChanged(PolicyEvent{Revision: next.revision, Changed: changed})
}

func (c *Client) setReady() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isReady {
		c.isReady = true
		close(c.ready)
	}
}

// WaitReady blocks until a policy snapshot is in force (from policyd, file or disk cache) or
// ctx ends. Without an address it returns at once. Optional: use it in readiness probes, not
// in main.
func (c *Client) WaitReady(ctx context.Context) error {
	c.start()
	select {
	case <-c.ready:
		return nil
	default:
	}
	select {
	case <-c.ready:
		return nil
	case <-c.closing:
		return errClosed
	case <-ctx.Done():
		if err := c.link.snapshot().LastErr; err != nil {
			return fmt.Errorf("policyd: no policies yet (%w): %w", err, ctx.Err())
		}
		return fmt.Errorf("policyd: no policies yet: %w", ctx.Err())
	}
}

// start begins the background work, once.
func (c *Client) start() {
	if c.started.Load() {
		return
	}
	c.lifecycle.Lock()
	defer c.lifecycle.Unlock()
	if c.started.Load() || c.closed {
		return
	}
	c.started.Store(true)
	if len(c.cfg.addrs) == 0 && c.file == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.run(ctx, "keeper", c.keep)
	if len(c.cfg.addrs) > 0 {
		c.run(ctx, "watch", c.watch)
	}
}

// run keeps a loop going until it returns or ctx ends. A panic of ours must not reach the
// application: it is logged once and the loop starts again, later each time.
func (c *Client) run(ctx context.Context, name string, loop func(context.Context)) {
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			if c.survives(name, func() { loop(ctx) }) || !sleep(ctx, wait) {
				return
			}
		}
	}()
}

// survives runs f and reports whether it returned rather than panicked.
func (c *Client) survives(name string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, told := c.panicked.LoadOrStore(name, true); !told {
				c.cfg.logger.Error("policyd client panicked and goes on; later panics are not logged", "part", name, "panic", printable(p))
			}
		}
	}()
	f()
	return true
}

// sleep waits for d and reports whether ctx is still going.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Close flushes reports and the disk cache and stops the watch. Calls made later still work
// on the last good policy. When ctx ends first, Close returns its error and the rest stops
// by itself, within a second. Further calls wait for the same end.
func (c *Client) Close(ctx context.Context) error {
	c.lifecycle.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
	stop := c.stop
	c.lifecycle.Unlock()
	if stop == nil {
		return c.notify.wait(ctx)
	}
	stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.running.Wait()
		c.flush()
	}()
	select {
	case <-done:
		return c.notify.wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scopeNames writes scopes as text.
func scopeNames(scopes []engine.Scope) []string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return names
}
