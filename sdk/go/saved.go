// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// savedState is a holding as it was at one moment, cheap to take and immutable.
type savedState struct {
	meta     cacheMeta
	epoch    string
	revision int64
	entries  []savedEntry
	ended    []heldSwitch
	now      time.Time
}

type savedEntry struct {
	key string
	entry
}

// save takes what is in force for the disk cache.
func (h *holding) save(now time.Time, whole bool) *savedState {
	s := &savedState{
		meta:  cacheMeta{Written: now.Round(0), ClockOffset: h.ahead, Whole: whole},
		epoch: h.epoch, revision: h.revision, now: now,
		entries: make([]savedEntry, 0, len(h.entries)),
	}
	for key, e := range h.entries {
		s.entries = append(s.entries, savedEntry{key, e})
		s.meta.Whole = s.meta.Whole && e.rejected == nil
	}
	for _, sw := range h.ended {
		s.ended = append(s.ended, sw)
	}
	return s
}

// cached writes the state as the content of a cache file. Documents keep the revision at
// which they came into force.
func (s *savedState) cached() cached {
	c := cached{meta: s.meta, update: &policydv1.Update{Epoch: s.epoch, Revision: s.revision, Snapshot: true}}
	slices.SortFunc(s.entries, func(a, b savedEntry) int { return cmp.Compare(a.key, b.key) })
	for _, e := range s.entries {
		out := &policydv1.Entry{Key: e.key}
		switch {
		case e.policy != nil:
			out.Revision = e.policy.document.Revision
			out.Document = &policydv1.Entry_Policy{Policy: e.policy.source}
		case e.sw != nil:
			out.Revision = e.sw.sw.Revision
			out.Document = &policydv1.Entry_KillSwitch{KillSwitch: e.sw.source}
		default:
			continue
		}
		c.update.Entries = append(c.update.Entries, out)
	}
	for _, sw := range s.ended {
		doc, err := proto.Marshal(sw.source)
		if err != nil {
			continue // it came from the wire; nothing but a fading effect is lost
		}
		// The end is kept as a time of policyd's clock, as the other ends are.
		end := s.now.Add(sw.sw.Ends.Sub(s.now)).Round(0).Add(s.meta.ClockOffset)
		c.meta.Ended = append(c.meta.Ended, cachedSwitch{Document: doc, Revision: sw.sw.Revision, EndedAt: end})
	}
	return c
}

// restore makes a holding of a cache file and counts the documents that could not be used.
// Switches go on where they were: their ends are moments, not durations.
func restore(c cached, now time.Time) (h holding, dropped int) {
	at := clock{now: now, ahead: c.meta.ClockOffset}
	if behind := c.meta.Written.Sub(now); behind > 0 {
		at.ahead += behind // this machine's clock was set back; time has passed all the same
	}
	h = holding{epoch: c.update.GetEpoch(), revision: c.update.GetRevision(), ahead: at.ahead, entries: map[string]entry{}}
	for _, sent := range c.update.GetEntries() {
		e := h.read(sent, nil, at)
		if e.rejected != nil || len(h.entries) == maxEntries {
			dropped++
			continue
		}
		if _, twice := h.entries[sent.GetKey()]; twice {
			dropped++
			continue
		}
		h.entries[sent.GetKey()] = *e
		h.hash += engine.EntryHash(sent.GetKey(), sent.GetRevision())
	}
	for _, gone := range c.meta.Ended {
		k := &policydv1.KillSwitch{}
		if err := proto.Unmarshal(gone.Document, k); err != nil {
			dropped++
			continue
		}
		k.ExpiresAt = timestamppb.New(gone.EndedAt)
		sw, err := readSwitch(switchPrefix+k.GetId(), k, gone.Revision, at)
		if err != nil {
			dropped++
			continue
		}
		if sw.sw.Ends.After(now) {
			sw.sw.Ends = now
		}
		h.keepEnded(*sw, now)
	}
	if c.meta.Whole && dropped == 0 {
		h.whole = h.revision
	}
	return h, dropped
}

// contentOf returns what of a holding is in force.
func contentOf(h *holding, now time.Time) content {
	return content{revision: h.revision, documents: h.documents(), switches: h.switches(now)}
}
