// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// call is one call on its way: the shell around the engine's decisions. It belongs to one
// goroutine and is gone when its method returns: what others may keep is in its record.
type call struct {
	client    *Client
	ep        *endpoint
	engine    engine.Call
	record    *record       // nil until the first attempt
	http      bool          // or a function
	first     *http.Request // over HTTP: room for that of the first attempt
	inherited *callConfig
	began     engine.Instant
	waited    time.Duration
	key       string
	tries     int
	quiet     bool
	passive   bool
	around
	ended bool         // with code
	last  error        // of the attempt before
	kept  *seam.Resend // the call was made before; nil: it was not
	// decided is what a race of attempts came to.
	decided  *engine.Decision
	code     Code
	revision int64
}

// around is what a call is made within.
type around struct {
	inner    bool // an attempt of another call
	repeated bool // what it is made for may be repeated further up
}

// now is the present moment on the endpoints' time line.
func (c *Client) now() engine.Instant { return engine.Instant(time.Since(c.origin)) }

// wall is a moment of the endpoints' time line as a time of day, zero for 0.
func (c *Client) wall(t engine.Instant) time.Time {
	if t == 0 || t == engine.Never {
		return time.Time{}
	}
	return c.origin.Add(time.Duration(t)).Round(0)
}

// init prepares a call; m is the mark of its context, if any, and cfg its options.
func (k *call) init(c *Client, ep *endpoint, m *mark, cfg *callConfig) {
	p := ep.Policy()
	k.client, k.ep, k.tries = c, ep, p.MaxAttempts
	k.passive = c.cfg.mode != Enforce || p.Observe
	if outer := m.running(); outer != nil && !outer.passive {
		k.inner = outer.quiet || outer.tries > 1 // what is to be sent once is not repeated within
		k.repeated = outer.repeated || outer.tries > 1
	}
	if cfg != nil && cfg.marked {
		k.repeated = true
		k.inner = k.inner || p.Extras != nil && p.Extras.Nested.SingleAttempt
	}
	if k.inner || cfg != nil && cfg.oneTry {
		k.quiet, k.tries = true, 1
	}
	k.inherited, k.kept = m.options(), m.resend()
}

// begin asks for the first attempt. When it is refused, the error says why and the call is
// over.
func (k *call) begin(ctx context.Context, o engine.CallOptions) error {
	return k.beginOr(ctx, nil, o)
}

// put makes the record of the call; ctx is the caller's.
func (k *call) put(ctx context.Context) *mark {
	var r *record
	if k.http {
		first := new(firstSend)
		k.first, r = &first.req, &first.record
	} else {
		r = new(record)
	}
	r.first.Context, r.first.config, r.first.of, r.first.number = ctx, k.inherited, r, 1
	r.ep, r.key, r.tries, r.quiet, r.passive, r.repeated = k.ep, k.key, few(k.tries), k.quiet, k.passive, k.repeated
	k.record = r
	return &r.first
}

// beginOr is begin for a caller that may also leave by cancelled.
func (k *call) beginOr(ctx context.Context, cancelled <-chan struct{}, o engine.CallOptions) error {
	var d *engine.Decision
	latched, again := false, k.kept != nil && k.kept.Paid
	if !again {
		d, k.began, latched = k.ep.BeginLatched(&k.engine)
	}
	if !latched {
		k.began = k.client.now()
		if end, ok := ctx.Deadline(); ok {
			o.Deadline = max(1, k.client.instant(end))
		}
		o.NoRetry = k.quiet
		if again {
			d = k.ep.Again(&k.engine, k.began, o)
		} else if d = k.ep.Begin(&k.engine, k.began, o); !d.Proceed {
			k.latch()
		}
	}
	if d.Queued {
		k.note(d)
		var gone error
		if d, gone = k.queue(ctx, cancelled); gone != nil {
			return gone
		}
	}
	k.note(d)
	if d.Proceed {
		k.starts(k.put(ctx))
		return nil
	}
	k.end(Code(d.Code))
	e := k.failure(d, nil, k.began)
	if k.kept == nil { // whose hook was called when it was kept; it is asked for again and again
		k.client.recent.note(e, 0, false, k.client.wall(k.began))
		k.client.gaveUp(ctx, e)
	}
	return e
}

// latchFor is how long an endpoint that refuses thick and fast does so without a look at the
// clock, and how late a timer may be before that is too long.
const latchFor = 50 * time.Millisecond

// latch spares the refusals that follow this one the clock, if the engine agrees.
func (k *call) latch() {
	if release, ok := k.ep.Latch(k.began, latchFor); ok {
		time.AfterFunc(latchFor, release)
	}
}

// settle takes the outcome of an attempt.
func (k *call) settle(o engine.Outcome) engine.Decision {
	if k.decided != nil {
		return k.settled(o)
	}
	k.observeHedge()
	if o.Kind == engine.OutcomeOK && k.engine.Succeed() {
		return engine.Decision{}
	}
	d := k.engine.Settle(k.client.now(), o)
	k.note(d)
	return *d
}

// note passes on what happened to the breaker.
func (k *call) note(d *engine.Decision) {
	if d.Breaker != nil {
		k.client.breakerTurned(k.ep, d.Breaker)
	}
}

// end makes the outcome final.
func (k *call) end(code Code) {
	k.code, k.revision, k.ended = code, k.client.revision(), true
	if r := k.record; r != nil {
		r.attempts, r.waited, r.code, r.revision = few(k.sends()), k.waited, k.code, k.revision
		r.ended.Store(true)
	}
}

// sends is how many attempts were made.
func (k *call) sends() int {
	if k.record == nil { // refused
		return 0
	}
	return k.engine.Attempts()
}

// stop ends a call that makes no further attempt, and returns the error that says so: nil
// when the policy did not change the outcome.
func (k *call) stop(ctx context.Context, d *engine.Decision, last error) error {
	code := Code(d.Code)
	if k.quiet {
		code = ""
	}
	now := k.client.now()
	if d.Observed && code != "" {
		k.client.recent.note(k.failure(d, nil, now), statusOf(last), true, k.client.wall(now))
		code = ""
	}
	k.end(code)
	if code == "" {
		return nil
	}
	e := k.failure(d, last, now)
	k.client.recent.note(e, statusOf(last), false, k.client.wall(now))
	k.client.gaveUp(ctx, e)
	if code == CodeNotSafe && !k.ep.toldUnsafe.Swap(true) {
		k.client.cfg.logger.Info("a failed call is not repeated: it is not idempotent", "endpoint", k.ep.name)
	}
	return e
}

// panicked ends a call whose attempt did not return: it counts as a failure, and whatever
// the call holds goes back.
func (k *call) panicked() {
	k.settle(engine.Outcome{Kind: engine.OutcomePanic})
	k.engine.Abandon(k.client.now())
	k.end("")
}

// after settles an attempt and, when there is to be another one, waits until it may go
// out. Otherwise the call is over: err is nil if the result of the attempt is the result
// of the call. prepare, if any, readies the next attempt; it is called at the last moment.
func (k *call) after(ctx context.Context, cancelled <-chan struct{}, s *sent, o engine.Outcome, prepare func(context.Context) error) (again bool, err error) {
	if s.err != nil && ctx.Err() != nil {
		k.settle(engine.Outcome{Kind: engine.OutcomeCancelled})
		return false, k.left(ctx, s.err)
	}
	d := k.settle(o)
	if k.kept != nil {
		k.kept.Settled(o, d.Code != "" && d.Code != engine.CodeConflict)
	}
	if d.Retry {
		k.last = s.failure()
		k.retrying(ctx, &d, k.last, s.status())
		s.hold()
		switch k.wait(ctx, cancelled, &d, prepare) {
		case restOver:
			s.discard()
			return true, nil
		case restGone:
			s.discard()
			return false, k.left(ctx, nil)
		case restStopped:
		}
	}
	return false, k.finish(ctx, s, &d)
}

// finish ends a call that makes no further attempt.
func (k *call) finish(ctx context.Context, s *sent, d *engine.Decision) error {
	if s.cut != nil && s.cut.overall && d.Code != "" {
		d.Code = engine.CodeDeadline
	}
	var err error
	if d.Code != "" {
		err = k.stop(ctx, d, s.failure())
	} else {
		k.end("")
	}
	if s.err != nil {
		if err == nil {
			err = s.err
		}
		return err
	}
	s.release(k)
	return nil
}

// rest is how the wait before a retry ended.
type rest uint8

const (
	restOver    rest = iota // send the retry
	restStopped             // make no retry after all; the decision says why
	restGone                // the caller went away
)

// wait sleeps until the retry of decision d may go out. It ends early when ctx or cancelled
// does, and when a kill switch turns against the retry. If there is to be none, d says why.
func (k *call) wait(ctx context.Context, cancelled <-chan struct{}, d *engine.Decision, prepare func(context.Context) error) rest {
	began := k.client.now()
	defer func() { k.waited += k.client.now().Sub(began) }()
	timer := time.NewTimer(d.Wait)
	defer timer.Stop()
	for {
		// What came into force since the decision is looked at as well.
		changed := k.client.changed()
		*d = *k.engine.Recheck(k.client.now())
		if k.note(d); !d.Retry {
			return restStopped
		}
		select {
		case <-changed:
			continue
		case <-timer.C:
			if prepare != nil && prepare(ctx) != nil {
				if ctx.Err() != nil {
					k.note(k.engine.Abandon(k.client.now()))
					return restGone
				}
				*d = *k.engine.BodyLost(k.client.now())
				k.note(d)
				return restStopped
			}
			*d = *k.engine.Resume(k.client.now())
			if k.note(d); !d.Proceed {
				return restStopped
			}
			return restOver
		case <-ctx.Done():
		case <-cancelled:
		}
		k.note(k.engine.Abandon(k.client.now()))
		return restGone
	}
}

// left ends a call whose caller went away, and returns the error for it. err is that of the
// attempt that was cut, nil during a wait. After an earlier failure it tells both.
func (k *call) left(ctx context.Context, err error) error {
	k.end("")
	if k.last == nil {
		return err
	}
	e := &goneError{endpoint: k.ep.name, attempts: k.sends(), ctx: ctx.Err(), last: k.last}
	if e.ctx == nil {
		e.ctx = errRequestCancelled
	} else if cause := context.Cause(ctx); !errors.Is(e.ctx, cause) {
		e.cause = cause
	}
	if err != nil && !errors.Is(err, e.ctx) && (e.cause == nil || !errors.Is(err, e.cause)) {
		e.last = err
	}
	return e
}

var errRequestCancelled = errors.New("request cancelled")

// retrying tells the hook of the wait that comes.
func (k *call) retrying(ctx context.Context, d *engine.Decision, cause error, status int) {
	if k.client.cfg.hooks.OnRetry == nil {
		return
	}
	next := Attempt{Number: k.engine.Attempts() + 1, Max: k.tries, IdempotencyKey: k.key}
	k.client.retrying(ctx, RetryEvent{
		Endpoint: k.ep.name, Next: next, Wait: d.Wait, Cause: cause, Status: status, Unmatched: k.ep.unmatched,
	})
}

// next returns the context of a further attempt.
func (k *call) next(ctx context.Context) *mark {
	m := &mark{Context: ctx, config: k.inherited, of: k.record, number: few(k.engine.Attempts())}
	k.starts(m)
	return m
}

// starts tells of an attempt that starts.
func (k *call) starts(m *mark) {
	if tell := k.client.cfg.sent; tell != nil {
		tell(k.ep, m.attempt())
	}
}

// limit returns how long the attempt in progress may take, when the policy says so and not
// the caller.
func (k *call) limit(ctx context.Context) (d time.Duration, overall, ok bool) {
	p := k.engine.Policy()
	if k.passive || p.Timeouts.Attempt == 0 && p.Timeouts.Overall == 0 {
		return 0, false, false
	}
	end := k.engine.AttemptDeadline()
	if callers, has := ctx.Deadline(); has && k.client.instant(callers) <= end {
		return 0, false, false
	}
	return end.Sub(k.client.now()), end == k.engine.Deadline(), true
}

// arm gives the attempt a context of its own, to be cancelled at its time limit, if it has
// one. The context has no deadline: what was received in time may be read longer.
func (k *call) arm(ctx context.Context, attempt *mark, s *sent) {
	d, overall, ok := k.limit(ctx)
	if !ok {
		return
	}
	limit := k.cutShort(overall)
	limited, cancel := context.WithCancelCause(ctx)
	attempt.Context = limited
	s.cancel, s.limit = func() { cancel(nil) }, limit
	s.timer = time.AfterFunc(d, func() { cancel(limit) })
}

// disarm ends the time limit of an attempt that is over.
func (s *sent) disarm(ctx context.Context) {
	if s.timer == nil {
		return
	}
	switch fired := !s.timer.Stop(); {
	case !fired && s.err == nil:
		return // the context lasts as long as the body
	case !fired:
	case ctx.Err() == nil:
		s.fail(s.limit)
		s.cut = s.limit
	case s.err == nil:
		s.fail(context.Cause(ctx))
	}
	s.cancel()
	s.cancel = nil
}

// timeoutError says that an attempt was cut short by the policy.
type timeoutError struct {
	limit   time.Duration
	overall bool
}

func (e *timeoutError) Error() string {
	if e.overall {
		return "no answer within " + e.limit.String() + " (policy: timeouts.overall)"
	}
	return "no answer within " + e.limit.String() + " (policy: timeouts.attempt)"
}

// Timeout makes it a net.Error that says so.
func (e *timeoutError) Timeout() bool { return true }

// Temporary completes net.Error.
func (e *timeoutError) Temporary() bool { return true }

// Is makes it a context.DeadlineExceeded.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// cutShort is the error of an attempt that ran into the limit of the policy.
func (k *call) cutShort(overall bool) *timeoutError {
	p := k.engine.Policy()
	if overall {
		return &timeoutError{p.Timeouts.Overall, true}
	}
	return &timeoutError{p.Timeouts.Attempt, false}
}
