// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/policyd/policyd/sdk/go/internal/idkey"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// queues are those that keep calls for a client.
type queues struct {
	mu    sync.Mutex
	count []*func(endpoint string, unmatched bool) int // guarded by mu
}

func addQueue(client any, count func(endpoint string, unmatched bool) int) (remove func()) {
	c, _ := client.(*Client)
	q := &c.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count = append(q.count, &count)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.count = slices.DeleteFunc(q.count, func(f *func(string, bool) int) bool { return f == &count })
	}
}

// kept is how many calls of an endpoint wait to be sent.
func (q *queues) kept(e *endpoint) (n int) {
	q.mu.Lock()
	counts := slices.Clone(q.count)
	q.mu.Unlock()
	for _, count := range counts {
		n += (*count)(e.name, e.unmatched)
	}
	return n
}

// targetOf tells the target of a request that a transport of a client is to send.
func targetOf(rt http.RoundTripper, req *http.Request) seam.Target {
	t, _ := rt.(*transport)
	to := t.client.target(req.Context(), t.endpoint(t.client, req)) //nolint:contextcheck // the watch outlives the call that starts it
	if set := req.Header.Get(to.Policy.Idempotency.Key.Header); set != "" {
		to.Key = idkey.Unquote(set)
	}
	return to
}

// targetNamed tells the target of a call by name.
func targetNamed(ctx context.Context, client any, name string, unmatched bool) seam.Target {
	c, _ := client.(*Client)
	return c.target(ctx, c.keptEndpoint(name, unmatched)) //nolint:contextcheck // the watch outlives the call that starts it
}

func (c *Client) keptEndpoint(name string, unmatched bool) *endpoint {
	if unmatched {
		return c.unmatched(name)
	}
	return c.endpoint(name)
}

func (c *Client) target(ctx context.Context, ep *endpoint) seam.Target {
	m := markOf(ctx)
	t := seam.Target{Name: ep.name, Unmatched: ep.unmatched, Policy: ep.Policy(), Acts: c.cfg.mode == Enforce, Inner: m.running() != nil}
	if cfg := m.options(); cfg != nil {
		t.Key = cfg.key
	}
	return t
}

// resending returns a context whose next call is that of a kept one.
func resending(ctx context.Context, r *seam.Resend) context.Context {
	return &mark{Context: ctx, config: &callConfig{key: r.Key, oneTry: true, resend: r}}
}

// resend is the kept call that a context is for, nil for none: not of a call within it.
func (m *mark) resend() *seam.Resend {
	if m == nil || m.of != nil || m.config == nil {
		return nil
	}
	return m.config.resend
}
