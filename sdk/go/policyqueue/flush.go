// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"context"

	"github.com/policyd/policyd/sdk/go/internal/backlog"
)

// Flushed is what a Flush came to.
type Flushed struct {
	Sent   int // calls that were answered
	Failed int // sends that failed
	Left   int // calls that wait
}

// flush is one Flush in progress. Guarded by Queue.mu.
type flush struct {
	Flushed
	lanes int // that are still at it
	done  chan struct{}
}

// Flush sends what waits without the pauses between sends, and returns once every endpoint
// has either nothing left or failed or was refused a send: breaker, kill switches and budget
// hold as ever, and so does a wait that a service asked for. It fails only when ctx ends or
// the queue is closed first; what was reached is returned in any case.
func (q *Queue) Flush(ctx context.Context) (Flushed, error) {
	f := &flush{done: make(chan struct{})}
	if err := q.hurry(f); err != nil {
		return Flushed{Left: q.Len()}, err
	}
	var err error
	select {
	case <-f.done:
	case <-q.closing:
		err = errClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.mu.Lock()
	reached := f.Flushed
	q.mu.Unlock()
	reached.Left = q.Len()
	return reached, err
}

func (q *Queue) hurry(f *flush) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	for _, l := range q.lanes {
		f.lanes++
		l.flushes = append(l.flushes, f)
		l.plan.Wake(q.now())
		l.stir()
	}
	if f.lanes == 0 {
		close(f.done)
	}
	return nil
}

// count counts a send in the flushes in progress, and ends them unless it was answered. Under
// Queue.mu.
func (l *lane) count(e backlog.Ending, over bool) {
	for _, f := range l.flushes {
		switch {
		case e == backlog.Answered:
			f.Sent++
		case e != backlog.Refused:
			f.Failed++
		}
	}
	if e != backlog.Answered && !over {
		l.flushed()
	}
}

// flushed ends the part of a lane in the flushes in progress. Under Queue.mu.
func (l *lane) flushed() {
	for _, f := range l.flushes {
		if f.lanes--; f.lanes == 0 {
			close(f.done)
		}
	}
	l.flushes = nil
}
