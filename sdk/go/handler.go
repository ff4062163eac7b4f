// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/page"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// Handler serves a page for people, or JSON with Accept: application/json or ?format=json,
// at any path it is mounted on (for example /debug/policyz): status, kill switches,
// breakers, budgets and counts, the last decisions, and with ?endpoint=NAME its effective
// policy. It shows host and endpoint names, so mount it where only operators get; it shows
// no token. GET and HEAD only.
func (c *Client) Handler() http.Handler {
	return page.Serve(func(endpoint string) page.Page { return c.page(endpoint, time.Now()) })
}

// Bounds of a page: its endpoints, and the hosts of each.
const (
	maxShown      = 1_000
	maxHostsShown = 20
)

// moment is wall for a page, nil for none.
func (c *Client) moment(t engine.Instant) *time.Time {
	at := c.wall(t)
	if at.IsZero() {
		return nil
	}
	return &at
}

func (c *Client) page(endpoint string, now time.Time) page.Page {
	s := c.Status()
	p := page.Page{
		SDK: Version, Instance: c.cfg.instance, Namespace: c.cfg.namespace, Service: c.cfg.service, Mode: string(c.cfg.mode),
		Status: page.Status{
			State: string(s.State), Since: s.Since, Revision: s.Revision, Offered: s.Offered, Source: s.Source,
			Switches: make([]page.Switch, 0, len(s.Switches)),
		},
	}
	if !s.AsOf.IsZero() {
		p.Status.AsOf, p.Status.Age = &s.AsOf, age(now.Sub(s.AsOf))
	}
	if s.LastErr != nil {
		p.Status.LastErr = state.Printable(s.LastErr)
	}
	for _, sw := range s.Switches {
		p.Status.Switches = append(p.Status.Switches, page.Switch(sw))
	}
	p.Endpoints, p.Omitted = c.pageEndpoints(now)
	p.Decisions = []page.Decision{}
	for _, d := range c.recent.list() {
		p.Decisions = append(p.Decisions, page.Decision{
			At: d.at, Endpoint: d.err.Endpoint, Code: string(d.err.Code), Attempts: d.err.Attempts, Status: d.status,
			Observed: d.observed, Text: d.err.Error(),
		})
	}
	if endpoint != "" {
		p.Effective = pageEffectiveOf(c.Effective(clipName(endpoint)))
	}
	return p
}

// pageEndpoints returns the endpoints with most calls, and how many are left out.
func (c *Client) pageEndpoints(now time.Time) (shown []page.Endpoint, omitted int) {
	c.mu.Lock()
	all := slices.Concat(c.named.all(), c.hosts.all())
	scopes := make([]engine.Scope, len(all))
	for i, e := range all {
		scopes[i] = e.scope
	}
	c.mu.Unlock()
	shown = make([]page.Endpoint, 0, len(all))
	for i, e := range all {
		stats := e.Stats(c.instant(now))
		c.breakerTurned(e, stats.Change)
		line := page.Endpoint{
			Name: e.name, Unmatched: e.unmatched, Scope: string(scopes[i]),
			Breaker: stats.Breaker.State.String(), Rule: stats.Breaker.Rule.String(),
			BudgetLeft: stats.Budget.Left, BudgetUsed: stats.Budget.Used, GateOpen: stats.Budget.GateOpen,
			Calls: stats.Calls, Attempts: stats.Attempts(), Rescued: stats.Rescued, Failed: stats.Failed, Rejected: stats.Rejected,
		}
		for _, h := range stats.Hosts[:min(len(stats.Hosts), maxHostsShown)] {
			line.Hosts = append(line.Hosts, page.Host{Host: state.Printable(h.Host), Breaker: h.State.String(), Rule: h.Rule.String(), Until: c.moment(h.Until)})
		}
		line.OmittedHosts = len(stats.Hosts) - len(line.Hosts)
		line.Until = c.moment(stats.Breaker.Until)
		for code, n := range totalsOf(&stats).suppressed {
			if line.Suppressed == nil {
				line.Suppressed = map[string]uint64{}
			}
			line.Suppressed[string(code)] = n
		}
		shown = append(shown, line)
	}
	slices.SortFunc(shown, func(a, b page.Endpoint) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	omitted = max(0, len(shown)-maxShown)
	return shown[:len(shown)-omitted], omitted
}

func pageEffectiveOf(e Effective) *page.Effective {
	out := &page.Effective{Endpoint: e.Endpoint, Revision: e.Revision}
	known := map[string]bool{}
	add := func(path string) {
		v, ok := e.Values[path]
		if !ok || known[path] {
			return
		}
		known[path] = true
		line := page.Value{Path: path, Value: page.Written(v.Value), From: v.From}
		for _, s := range v.Shadow {
			line.Shadow = append(line.Shadow, page.Shadow{Value: page.Written(s.Value), From: s.From})
		}
		out.Values = append(out.Values, line)
	}
	for _, path := range []string{"switch.calls", "switch.retries", "breaker.forced"} {
		add(path)
	}
	for _, f := range engine.Fields() {
		add(f.Path())
	}
	return out
}
