// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"strings"
	"sync"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/wire"
	"github.com/policyd/policyd/sdk/go/engine"
)

// views keeps documents decoded, for people who ask; nothing is decoded for those who are
// served.
type views struct {
	// mu guards the fields below.
	mu       sync.Mutex
	last     *policy.View
	policies map[string]*policy.Policy // by key
	switches map[string]*policy.Switch
}

// View returns what the relay holds, as a store would. What cannot be decoded is left out.
// It is stale while the relay is cut off.
func (r *Relay) View() *policy.View {
	r.mu.Lock()
	epoch, revision := policy.Epoch(r.state.epoch), policy.Revision(r.state.revision)
	r.views.mu.Lock()
	defer r.views.mu.Unlock()
	var held []sent
	fresh := r.views.last == nil || r.views.last.Epoch != epoch || r.views.last.Revision != revision
	if fresh {
		held = make([]sent, 0, len(r.state.entries))
		for _, e := range r.state.entries {
			held = append(held, e.sent)
		}
	}
	r.mu.Unlock()

	if fresh {
		if last := r.views.last; last != nil && last.Epoch != epoch {
			r.views.policies, r.views.switches = nil, nil // revisions of epochs do not compare
		}
		r.views.decode(held)
		r.views.last = &policy.View{
			Epoch: epoch, Revision: revision, Policies: make(map[engine.Scope]*policy.Policy, len(r.views.policies)),
			Switches: make(map[string]*policy.Switch, len(r.views.switches)),
		}
		for _, p := range r.views.policies {
			r.views.last.Policies[p.Scope] = p
		}
		for _, sw := range r.views.switches {
			r.views.last.Switches[sw.ID] = sw
		}
	}
	view := *r.views.last
	if view.AsOf = r.AsOf(); view.AsOf.IsZero() {
		view.AsOf = r.clock.now()
	} else {
		view.Stale = true
	}
	return &view
}

// decode brings the decoded documents up to what is held.
func (v *views) decode(held []sent) {
	policies, switches := make(map[string]*policy.Policy, len(held)), make(map[string]*policy.Switch)
	for _, e := range held {
		revision := policy.Revision(e.revision)
		if strings.HasPrefix(e.key, policyPrefix) {
			p := v.policies[e.key]
			if p == nil || p.Revision != revision {
				var err error
				if p, err = wire.DecodePolicy(e.document, revision); err != nil {
					continue
				}
			}
			policies[e.key] = p
		} else if strings.HasPrefix(e.key, switchPrefix) {
			sw := v.switches[e.key]
			if sw == nil || sw.Revision != e.revision {
				var err error
				if sw, err = wire.DecodeSwitch(e.document, revision); err != nil {
					continue
				}
			}
			switches[e.key] = sw
		}
	}
	v.policies, v.switches = policies, switches
}

// Commit refuses: what a relay serves is changed at the root of the tree.
func (r *Relay) Commit(context.Context, policy.Transaction) (policy.Revision, error) {
	return 0, fault.New(fault.Refused, "relay_takes_no_writes", "this is a relay, which takes no writes; its upstream is %s", r.Standing().Upstream).
		WithHint("Ask policyd: %s, or what it relays.", strings.Join(r.cfg.Upstream, ", "))
}
