// SPDX-License-Identifier: Apache-2.0

package push

import (
	"sync/atomic"
	"time"
)

// Stats counts what a Hub does. All but Streams, Views and the position grow only.
type Stats struct {
	Epoch    string
	Revision int64
	// Streams that are served now, and how many different sets of targets they have.
	Streams, Views int
	// Accepted, Refused and Resumed count streams: admitted, turned away, and admitted
	// without need of a snapshot. CutOff were ended because they confirmed nothing, or what
	// they had not read.
	Accepted, Refused, Resumed, CutOff int64
	// Published counts updates that came in, Updates and Bytes what went out to streams.
	Published, Updates, Bytes int64
	// Snapshots are updates that carried everything; Coalesced carried more than one change
	// because the stream was behind.
	Snapshots, Coalesced int64
	// Rejected counts documents that instances refused, as often as they said so.
	Rejected int64
	// Propagation is the time from Publish to the confirmation of an instance.
	Propagation Histogram
}

// Histogram counts durations. Buckets are not cumulative; the last has no upper bound.
type Histogram struct {
	// Bounds are the upper bounds of all buckets but the last.
	Bounds  []time.Duration
	Buckets []int64
	Sum     time.Duration
}

type counters struct {
	accepted, refused, resumed, cutOff              atomic.Int64
	published, updates, bytes, snapshots, coalesced atomic.Int64
	rejected                                        atomic.Int64
	propagation                                     histogram
}

const (
	firstBound = time.Millisecond
	// Each bound is twice the one before: 1 ms to 16 s.
	numBounds = 15
)

type histogram struct {
	buckets [numBounds + 1]atomic.Int64
	sum     atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i, bound := 0, firstBound
	for i < numBounds && d > bound {
		i++
		bound *= 2
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) read() Histogram {
	r := Histogram{Sum: time.Duration(h.sum.Load())}
	for i := range h.buckets {
		if i < numBounds {
			r.Bounds = append(r.Bounds, firstBound<<i)
		}
		r.Buckets = append(r.Buckets, h.buckets[i].Load())
	}
	return r
}

// Stats returns the counts so far.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	views := len(h.views.all)
	h.mu.Unlock()
	h.roster.Lock()
	streams := len(h.streams)
	h.roster.Unlock()
	snap, c := h.snap.Load(), &h.stats
	return Stats{
		Epoch: snap.epoch, Revision: snap.revision, Streams: streams, Views: views,
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), Resumed: c.resumed.Load(), CutOff: c.cutOff.Load(),
		Published: c.published.Load(), Updates: c.updates.Load(), Bytes: c.bytes.Load(),
		Snapshots: c.snapshots.Load(), Coalesced: c.coalesced.Load(), Rejected: c.rejected.Load(),
		Propagation: c.propagation.read(),
	}
}
