// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/backlog"
	"github.com/policyd/policyd/sdk/go/internal/seam"
	"github.com/policyd/policyd/sdk/go/internal/spool"
)

// drain sends the calls of a lane until there are none, or the queue is closed. A panic of
// ours must not reach the application: it is logged once, and the lane goes on later.
func (q *Queue) drain(ctx context.Context, l *lane) {
	defer q.running.Done()
	for !q.survives(l, "sending", func() { q.work(ctx, l) }) {
		q.done(l, 0, backlog.Rules{Pace: time.Minute}, backlog.Result{Ending: backlog.Failed}) // if a send was in progress
		if !q.rest(l, q.now().Add(time.Minute), false) {
			return
		}
	}
}

// survives runs a part of the work and reports whether it returned rather than panicked.
func (q *Queue) survives(l *lane, part string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil && q.first(l.name.endpoint, part) {
			q.cfg.Logger.Error("work on kept calls panicked and goes on; later panics are not logged",
				"endpoint", l.name.endpoint, "part", part, "panic", fmt.Sprint(p))
		}
	}()
	f()
	return true
}

func (q *Queue) work(ctx context.Context, l *lane) {
	for {
		rules, honor := q.rules(ctx, l.name)
		step, going := q.next(l, rules)
		if !going {
			return
		}
		switch step.Do {
		case backlog.Rest:
			if !q.rest(l, step.Until, true) {
				return
			}
		case backlog.Expire:
			q.expired(l, step.Item)
		case backlog.Send:
			q.send(ctx, l, step, honor)
		case backlog.Nothing: // calls are being written
			if !q.rest(l, engine.Never, true) {
				return
			}
		}
	}
}

// next asks what to do, and reports whether there is anything.
func (q *Queue) next(l *lane, rules backlog.Rules) (backlog.Step, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		l.flushed()
		return backlog.Step{}, false
	}
	step := l.plan.Next(rules, q.now())
	switch step.Do {
	case backlog.Nothing:
		l.flushed()
		if l.writing == 0 {
			l.working = false
			delete(q.lanes, l.name)
			q.cfg.Logger.Info("no kept calls wait any more", "endpoint", l.name.endpoint)
			return step, false
		}
	case backlog.Rest:
		if !rules.On || !l.plan.Flows() {
			l.flushed()
		}
	case backlog.Expire, backlog.Send:
	}
	return step, true
}

// rest waits, and reports whether the queue is still open.
func (q *Queue) rest(l *lane, until engine.Instant, wakes bool) bool {
	timer := time.NewTimer(until.Sub(q.now()))
	defer timer.Stop()
	wake := l.wake
	if !wakes {
		wake = nil
	}
	select {
	case <-timer.C:
	case <-wake:
	case <-q.closing:
		return false
	}
	return true
}

// expired drops a call.
func (q *Queue) expired(l *lane, it backlog.Item) {
	c := q.forget(l, it.ID)
	q.cfg.Logger.Warn("kept call dropped: it is older than offlineQueue.ttl", "endpoint", c.Endpoint, "id", c.ID)
	item := c.item(it.Sends)
	q.settled(l, Settled{Item: item, Err: &policyd.Error{
		Endpoint: c.Endpoint, Code: policyd.CodeQueueExpired, Attempts: item.Attempts, QueueID: c.ID, Elapsed: time.Since(c.Queued),
	}})
	q.remove(it.ID, c)
}

// forget takes a call that left the plan out of the lane.
func (q *Queue) forget(l *lane, n uint64) *call {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := l.calls[n]
	delete(l.calls, n)
	return c
}

// settled tells what became of a call.
func (q *Queue) settled(l *lane, s Settled) {
	if q.cfg.OnSettled != nil {
		q.survives(l, "Config.OnSettled", func() { q.cfg.OnSettled(s) })
	}
	if s.Response != nil {
		_ = s.Response.Body.Close()
	}
}

func (q *Queue) remove(n uint64, c *call) {
	if err := q.spool.Remove(n); err != nil {
		q.cfg.Logger.Error("settled call cannot be removed; the next process sends it again under its key",
			"endpoint", c.Endpoint, "id", c.ID, "error", err)
	}
}

// delivery is one send of a call.
type delivery struct {
	result backlog.Result
	resp   *http.Response
	err    error
}

func (d *delivery) discard() {
	if d.resp != nil {
		_ = d.resp.Body.Close()
	}
}

// send makes one send and settles the call if it is over.
func (q *Queue) send(ctx context.Context, l *lane, step backlog.Step, honor bool) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.SendTimeout)
	defer cancel()
	n := step.Item.ID
	head, body, err := q.spool.Get(n)
	var c *call
	if err == nil {
		c, err = decodeCall(head)
	}
	var d delivery
	lost := err != nil && (errors.Is(err, spool.ErrDamaged) || errors.Is(err, fs.ErrNotExist))
	switch {
	case lost:
		d = delivery{result: backlog.Result{Ending: backlog.Answered}, err: err}
	case err != nil: // the disk does not answer, or too many files are open
		d = delivery{result: backlog.Result{Ending: backlog.Failed}, err: err}
	default:
		d = q.deliver(ctx, l, c, body, step.Paid)
	}
	if !honor {
		d.result.Asked = 0
	}
	rules, _ := q.rules(ctx, l.name)
	c, over := q.done(l, n, rules, d.result)
	if !over {
		d.discard()
		return
	}
	q.settled(l, Settled{Item: c.item(step.Item.Sends + 1), Response: d.resp, Err: d.err})
	if lost {
		q.cfg.Logger.Error("kept call cannot be read any more and was put aside", "endpoint", c.Endpoint, "id", c.ID, "error", q.spool.SetAside(n, err))
		return
	}
	q.remove(n, c)
}

// done gives the result of a send to the plan, and returns the call if it is over.
func (q *Queue) done(l *lane, n uint64, rules backlog.Rules, r backlog.Result) (*call, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	over := l.plan.Done(rules, r, q.now(), q.random)
	l.count(r.Ending, over)
	c := l.calls[n]
	if over {
		delete(l.calls, n)
	}
	return c, over
}

// deliver sends a call, unless that is refused.
func (q *Queue) deliver(ctx context.Context, l *lane, c *call, body []byte, paid bool) (d delivery) {
	d.result.Ending = backlog.Failed
	if q.survives(l, "sender", func() { d = q.attempt(ctx, c, body, paid) }) {
		return d
	}
	return delivery{result: backlog.Result{Ending: backlog.Doubtful}, err: errPanicked}
}

var errPanicked = errors.New("policyqueue: the sender panicked")

func (q *Queue) attempt(ctx context.Context, c *call, body []byte, paid bool) (d delivery) {
	d.result.Ending = backlog.Failed
	settled := false
	ctx = q.core.Resending(ctx, &seam.Resend{
		Name: c.Endpoint, Unmatched: c.Unmatched, Key: c.Key, Paid: paid,
		Settled: func(o engine.Outcome, repeats bool) {
			settled = true
			d.result.Ending = backlog.EndingOf(o, repeats)
			if o.Server.Kind == engine.AskedStop && d.result.Ending == backlog.Failed {
				d.result.Ending = backlog.Doubtful
			}
			d.result.Asked = o.Server.For
		},
	})
	if c.HTTP != nil {
		req, err := q.request(ctx, c.HTTP, body)
		if err != nil {
			d.err = err
			if q.first(c.Endpoint, "not made") {
				q.cfg.Logger.Error("kept call cannot be sent; later failures are not logged", "endpoint", c.Endpoint, "error", err)
			}
			return d
		}
		d.resp, d.err = q.inner.RoundTrip(req) //nolint:bodyclose // settled does, or discard
	} else {
		send := q.cfg.Senders[c.Endpoint]
		if send == nil {
			if q.first(c.Endpoint, "no sender") {
				q.cfg.Logger.Warn("kept calls wait: Config.Senders has none for their endpoint", "endpoint", c.Endpoint)
			}
			d.result = backlog.Result{Ending: backlog.Refused, RetryAt: engine.Never}
			return d
		}
		_, d.err = policyd.Do(ctx, c.Endpoint, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, send(ctx, body)
		}, policyd.Using(q.client))
	}
	var refused *policyd.Error
	if !settled && ctx.Err() == nil && errors.As(d.err, &refused) {
		d.result = backlog.Result{Ending: backlog.Refused, Shut: refused.Code == policyd.CodeBreaker}
		if !refused.RetryAt.IsZero() {
			d.result.RetryAt = q.now().Add(time.Until(refused.RetryAt))
		}
	}
	return d
}
