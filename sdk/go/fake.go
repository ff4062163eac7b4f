// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/seam"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// The companion packages of this module reach the client through an internal package, so
// that applications are not shown what only those need.
var _ = seam.Provide(seam.Core{
	Fake: newFake, Lenient: newLenient, Call: newRPC,
	Target: targetOf, TargetNamed: targetNamed, Resending: resending, AddQueue: addQueue,
})

// newLenient is New for those who cannot return an error.
func newLenient(options any) any {
	opts, _ := options.([]Option)
	return lenient(opts)
}

const sourceFake = "policytest"

// newFake returns a client for tests: it reads no environment, file or cache.
func newFake(f seam.FakeConfig) (any, seam.Control) {
	c := newClient(config{
		mode: Enforce, instance: sourceFake, logger: slog.New(safeLog{f.Log.Handler()}), uniform: f.Random,
		sent: func(e *endpoint, a Attempt) {
			f.Sent(e.name, seam.Sent{Number: a.Number, Max: a.Max, Key: a.IdempotencyKey, Hedge: a.Hedge})
		}, keeps: true,
	})
	now := time.Now()
	c.link.update(func(s *Status) { s.State, s.Source, s.AsOf = StateLive, sourceFake, now })
	c.setReady()
	return c, &fakeControl{c}
}

type fakeControl struct{ c *Client }

// Use puts documents and switches in force.
func (f *fakeControl) Use(revision int64, documents []engine.Document, switches []engine.Switch) error {
	if err := checkTogether(documents); err != nil {
		return err
	}
	next := content{revision: revision, documents: make(map[engine.Scope]*engine.Document, len(documents))}
	for i := range documents {
		d := documents[i]
		if r := state.Check(&d); r != nil {
			return r
		}
		next.documents[d.Scope] = &d
	}
	next.switches = append(next.switches, switches...)
	state.SortSwitches(next.switches)
	f.c.use(next, sourceFake, time.Now())
	f.Link(true)
	return nil
}

// checkTogether refuses what policyd refuses: documents that break the bounds of wider ones,
// and endpoints that claim the same calls.
func checkTogether(documents []engine.Document) error {
	byScope := make(map[engine.Scope]engine.Document, len(documents))
	for _, d := range documents {
		byScope[d.Scope] = d
	}
	for _, d := range documents {
		var path []engine.Document
		for _, at := range d.Scope.Path() {
			if wider, ok := byScope[at]; ok {
				path = append(path, wider)
			}
		}
		for _, v := range engine.ValidateEffective(path) {
			return fmt.Errorf("%s: %s %s: %s", d.Scope, v.Path, v.Value, v.Rule)
		}
	}
	for _, conflict := range engine.MatchConflicts(documents, nil) {
		return fmt.Errorf("%s and %s match the same calls (%s)", conflict.A, conflict.B, conflict.Field.Path())
	}
	return nil
}

// Link says whether policyd can be reached.
func (f *fakeControl) Link(up bool) {
	if up {
		now := time.Now()
		f.c.link.update(func(s *Status) { s.State, s.LastErr, s.AsOf = StateLive, nil, now })
		return
	}
	f.c.link.update(func(s *Status) { s.State, s.LastErr = StateStale, errDisconnected })
}

var errDisconnected = errors.New("policytest: disconnected")

// Open opens the breaker of an endpoint.
func (f *fakeControl) Open(name string, d time.Duration) error {
	e, now := f.c.endpoint(name), f.c.now()
	change, ok := e.Open(now, now.Add(d))
	if !ok {
		return fmt.Errorf("the policy of %s has no breaker: set one, as in breaker: {consecutive: {failures: 5}}", name)
	}
	f.c.breakerTurned(e, change)
	return nil
}
