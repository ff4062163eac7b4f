// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/changes"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// snapshot is what is in force at one moment. Immutable but for compiled.
type snapshot struct {
	revision  int64
	documents map[engine.Scope]*engine.Document
	switches  []engine.Switch // active or fading, by id
	matcher   *engine.Matcher
	// replaced is closed when another snapshot is in force and every endpoint uses it.
	replaced chan struct{}
	// compiled policies by scope, as endpoints need them; guarded by Client.mu.
	compiled map[engine.Scope]*engine.Policy
	// budgets that services share among their endpoints; handed on, guarded by Client.mu.
	budgets map[engine.Scope]*engine.SharedBudget
}

func newSnapshot(namespace string) *snapshot {
	return &snapshot{
		matcher: engine.NewMatcher(nil, namespace), replaced: make(chan struct{}),
		compiled: map[engine.Scope]*engine.Policy{},
	}
}

// effective returns the merged policy at a scope, before kill switches.
func (s *snapshot) effective(scope engine.Scope) engine.Effective {
	var path []engine.Document
	for _, at := range scope.Path() {
		if d := s.documents[at]; d != nil {
			path = append(path, *d)
		}
	}
	return engine.Merge(scope, path)
}

// content is what a source of policies offers: policyd, the disk cache or a file.
type content struct {
	revision  int64
	documents map[engine.Scope]*engine.Document
	switches  []engine.Switch
}

// contentOf returns what of a state is in force.
func contentOf(s *state.State, now time.Time) content {
	return content{revision: s.Revision(), documents: s.Documents(), switches: s.Switches(now)}
}

// install puts content in force: the snapshot is swapped and every live endpoint whose
// policies or switches changed is reloaded before it returns. It reports the names of the
// endpoints whose effective policy is another one now, sorted.
func (c *Client) install(next content, now time.Time) []string {
	changed, turned := c.swap(next, now)
	for _, t := range turned { // without the lock: loggers are the application's
		c.breakerTurned(t.e, t.change)
	}
	return changed
}

// turn is a change of the state that an endpoint's breaker reports.
type turn struct {
	e      *endpoint
	change *engine.BreakerChange
}

func (c *Client) swap(next content, now time.Time) (changed []string, turned []turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.current.Load()
	scopes, matching := changes.Documents(old.documents, next.documents)
	s := &snapshot{
		revision: next.revision, documents: next.documents, switches: next.switches,
		matcher: old.matcher, replaced: make(chan struct{}), compiled: map[engine.Scope]*engine.Policy{},
	}
	if matching {
		s.matcher = engine.NewMatcher(list(next.documents), c.cfg.namespace)
	}
	switched := changes.Switches(old.switches, next.switches)
	c.current.Store(s)
	s.budgets = old.budgets
	c.reloadBudgets(s, now)

	for _, e := range slices.Concat(c.named.all(), c.hosts.all()) {
		if e.unmatched && matching && string(e.scope) != e.name {
			if scope := s.matcher.HTTP("", e.name, noPath).Scope; scope != e.scope {
				e.scope = scope
				scopes[scope] = true
			}
		}
		documents := changes.Covered(e.scope, scopes)
		if !documents && !slices.ContainsFunc(switched, func(at engine.Scope) bool { return at.Contains(e.scope) }) {
			continue
		}
		before := *e.Policy()
		policy, overlay := c.compile(s, e.scope)
		e.Share(c.sharedBudget(s, e.scope, policy, now))
		if ch := e.Reload(policy, overlay, c.cfg.mode.engine(), c.instant(now)); ch != nil {
			turned = append(turned, turn{e, ch})
		}
		if !policy.Equal(&before) {
			changed = append(changed, e.name)
		}
	}
	close(old.replaced)
	slices.Sort(changed)
	return changed, turned
}

// noPath is a path that no pattern matches, so that a matcher answers for the host alone.
const noPath = "%"

// compile returns the policy at a scope and what kill switches do there. Scopes without a
// document of their own share the policy of the next wider one. Client.mu is held.
func (c *Client) compile(s *snapshot, scope engine.Scope) (*engine.Policy, engine.Overlay) {
	at := scope
	for at != engine.Global && s.documents[at] == nil {
		at = at.Parent()
	}
	policy := s.compiled[at]
	if policy == nil {
		fresh := engine.Compile(s.effective(at))
		policy = &fresh
		s.compiled[at] = policy
	}
	return policy, engine.Compose(s.switches, scope, policy.Criticality, c.cfg.instance)
}

func list(documents map[engine.Scope]*engine.Document) []engine.Document {
	all := make([]engine.Document, 0, len(documents))
	for _, d := range documents {
		all = append(all, *d)
	}
	return all
}

// scopeOf returns whose policy calls of a named endpoint obey: the scope of that name, else
// the widest that is this instance's own.
func (c *Client) scopeOf(name string) engine.Scope {
	if scope, err := engine.ParseScope(name); err == nil {
		return scope
	}
	if c.cfg.namespace != "" {
		return engine.Scope(c.cfg.namespace)
	}
	return engine.Global
}

// addEndpoint creates the state of a target of calls, unless somebody else just did.
func (c *Client) addEndpoint(t *table, name string, scope engine.Scope) *endpoint {
	c.start()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := t.find(name); e != nil {
		return e
	}
	now := c.instant(time.Now())
	s := c.current.Load()
	if t == c.hosts && string(scope) != name { // it may come from an older snapshot
		scope = s.matcher.HTTP("", name, noPath).Scope
	}
	policy, overlay := c.compile(s, scope)
	random := rand.Uint64
	if c.cfg.uniform != nil {
		random = c.cfg.uniform
	}
	state := engine.NewEndpoint(engine.Config{
		Origin: c.origin, Random: random, Mode: c.cfg.mode.engine(),
	}, policy, overlay, now)
	state.Share(c.sharedBudget(s, scope, policy, c.origin.Add(time.Duration(now))))
	// The name may be a part of a far longer text, as the host is of a URL: do not keep that.
	e := &endpoint{Endpoint: state, name: strings.Clone(name), unmatched: t == c.hosts, scope: scope}
	for _, dropped := range t.add(e) {
		c.reported.leftover.add(dropped.unreported(now))
	}
	return e
}
