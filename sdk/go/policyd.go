// SPDX-License-Identifier: Apache-2.0

// Package policyd applies retry, budget, breaker, hedging, concurrency and fallback settings
// that operators manage in policyd to the calls this process makes.
//
// Zero configuration:
//
//	http.DefaultClient.Transport = policyd.Transport(nil)
//
// With no POLICYD_ADDR the package runs on conservative built-in defaults and opens no
// connection. With it, the first call starts a background watch; calls never wait for
// policyd, and the last good policy is kept on disk across restarts.
//
// # Calls
//
// [Transport] puts an http.Client under policies, [Do] any function, package policygrpc a gRPC
// channel. Each call obeys the policy of its endpoint, namespace/service/endpoint, merged field
// by field from what operators saved for global, namespace, service and endpoint, on top of
// what is built in. [Client.Effective] tells each value and where it comes from. Calls that no
// endpoint names are kept per host.
//
// Without any policy: three attempts, waits drawn from 0 to 200 ms, then 400 ms; 429, 502, 503,
// 504, and connections that failed or were reset; only what is safe to repeat, or was not sent;
// retries for a tenth of the calls and two more in ten seconds, none while fewer than 90 % of
// the last hundred calls succeeded; the server's Retry-After up to 20 s. Time limits, breakers,
// hedging and fallback are off until a policy sets them.
//
// POST is repeated only with a key ([IdempotencyKey]) or where code or policy says that it may
// be ([Idempotent]).
//
// # Outcomes
//
// Answers and errors are those of the call itself, unless the policy changed the outcome: then
// the error is an [*Error], with a [Code] and the time at which trying again makes sense. For
// an HTTP answer, [OutcomeOf] tells the attempts and why there were no more.
//
// # Control
//
// [Default] is the client of the process, configured by the environment; [New] makes others, and
// [Using] picks one for a call. An operator's edit or kill switch is in force within a second,
// for calls that wait before a retry too. Without policyd the last good policies stay, and
// switches end on time; [Client.Status] tells.
//
//	POLICYD_ADDR                                          WithAddr
//	POLICYD_NAMESPACE, POLICYD_SERVICE                    WithService
//	POLICYD_INSTANCE                                      WithInstance
//	POLICYD_TARGETS                                       WithTargets
//	POLICYD_MODE                                          WithMode
//	POLICYD_FILE                                          WithPolicyFile
//	POLICYD_CACHE_DIR                                     WithCacheDir
//	POLICYD_TOKEN_FILE                                    WithTokenFile
//	POLICYD_CA_FILE, POLICYD_CERT_FILE, POLICYD_KEY_FILE  WithTLS
//	POLICYD_LOG                                           WithLogger
//
// Everything in this package is safe for concurrent use.
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
	"github.com/policyd/policyd/sdk/go/internal/state"
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
	file   *policyFile // nil without one
	random random
	origin time.Time // of the endpoints' time line

	current atomic.Pointer[snapshot]
	named   *table
	hosts   *table
	// mu guards the creation and the reload of endpoints, so that none misses a snapshot.
	mu       sync.Mutex
	reported reported // guarded by mu

	ready    readiness
	remote   remote
	disk     disk
	switches announced
	recent   decisions
	queues   queues
	life     life
	panicked sync.Map // parts whose panic was logged
}

// remote is what policyd sent. The watch alone uses it once it runs.
type remote struct {
	state.State
	source string // of the policies at the start, as Hello names it
	// saved is the time of confirmation that the disk cache has.
	saved time.Time
	// mu keeps sources from coming into force at once; inUse: policyd's has, and stays.
	mu    sync.Mutex
	inUse atomic.Bool
}

// disk is the disk cache as the keeper writes it.
type disk struct {
	file    state.File
	wake    chan struct{} // the keeper has something to do
	unsaved atomic.Pointer[state.Image]
	failed  sync.Once
}

// readiness says that something is in force.
type readiness struct {
	yes  chan struct{} // closed once it is
	once sync.Once
}

// life is the start and the end of the background work.
type life struct {
	started atomic.Bool
	mu      sync.Mutex
	closed  bool               // guarded by mu
	stop    context.CancelFunc // guarded by mu; nil before start
	closing chan struct{}      // closed by Close
	running sync.WaitGroup
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
	c.made()
	return c, nil
}

var defaultClient = sync.OnceValue(func() *Client { //nolint:gochecknoglobals // the process-wide client
	return lenient(nil)
})

// lenient makes a client of what is right in the environment and in opts.
func lenient(opts []Option) *Client {
	cfg, err := newConfig(os.LookupEnv, opts)
	c := newClient(cfg)
	if err := errors.Join(err, c.loadStart()); err != nil {
		cfg.logger.Error("policyd configuration has errors; what is wrong is left out", "error", err)
	}
	c.made()
	return c
}

// made tells of the new client.
func (c *Client) made() {
	if hook := c.cfg.hooks.OnClient; hook != nil {
		c.notify.guard(func() { hook(c) })
	}
}

// Default returns the process-wide client built from the environment on first use. It never
// blocks and never fails: what is wrong in the environment is logged and left out. Status
// tells whether policyd was reached.
func Default() *Client { return defaultClient() }

func newClient(cfg config) *Client {
	first := StateStatic
	if len(cfg.addrs) > 0 {
		first = StateConnecting
	}
	c := &Client{
		cfg:      cfg,
		link:     &link{log: cfg.logger, tokenFile: cfg.tokenFile, status: Status{State: first, Since: time.Now(), Source: sourceBuiltIn}},
		notify:   newNotifier(cfg.logger),
		random:   rand.Float64,
		origin:   time.Now(),
		named:    newTable(maxNamed),
		hosts:    newTable(maxUnmatched),
		reported: reported{at: time.Now()},
		ready:    readiness{yes: make(chan struct{})},
		remote:   remote{source: sourceBuiltIn},
		disk:     disk{wake: make(chan struct{}, 1)},
		life:     life{closing: make(chan struct{})},
	}
	c.current.Store(newSnapshot(cfg.namespace))
	if len(cfg.addrs) > 0 {
		c.disk.file = cacheFile(&c.cfg)
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
		c.file = nil // policyd's word goes before it, also when policyd is gone
		return nil
	}
	if c.file != nil {
		next, _, err := c.file.read(now)
		if err != nil {
			return fmt.Errorf("policyd: policy file: %w", err)
		}
		c.remote.source = sourceFile
		c.use(*next, c.file.source(), now)
		return nil
	}
	if len(c.cfg.addrs) == 0 {
		c.setReady()
	}
	return nil
}

// use puts content of a source other than policyd in force, unless policyd's already is.
func (c *Client) use(next content, source string, now time.Time) {
	c.remote.mu.Lock()
	defer c.remote.mu.Unlock()
	if c.remote.inUse.Load() {
		return
	}
	changed := c.install(next, now)
	c.link.update(func(s *Status) {
		s.Revision, s.Offered, s.Source, s.LastErr = next.revision, next.revision, source, nil
	})
	c.setReady()
	c.announce(now)
	c.stir() // for the end of a switch
	c.policyChanged(PolicyEvent{Revision: next.revision, Changed: changed})
}

// tellRejected logs documents that are not in force and joins them to an error, nil for none.
func (c *Client) tellRejected(rejected []state.Rejection) error {
	var errs []error
	for i := range rejected {
		r := &rejected[i]
		c.cfg.logger.Warn("policy rejected; the previous one stays", "rev", r.Revision, "scope", r.Scope,
			"field", r.Field, "reason", r.Reason, "sdk", Version)
		errs = append(errs, r)
	}
	return errors.Join(errs...)
}

func (c *Client) setReady() { c.ready.once.Do(func() { close(c.ready.yes) }) }

// WaitReady blocks until a policy snapshot is in force (from policyd, file or disk cache) or
// ctx ends. Without an address it returns at once. Optional: use it in readiness probes, not
// in main.
func (c *Client) WaitReady(ctx context.Context) error {
	c.start() //nolint:contextcheck // the watch outlives the caller
	select {
	case <-c.ready.yes:
		return nil
	default:
	}
	select {
	case <-c.ready.yes:
		return nil
	case <-c.life.closing:
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
	if c.life.started.Load() {
		return
	}
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	if c.life.started.Load() || c.life.closed {
		return
	}
	c.life.started.Store(true)
	if len(c.cfg.addrs) == 0 && c.file == nil && !c.cfg.keeps {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.life.stop = cancel
	c.run(ctx, "keeper", c.keep)
	if len(c.cfg.addrs) > 0 {
		c.run(ctx, "watch", c.watch)
	}
}

// run keeps a loop going until it returns or ctx ends. A panic of ours must not reach the
// application: it is logged once and the loop starts again, later each time.
func (c *Client) run(ctx context.Context, name string, loop func(context.Context)) {
	c.life.running.Add(1)
	go func() {
		defer c.life.running.Done()
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
				c.cfg.logger.Error("policyd client panicked and goes on; later panics are not logged", "part", name, "panic", state.Printable(p))
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
	c.life.mu.Lock()
	if !c.life.closed {
		c.life.closed = true
		close(c.life.closing)
	}
	stop := c.life.stop
	c.life.mu.Unlock()
	if stop == nil {
		return c.notify.wait(ctx)
	}
	stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.life.running.Wait()
		c.vouch(0, time.Now())
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
