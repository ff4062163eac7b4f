// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Session is one connected stream of one instance. A newer session of the same instance
// replaces an older one, whose later calls change nothing.
type Session struct {
	registry *Registry
	record   *record // nil: the registry was full, or it is no instance
}

// Unlisted returns a session of somebody who is no instance.
func (r *Registry) Unlisted() *Session { return &Session{registry: r} }

// current locks the record if the session still speaks for it.
func (s *Session) current() (*record, bool) {
	if s.record == nil {
		return nil, false
	}
	s.record.mu.Lock()
	if s.record.session != s {
		s.record.mu.Unlock()
		return nil, false
	}
	return s.record, true
}

// Wanted says that revision is the newest that concerns the instance.
func (s *Session) Wanted(revision int64) {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	if rec.in.Wanted == revision {
		return
	}
	rec.in.Wanted = revision
	rec.settle(time.Now())
	s.registry.touch(rec)
}

// Anew says that revisions count anew: what the instance confirmed was of other data.
func (s *Session) Anew() {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	if rec.in.Revision == 0 {
		return
	}
	rec.in.Revision, rec.in.Rejected = 0, nil
	rec.settle(time.Now())
	s.registry.touch(rec)
}

// Confirmed says that the instance has revision in force except for what it rejects:
// everything it rejects now, whichever revision brought it.
func (s *Session) Confirmed(revision int64, rejected []Rejection) {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	now := time.Now()
	same := rec.in.Revision == revision && slices.Equal(rec.in.Rejected, rejected)
	rec.in.Revision, rec.in.Rejected = revision, slices.Clone(rejected)
	rec.in.LastSeen = now
	if rec.settle(now) || !same {
		s.registry.touch(rec)
	}
}

// Targets replaces the scopes whose policies the instance wants.
func (s *Session) Targets(targets []engine.Scope) {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	rec.in.Targets = slices.Clone(targets)
	s.registry.touch(rec)
}

// moveGrace is what an instance may take beyond the window in which it is to reconnect.
const moveGrace = 5 * time.Second

// Leaving says that the instance was asked to reconnect within window.
func (s *Session) Leaving(window time.Duration) {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	rec.in.BackBy = time.Now().Add(window + moveGrace)
	s.registry.touch(rec)
}

// Reported keeps the instance's newest report. The registry owns rep from then on.
func (s *Session) Reported(rep *Report) {
	r := s.registry
	r.take(rep)
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	r.endpoints.Add(int64(len(rep.Endpoints)) - rec.in.reported())
	now := time.Now()
	rec.in.Report, rec.in.ReportedAt, rec.in.LastSeen = rep, now, now
	r.touch(rec)
}

// Seen notes a sign of life.
func (s *Session) Seen() {
	if rec, ok := s.current(); ok {
		rec.in.LastSeen = time.Now()
		rec.mu.Unlock()
	}
}

// Close marks the instance stale, unless a newer session took over.
func (s *Session) Close() {
	rec, ok := s.current()
	if !ok {
		return
	}
	defer rec.mu.Unlock()
	now := time.Now()
	rec.session, rec.in.LastSeen = nil, now
	rec.settle(now)
	s.registry.touch(rec)
}
