// SPDX-License-Identifier: Apache-2.0

package fleet

import "github.com/policyd/policyd/sdk/go/engine"

type registry struct{}

type session struct{}

// New returns an empty registry.
func New() *Registry { return &Registry{} }

// Connect registers a stream. resumed says that the instance got a delta or nothing.
func (r *Registry) Connect(id Identity, revision int64, resumed bool) *Session { return &Session{} }

// Wanted says that revision is the newest that concerns the instance.
func (s *Session) Wanted(revision int64) {}

// Confirmed says that the instance has revision in force except for what it rejected.
func (s *Session) Confirmed(revision int64, rejected []Rejection) {}

// Reported keeps the instance's newest report.
func (s *Session) Reported(rep *Report) {}

// Seen notes a sign of life.
func (s *Session) Seen() {}

// Close marks the instance stale, unless a newer session took over.
func (s *Session) Close() {}

// Instances returns a copy of all instances that scope reaches ("" or global: all), sorted by id.
func (r *Registry) Instances(scope engine.Scope) []Instance { return nil }

// Instance returns one instance.
func (r *Registry) Instance(id string) (Instance, bool) { return Instance{}, false }

// Changed returns a channel that is closed at the next change of any instance's state,
// confirmed revision or report.
func (r *Registry) Changed() <-chan struct{} { return nil }
