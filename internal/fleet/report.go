// SPDX-License-Identifier: Apache-2.0

package fleet

import "sync"

// Other is the endpoint under which a report sums what it does not list.
const Other = "other"

// Fold keeps at most limit endpoints: the last of them becomes the sum of all that do not
// fit.
func (r *Report) Fold(limit int) {
	if len(r.Endpoints) <= limit {
		return
	}
	rest := EndpointReport{Endpoint: Other, Unmatched: true}
	for i := range r.Endpoints[limit-1:] {
		rest.add(&r.Endpoints[limit-1+i])
	}
	kept := make([]EndpointReport, limit)
	copy(kept, r.Endpoints)
	kept[limit-1] = rest
	r.Endpoints = kept
}

// maxFoldedCodes bounds the codes of a sum.
const maxFoldedCodes = 32

func (e *EndpointReport) add(o *EndpointReport) {
	e.Calls += o.Calls
	e.Attempts += o.Attempts
	e.Failed += o.Failed
	e.Rescued += o.Rescued
	e.Rejected += o.Rejected
	if e.Suppressed == nil && len(o.Suppressed) > 0 {
		e.Suppressed = make(map[string]int64, len(o.Suppressed))
	}
	for code, n := range o.Suppressed {
		if _, known := e.Suppressed[code]; !known && len(e.Suppressed) >= maxFoldedCodes {
			code = Other
		}
		e.Suppressed[code] += n
	}
}

// take makes a report one that can be kept.
func (r *Registry) take(rep *Report) {
	if r.endpoints.Load() > MaxEndpoints {
		rep.Fold(1)
	}
	r.names.share(rep)
}

// reported is how many endpoints the last report holds.
func (in *Instance) reported() int64 {
	if in.Report == nil {
		return 0
	}
	return int64(len(in.Report.Endpoints))
}

// names keeps one copy of each endpoint's name and each code: a thousand instances report
// the same ones.
type names struct {
	// mu guards known.
	mu    sync.Mutex
	known map[string]string
}

const maxNames = 50_000

func (n *names) share(r *Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		e.Endpoint, e.Breaker = n.one(e.Endpoint), n.one(e.Breaker)
		if len(e.Suppressed) == 0 {
			continue
		}
		shared := make(map[string]int64, len(e.Suppressed))
		for code, count := range e.Suppressed {
			shared[n.one(code)] = count
		}
		e.Suppressed = shared
	}
}

func (n *names) one(s string) string {
	if kept, ok := n.known[s]; ok {
		return kept
	}
	if n.known == nil || len(n.known) >= maxNames {
		n.known = make(map[string]string)
	}
	n.known[s] = s
	return s
}
