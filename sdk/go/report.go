// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

const (
	reportEvery = 10 * time.Second
	// maxReported bounds the endpoints of one report; the rest is summed as other.
	maxReported = 200
	otherName   = "other"
)

// totals are counts of calls from the start of an endpoint on, or between two reports.
type totals struct {
	calls, attempts, failed, rescued, rejected uint64
	suppressed                                 map[engine.Code]uint64
}

// reported is what the next report starts from.
type reported struct {
	at       time.Time
	leftover totals // of endpoints that were dropped since
}

func totalsOf(s *engine.Stats) totals {
	t := totals{calls: s.Calls, attempts: s.Attempts(), failed: s.Failed, rescued: s.Rescued, rejected: s.Rejected}
	for _, code := range engine.Codes() {
		if n := s.Suppressed(code); n > 0 {
			t.suppress(code, n)
		}
	}
	return t
}

func (t *totals) suppress(code engine.Code, n uint64) {
	if t.suppressed == nil {
		t.suppressed = map[engine.Code]uint64{}
	}
	t.suppressed[code] += n
}

func (t *totals) empty() bool {
	return t.calls|t.attempts|t.failed|t.rescued|t.rejected == 0 && len(t.suppressed) == 0
}

func (t *totals) add(o totals) {
	t.calls += o.calls
	t.attempts += o.attempts
	t.failed += o.failed
	t.rescued += o.rescued
	t.rejected += o.rejected
	for code, n := range o.suppressed {
		t.suppress(code, n)
	}
}

// since returns what was added after o.
func (t *totals) since(o totals) totals {
	d := totals{
		calls: t.calls - o.calls, attempts: t.attempts - o.attempts, failed: t.failed - o.failed,
		rescued: t.rescued - o.rescued, rejected: t.rejected - o.rejected,
	}
	for code, n := range t.suppressed {
		if n > o.suppressed[code] {
			d.suppress(code, n-o.suppressed[code])
		}
	}
	return d
}

// unreported returns what no report has told yet.
func (e *endpoint) unreported(now engine.Instant) totals {
	stats := e.Stats(now)
	all := totalsOf(&stats)
	return all.since(e.reported)
}

// report sends reports until ctx ends, each after a random time of its own.
func (s *session) report(ctx context.Context) {
	for sleep(ctx, reportEvery*8/10+s.c.random.share(reportEvery*4/10)) {
		s.mu.Lock()
		if s.serving {
			_ = s.stream.Send(s.c.nextReport(time.Now())) // the receiver sees why it failed
		}
		s.mu.Unlock()
	}
}

// nextReport returns what happened since the last report and counts it as told.
func (c *Client) nextReport(now time.Time) *policydv1.WatchRequest {
	at := c.instant(now)
	type line struct {
		e     *endpoint
		stats engine.Stats
		since totals
	}
	var lines, turned []line
	c.mu.Lock()
	for _, e := range slices.Concat(c.named.all(), c.hosts.all()) {
		l := line{e: e, stats: e.Stats(at)}
		all := totalsOf(&l.stats)
		l.since, e.reported = all.since(e.reported), all
		if l.stats.Change != nil {
			turned = append(turned, l)
		}
		if !l.since.empty() || l.stats.Breaker.State != engine.BreakerClosed {
			lines = append(lines, l)
		}
	}
	report := &policydv1.Report{Period: durationpb.New(now.Sub(c.reported.at))}
	other := c.reported.leftover
	c.reported.leftover, c.reported.at = totals{}, now
	c.mu.Unlock()

	for _, l := range turned {
		c.breakerTurned(l.e, l.stats.Change)
	}
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.since.calls, a.since.calls), cmp.Compare(a.e.name, b.e.name))
	})
	named := len(lines)
	if named > maxReported || !other.empty() {
		named = min(named, maxReported-1)
	}
	for _, l := range lines[:named] {
		r := l.since.proto(l.e.name)
		r.Breaker = l.stats.Breaker.State.String()
		r.BudgetLeft = l.stats.Budget.Left
		r.Unmatched = l.e.unmatched
		report.Endpoints = append(report.Endpoints, r)
	}
	for _, l := range lines[named:] {
		other.add(l.since)
	}
	if !other.empty() {
		report.Endpoints = append(report.Endpoints, other.proto(otherName))
	}
	return &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Report{Report: report}}
}

func (t *totals) proto(name string) *policydv1.EndpointReport {
	r := &policydv1.EndpointReport{
		Endpoint: state.Printable(name), Calls: int64(t.calls), Attempts: int64(t.attempts), Failed: int64(t.failed),
		Rescued: int64(t.rescued), Rejected: int64(t.rejected),
	}
	for code, n := range t.suppressed {
		if r.Suppressed == nil {
			r.Suppressed = map[string]int64{}
		}
		r.Suppressed[string(code)] = int64(n)
	}
	return r
}
