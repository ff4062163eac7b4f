// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/backlog"
	"github.com/policyd/policyd/sdk/go/internal/spool"
)

// laneName is an endpoint.
type laneName struct {
	endpoint  string
	unmatched bool
}

// lane holds the calls of one endpoint. A goroutine sends them while there are any.
type lane struct {
	name laneName
	wake chan struct{} // there is something new to look at

	// guarded by Queue.mu
	plan    backlog.Lane
	calls   map[uint64]*call
	writing int // calls that are being written
	working bool
	flushes []*flush
}

// lane returns the lane of an endpoint, made at its first use. Under mu.
func (q *Queue) lane(name laneName) *lane {
	l := q.lanes[name]
	if l == nil {
		l = &lane{name: name, wake: make(chan struct{}, 1), calls: map[uint64]*call{}}
		q.lanes[name] = l
	}
	return l
}

// start sees to it that somebody looks after a lane. Under mu.
func (q *Queue) start(l *lane) {
	if !l.working && !q.closed {
		l.working = true
		q.begin(l)
	}
}

// stir has the goroutine of a lane look again.
func (l *lane) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// sorted are the lanes by name. Under mu.
func (q *Queue) sorted() []*lane {
	all := make([]*lane, 0, len(q.lanes))
	for _, l := range q.lanes {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *lane) int { return cmp.Compare(a.name.endpoint, b.name.endpoint) })
	return all
}

// load takes the directory, and what a process before left in it.
func (q *Queue) load() error {
	s, records, unread, err := spool.Open(spool.Config{Dir: q.cfg.Dir, MaxRecord: q.cfg.MaxBody + maxHead, MaxBytes: q.cfg.MaxBytes})
	if err != nil {
		return errors.Join(errors.New("policyqueue: cannot use the directory"), err)
	}
	q.spool = s
	q.mu.Lock()
	defer q.mu.Unlock()
	wall := time.Now().Round(0)
	for _, n := range records {
		c, err := q.read(n)
		if err != nil {
			if errors.Is(err, spool.ErrDamaged) { // another one stays, for the next process
				err = s.SetAside(n, err)
			}
			unread = errors.Join(unread, err)
			continue
		}
		l := q.lane(laneName{c.Endpoint, c.Unmatched})
		l.calls[n] = c
		// A clock that was turned back must not keep a call for ever, one turned forward not
		// drop it before its time by more than the jump.
		age := max(0, wall.Sub(c.Queued))
		it := backlog.Item{ID: n, Queued: q.now() - engine.Instant(age), TTL: c.TTL, Sent: c.Attempts > 0}
		l.plan.Add(backlog.Rules{Pace: startPace}, it, false, q.now(), q.random)
	}
	if unread != nil {
		q.cfg.Logger.Warn("kept calls cannot be read; damaged ones were put aside", "error", unread)
	}
	for _, l := range q.lanes {
		q.start(l)
	}
	return nil
}

const (
	maxHead   = 256 << 10 // of a record, beside its body
	startPace = time.Second
)

func (q *Queue) read(n uint64) (*call, error) {
	head, _, err := q.spool.Get(n)
	if err != nil {
		return nil, err
	}
	return decodeCall(head)
}

// rules are those of the policy of the moment.
func (q *Queue) rules(ctx context.Context, name laneName) (backlog.Rules, bool) {
	t := q.core.TargetNamed(ctx, q.client, name.endpoint, name.unmatched)
	return backlog.RulesOf(t.Policy, t.Acts), t.Policy.RetryAfter.Honor
}

// alive notes that an endpoint has answered another call.
func (q *Queue) alive(ctx context.Context, endpoint string) {
	for _, unmatched := range [...]bool{false, true} {
		name := laneName{endpoint, unmatched}
		if q.count(endpoint, unmatched) == 0 {
			continue
		}
		rules, _ := q.rules(ctx, name)
		q.mu.Lock()
		if l := q.lanes[name]; l != nil {
			l.plan.Alive(rules, q.now(), q.random)
			l.stir()
		}
		q.mu.Unlock()
	}
}
