// SPDX-License-Identifier: Apache-2.0

// Package policyqueue keeps calls that cannot be made now, and sends them later: in order per
// endpoint, within the retry budget, each under one idempotency key, also after a crash.
//
//	q, err := policyqueue.Open(policyqueue.Config{Dir: "/var/lib/notes/queue"})
//	…
//	api := &http.Client{Transport: q.Transport()}
//	req, err := http.NewRequestWithContext(policyqueue.Keep(ctx), "POST", url, body)
//	_, err = api.Do(req)
//	if errors.Is(err, policyd.ErrQueued) { // not done yet: kept on disk
//
// # Which calls are kept
//
// A call asks for it by [Keep], or by [Queue.Do], and the policy of its endpoint permits it by
// offlineQueue. It also needs an idempotency key: its own, or one by idempotency.key.auto.
//
// Such a call is first made as any other. It is kept if the policy ended it with
// attempts_exhausted, breaker_open, budget_exhausted, success_gate_closed, retries_disabled,
// retry_after_too_long or deadline_exceeded: failures that the policy calls worth a retry,
// where now is the wrong time. Any other answer or error reaches the caller as ever. So it
// does when the caller has gone, when another call is in progress around this one, and under
// [policyd.WithoutRetry]. While calls of an endpoint wait, further ones that may be kept join
// them without being sent, so that none overtakes.
//
// The caller of a kept call gets a [*policyd.Error] with the code queued and a QueueID. By
// then the call is on disk. One that finds maxItems or [Config].MaxBytes used up gets
// queue_full.
//
// # How they are sent
//
// Each endpoint sends one call at a time, oldest first. A send is a retry: breaker, kill
// switches, success gate and budget have to allow it, and the budget pays for it, so that the
// whole queue adds no more load than retries may. After a failure the next send waits, from a
// second up to a minute with jitter, or as long as the service asks. A call that joins while
// its endpoint answers pays for one send of a call that was never sent, in its place.
//
// A call is over with an answer: any status below 500 but 408, 425, 429, and 409 (as long as
// the service may still be at work on the key). Failures that the policy calls worth a retry
// are repeated until the call is offlineQueue.ttl old; any other failure five times. What
// became of a call, [Config].OnSettled is told. A crash between the answer and the removal
// sends a call again, under the same key. Where a policy no longer permits the queue, or is
// observed only, its calls wait.
//
// # What is stored
//
// Method, URL, body, key and the headers that [Config].Headers speaks of, readable by the
// user of the process alone. Credentials never: not Authorization, not Cookie, nor a URL with
// a password or token in it. [Config].Authorize, or the transport below, adds them when a call
// is sent.
package policyqueue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
	"github.com/policyd/policyd/sdk/go/internal/spool"
)

// Sender makes a call of [Queue.Do]. It must honour its context and be fit to run several
// times, one after another; [policyd.AttemptFrom] tells the idempotency key. Its errors are
// judged as those of the fn of [policyd.Do]; one marked by [policyd.Permanent] ends the call.
// Concurrent for several endpoints, or calls.
type Sender func(ctx context.Context, payload []byte) error

// Config configures a Queue. Only Dir is needed.
type Config struct {
	// Dir holds the calls. It is made if need be, for the user of the process alone; one
	// process at a time can have it open.
	Dir string
	// Client whose policies hold. Default policyd.Default.
	Client *policyd.Client
	// Base sends requests, for callers and from the queue. Default http.DefaultTransport.
	Base http.RoundTripper
	// Options of the transport that Queue.Transport returns.
	Options []policyd.TransportOption
	// Senders make the calls of Queue.Do, by endpoint. Calls of an endpoint without one wait.
	Senders map[string]Sender
	// Headers names further headers that may be stored. Those that describe the content, its
	// negotiation and conditions are; trace headers are left out, being of the first attempt.
	// A request with any other header is not kept, unless Authorize is set, which then has to
	// add what was left out.
	Headers []string
	// Authorize adds to a request that is sent from the queue what was not stored, such as
	// a token. An error counts as a failure of the send. Concurrent. Default none.
	Authorize func(req *http.Request) error
	// OnSettled is told of each call that has left the queue by itself, before it is removed
	// from the disk: after a crash perhaps twice. It runs on the goroutine that sends the
	// calls of the endpoint, and holds those up while it runs. Default none.
	OnSettled func(s Settled)
	// MaxBody is the longest body or payload that is kept, in bytes. Default 1 MiB.
	MaxBody int64
	// MaxBytes bounds all calls on disk together, in bytes. Default 64 MiB.
	MaxBytes int64
	// SendTimeout bounds a send from the queue, the reading of its answer by OnSettled
	// included. Default 30 s.
	SendTimeout time.Duration
	// Logger is told when an endpoint begins to keep calls and when it is empty again, and of
	// calls that are lost. Default slog.Default.
	Logger *slog.Logger
}

const (
	defaultMaxBody     = 1 << 20
	defaultMaxBytes    = 64 << 20
	defaultSendTimeout = 30 * time.Second
)

// Item is a call that waits.
type Item struct {
	ID       string // as the QueueID of the caller's error
	Endpoint string
	// Unmatched: no policy names the endpoint; it is a host.
	Unmatched           bool
	Key                 string // idempotency key
	QueuedAt, ExpiresAt time.Time
	Attempts            int // those before it was kept, and sends since the process started
}

// Settled is what became of a call.
type Settled struct {
	Item
	// Response is the final answer to a request, with its body unread; it is closed once
	// OnSettled returns. nil if there was none.
	Response *http.Response
	// Err is nil for a call that was answered; a *policyd.Error with the code queue_expired
	// for one that was dropped at its ttl; else the last failure.
	Err error
}

// Queue keeps calls in a directory and sends them when it is their time. Safe for concurrent
// use.
type Queue struct {
	cfg     Config
	client  *policyd.Client
	inner   http.RoundTripper // under the client's policies
	headers map[string]bool   // that may be stored
	spool   *spool.Spool
	core    *seam.Core
	origin  time.Time // of the lanes' time line
	random  func() uint64
	// begin starts the goroutine of a lane, abort ends the sends of all.
	begin  func(*lane)
	abort  context.CancelFunc
	detach func()

	mu       sync.Mutex
	lanes    map[laneName]*lane // guarded by mu
	closed   bool               // guarded by mu
	closing  chan struct{}
	running  sync.WaitGroup
	told     sync.Map // what was logged once
	tellings atomic.Int32
}

// errClosed says that a queue takes no calls any more.
var errClosed = errors.New("policyqueue: queue is closed")

// Open takes the directory and starts to send what is in it. It fails if the directory cannot
// be used, or is in use. Call Close at the end.
func Open(cfg Config) (*Queue, error) {
	if cfg.Dir == "" {
		return nil, errors.New("policyqueue: Config.Dir is empty")
	}
	setDefaults(&cfg)
	q := &Queue{
		cfg: cfg, client: cfg.Client, core: seam.Of(), origin: time.Now(), random: rand.Uint64,
		headers: storable(cfg.Headers), lanes: map[laneName]*lane{}, closing: make(chan struct{}),
	}
	q.inner = q.client.Transport(cfg.Base, cfg.Options...)
	ctx, abort := context.WithCancel(context.Background())
	q.abort = abort
	q.begin = func(l *lane) {
		q.running.Add(1)
		go q.drain(ctx, l)
	}
	if err := q.load(); err != nil {
		abort()
		return nil, err
	}
	q.detach = q.core.AddQueue(q.client, q.count)
	return q, nil
}

func setDefaults(cfg *Config) {
	if cfg.Client == nil {
		cfg.Client = policyd.Default()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = defaultMaxBody
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if cfg.SendTimeout <= 0 {
		cfg.SendTimeout = defaultSendTimeout
	}
}

func storable(more []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range append(contentHeaders(), more...) {
		set[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return set
}

type keepKey struct{}

// Keep returns a context whose HTTP calls through [Queue.Transport] may be kept, where the
// policy permits it.
func Keep(ctx context.Context) context.Context { return context.WithValue(ctx, keepKey{}, true) }

func mayKeep(ctx context.Context) bool { return ctx.Value(keepKey{}) != nil }

// now is the present moment on the lanes' time line.
func (q *Queue) now() engine.Instant { return engine.Instant(time.Since(q.origin)) }

// Len is the number of calls that wait, those being sent included.
func (q *Queue) Len() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lanes {
		n += l.plan.Len()
	}
	return n
}

// count is the number of calls of an endpoint that wait.
func (q *Queue) count(endpoint string, unmatched bool) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[laneName{endpoint, unmatched}]; l != nil {
		return l.plan.Len()
	}
	return 0
}

// Items returns the calls that wait, those of one endpoint oldest first.
func (q *Queue) Items() []Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make([]Item, 0, len(q.lanes))
	for _, l := range q.sorted() {
		for _, it := range l.plan.Items() {
			all = append(all, l.calls[it.ID].item(it.Sends))
		}
	}
	return all
}

// Remove takes a call out of the queue for good; OnSettled is not told. It fails for a call
// that is being sent, and for one that is not there.
func (q *Queue) Remove(id string) error {
	n, ok := q.take(id)
	if !ok {
		return errors.New("policyqueue: no call " + id + " waits, or it is being sent")
	}
	return q.spool.Remove(n)
}

func (q *Queue) take(id string) (uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lanes {
		for n, c := range l.calls {
			if c.ID == id && l.plan.Remove(n) {
				delete(l.calls, n)
				l.stir()
				return n, true
			}
		}
	}
	return 0, false
}

// Close ends the sending and gives the directory up; calls that wait stay in it. Sends in
// progress are waited for; when ctx ends first, they are cancelled, Close returns its error,
// and the rest ends by itself. Later calls are made, but not kept.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	close(q.closing)
	q.mu.Unlock()
	q.detach()
	done := make(chan error, 1)
	go func() {
		q.running.Wait()
		q.abort()
		done <- q.spool.Close()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		q.abort()
		return ctx.Err()
	}
}

// maxTold bounds what is remembered as logged: endpoints that no policy names are hosts, of
// which there may be any number.
const maxTold = 1_000

// first reports whether something happens to an endpoint for the first time, so that it is
// to be logged.
func (q *Queue) first(endpoint, event string) bool {
	if q.tellings.Load() >= maxTold {
		return false
	}
	_, told := q.told.LoadOrStore([2]string{endpoint, event}, true)
	if !told {
		q.tellings.Add(1)
	}
	return !told
}
