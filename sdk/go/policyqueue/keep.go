// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"context"
	"errors"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/backlog"
	"github.com/policyd/policyd/sdk/go/internal/idkey"
	"github.com/policyd/policyd/sdk/go/internal/seam"
	"github.com/policyd/policyd/sdk/go/internal/spool"
)

// intent is a call that may be kept.
type intent struct {
	to    seam.Target
	rules backlog.Rules
	key   string
	began time.Time
	// http is what is stored of a request; nil for a payload.
	http *storedRequest
	// body reads what is stored beside that.
	body func() ([]byte, error)
}

// intend returns what is needed to keep a call, nil if that is not to be.
func (q *Queue) intend(to seam.Target) *intent {
	rules := backlog.RulesOf(to.Policy, to.Acts)
	if !rules.On || to.Inner {
		return nil
	}
	in := &intent{to: to, rules: rules, key: to.Key, began: time.Now()}
	if keys := &to.Policy.Idempotency.Key; in.key == "" && keys.Enabled && keys.Auto {
		in.key = idkey.New()
	}
	if in.key == "" {
		if q.first(to.Name, "no key") {
			q.cfg.Logger.Warn("calls are not kept: they have no idempotency key, and idempotency.key.auto is off", "endpoint", to.Name)
		}
		return nil
	}
	return in
}

// ended is how a call ended that was made.
type ended struct {
	code     policyd.Code
	attempts int
	revision int64
	scope    string
	last     error // upstream
}

// failedBy reads why the policy ended a call, from its error.
func failedBy(err error, endpoint string) (e ended, ok bool) {
	var p *policyd.Error
	if !errors.As(err, &p) || p.Endpoint != endpoint {
		return ended{}, false
	}
	return ended{p.Code, p.Attempts, p.Revision, p.Scope, p.Err}, keepsCode(p.Code)
}

func keepsCode(c policyd.Code) bool { return backlog.Keeps(engine.Code(c)) }

var (
	errBehind   = errors.New("earlier calls of the endpoint wait")
	errLaneFull = errors.New("as many calls of the endpoint wait as its policy allows")
)

// join keeps a call without sending it if others of its endpoint wait. Without an error it
// is to be sent.
func (q *Queue) join(ctx context.Context, in *intent) error {
	q.mu.Lock()
	l := q.lanes[laneName{in.to.Name, in.to.Unmatched}]
	waits := !q.closed && l != nil && l.plan.Len()+l.writing > 0
	q.mu.Unlock()
	if !waits {
		return nil
	}
	kept, err := q.keep(ctx, in, ended{last: errBehind}, true)
	if kept == nil && ctx.Err() == nil { // it must neither overtake nor be lost in silence
		return q.refusal(in, policyd.CodeQueueFull, ended{last: err})
	} else if kept == nil {
		return ctx.Err()
	}
	return kept
}

// keepFailed keeps a call that gave up, and returns the error that says so. nil: the call's
// own outcome stands.
func (q *Queue) keepFailed(ctx context.Context, in *intent, e ended) error {
	if ctx.Err() != nil { // nobody would be told
		return nil
	}
	kept, err := q.keep(ctx, in, e, false)
	switch {
	case kept != nil:
		return kept
	case errors.Is(err, errLaneFull), errors.Is(err, spool.ErrFull):
		return q.refusal(in, policyd.CodeQueueFull, e)
	default:
		return nil
	}
}

// keep writes a call to disk and gives it to its lane. kept is what its caller is told; nil
// with an error if it is not kept.
func (q *Queue) keep(ctx context.Context, in *intent, e ended, joins bool) (kept error, err error) {
	l, err := q.reserve(in)
	if err != nil {
		return nil, err
	}
	defer q.running.Done()
	n := q.spool.Number()
	c := &call{
		ID: idkey.New(), Endpoint: in.to.Name, Unmatched: in.to.Unmatched, Key: in.key,
		Queued: time.Now().Round(0), TTL: in.rules.TTL, Attempts: e.attempts, HTTP: in.http,
	}
	err = q.write(n, c, in.body)
	if err == nil && ctx.Err() != nil { // the caller left meanwhile, and cannot be told
		err = errors.Join(ctx.Err(), q.spool.Remove(n))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l.writing--
	if err != nil {
		l.stir()
		q.start(l)
		return nil, err
	}
	if l.plan.Len() == 0 {
		q.cfg.Logger.Info("calls are kept to be sent later", "endpoint", l.name.endpoint)
	}
	l.calls[n] = c
	it := backlog.Item{ID: n, Queued: q.now(), TTL: c.TTL, Sent: e.attempts > 0}
	l.plan.Add(in.rules, it, joins, q.now(), q.random)
	l.stir()
	q.start(l)
	told := q.refusal(in, policyd.CodeQueued, e)
	told.QueueID = c.ID
	return told, nil
}

// reserve takes a place in the lane of a call; Close waits until running.Done.
func (q *Queue) reserve(in *intent) (*lane, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, errClosed
	}
	l := q.lane(laneName{in.to.Name, in.to.Unmatched})
	if !l.plan.Room(in.rules, l.writing) {
		q.start(l)
		return nil, errLaneFull
	}
	l.writing++
	q.running.Add(1)
	return l, nil
}

func (q *Queue) write(n uint64, c *call, body func() ([]byte, error)) error {
	payload, err := body()
	if err != nil {
		return err
	}
	head, err := c.encode()
	if err != nil {
		return err
	}
	if err := q.spool.Put(n, head, payload); err != nil {
		if !errors.Is(err, spool.ErrFull) && q.first(c.Endpoint, "not written") {
			q.cfg.Logger.Error("call cannot be kept; later failures are not logged", "endpoint", c.Endpoint, "error", err)
		}
		return err
	}
	return nil
}

// refusal is what the caller of a call that was not made is told.
func (q *Queue) refusal(in *intent, code policyd.Code, e ended) *policyd.Error {
	return &policyd.Error{
		Endpoint: in.to.Name, Code: code, Attempts: e.attempts, Elapsed: time.Since(in.began),
		Revision: e.revision, Scope: e.scope, Err: e.last,
	}
}
