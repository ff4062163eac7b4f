// SPDX-License-Identifier: Apache-2.0

// Package policytest tests what an application does under policies: no network, no policyd,
// no environment. Inside of a testing/synctest bubble, waits, breakers and the ends of kill
// switches take no time, so that a whole incident passes in microseconds:
//
//	synctest.Test(t, func(t *testing.T) {
//		f := policytest.New(t, policies)
//		client := &http.Client{Transport: f.Client().Transport(policytest.Script(503, 503, 200))}
//		…
//	})
//
// Random numbers are the same in each run: a test that passed passes again, as long as its
// calls come in the same order.
package policytest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/document"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// Fake plays policyd for one client. Methods fail the test when what they are asked is not
// possible; call them from the test's goroutine only. The client is safe for concurrent use.
type Fake struct {
	t       testing.TB
	client  *policyd.Client
	control seam.Control
	sent    attempts
	random  *lockedRandom

	// what operators have saved
	revision  int64
	documents map[engine.Scope]engine.Document
	switches  map[string]engine.Switch
	named     int // switches
	down      bool
}

// New returns a fake whose client obeys the policies and kill switches in a YAML stream, as
// policyctl reads it; "" leaves what is built in. A bad document fails the test: policyd
// would have refused it. What the client logs goes to the test's output. The client is
// closed when the test ends; inside of a synctest bubble, tb must be the bubble's.
func New(tb testing.TB, yaml string) *Fake {
	tb.Helper()
	f := &Fake{t: tb, random: &lockedRandom{}, documents: map[engine.Scope]engine.Document{}, switches: map[string]engine.Switch{}}
	f.Seed(1)
	client, control := seam.Of().Fake(seam.FakeConfig{
		Log: slog.New(slog.NewTextHandler(tb.Output(), nil)), Sent: f.sent.add, Random: f.random.next,
	})
	f.client, _ = client.(*policyd.Client)
	f.control = control
	tb.Cleanup(func() {
		if err := f.client.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("policytest: close the client: %v", err)
		}
	})
	f.Apply(yaml)
	return f
}

// Client returns the client, always the same. It is live until Disconnect.
func (f *Fake) Client() *policyd.Client { return f.client }

// Seed starts the random numbers of the client anew. All fakes begin with the same ones: a
// test with several of them, which shall not wait in step, gives each another seed.
func (f *Fake) Seed(seed uint64) { f.random.seed(seed) }

// Apply saves documents, as an operator does with policyctl apply: each replaces the one of
// its scope, and all others stay. They are in force when Apply returns; while disconnected,
// from Reconnect on. A kill switch may end by expiresIn. A bad document fails the test.
func (f *Fake) Apply(yaml string) {
	f.t.Helper()
	file, err := document.ParseYAML([]byte(yaml), time.Now())
	if err != nil {
		f.t.Fatalf("policytest: %v", err)
	}
	f.revision++
	for _, d := range file.Documents {
		d.Revision = f.revision
		f.documents[d.Scope] = d
	}
	for _, sw := range file.Switches {
		sw.Revision = f.revision
		f.switches[sw.ID] = sw
	}
	f.push()
}

// Switch switches a kill switch on: "disable-retries", "force-open", "force-closed" or
// "disable-hedging", for a scope and what is below it. It ends d from now, also while
// disconnected, and what it held back comes back over the two minutes after that. Other
// settings and actions take a document and Apply. It returns the switch as the client sees
// it.
func (f *Fake) Switch(action, scope string, d time.Duration) policyd.Switch {
	f.t.Helper()
	f.named++
	f.revision++
	now := time.Now()
	sw := engine.Switch{
		ID: fmt.Sprintf("ks-%d", f.named), Action: engine.Action(action), Scope: engine.Scope(scope), Revision: f.revision,
		Percent: 100, Restore: engine.DefaultRestoreOver, Ends: now.Add(d), Incident: "TEST", Reason: "policytest",
	}
	if _, err := engine.ParseScope(scope); err != nil {
		f.t.Fatalf("policytest: %v", err)
	}
	for _, v := range engine.ValidateSwitch(sw, now) {
		f.t.Fatalf("policytest: switch %s: %s %s: %s", action, v.Path, v.Value, v.Rule)
	}
	f.switches[sw.ID] = sw
	f.push()
	return policyd.Switch{
		ID: sw.ID, Action: action, Scope: scope, Reason: sw.Reason, Incident: sw.Incident, ExpiresAt: sw.Ends.Round(0),
	}
}

// OpenBreaker opens the breaker of an endpoint for d, as if one of its rules had tripped:
// calls fail with breaker_open until the first probe. The endpoint's policy must have a
// breaker. For one that an operator opens, use Switch with "force-open".
func (f *Fake) OpenBreaker(endpoint string, d time.Duration) {
	f.t.Helper()
	if err := f.control.Open(endpoint, d); err != nil {
		f.t.Fatalf("policytest: %v", err)
	}
}

// Disconnect cuts the client off: its status is stale, the last good policies stay in force,
// kill switches end on time, and nothing new arrives.
func (f *Fake) Disconnect() {
	f.down = true
	f.control.Link(false)
}

// Reconnect ends Disconnect: what was saved meanwhile is in force when it returns.
func (f *Fake) Reconnect() {
	f.t.Helper()
	f.down = false
	f.push()
}

// push brings the client what was saved, as far as it is reachable.
func (f *Fake) push() {
	f.t.Helper()
	if f.down {
		return
	}
	documents := make([]engine.Document, 0, len(f.documents))
	for _, d := range f.documents {
		documents = append(documents, d)
	}
	slices.SortFunc(documents, func(a, b engine.Document) int { return cmp.Compare(a.Scope, b.Scope) })
	var switches []engine.Switch
	for _, sw := range f.switches {
		switches = append(switches, sw)
	}
	if err := f.control.Use(f.revision, documents, switches); err != nil {
		f.t.Fatalf("policytest: %v", err)
	}
}

// Attempts returns the attempts that were sent to an endpoint so far, in the order in which
// they started. An endpoint that no policy and no route names goes by its host.
func (f *Fake) Attempts(endpoint string) []policyd.Attempt { return f.sent.of(endpoint) }

// attempts are those sent. Safe for concurrent use.
type attempts struct {
	mu   sync.Mutex
	sent map[string][]policyd.Attempt // guarded by mu
}

func (a *attempts) add(endpoint string, s seam.Sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sent == nil {
		a.sent = map[string][]policyd.Attempt{}
	}
	a.sent[endpoint] = append(a.sent[endpoint], policyd.Attempt{
		Number: s.Number, Max: s.Max, IdempotencyKey: s.Key, Hedge: s.Hedge,
	})
}

func (a *attempts) of(endpoint string) []policyd.Attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.sent[endpoint])
}

// lockedRandom is a source of random numbers that goroutines may share.
type lockedRandom struct {
	mu     sync.Mutex
	source *rand.Rand // guarded by mu
}

func (r *lockedRandom) seed(seed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source = rand.New(rand.NewPCG(seed, 2))
}

func (r *lockedRandom) next() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source.Uint64()
}
