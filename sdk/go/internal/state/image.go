// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Image is a State as it was at one moment, cheap to take and immutable.
type Image struct {
	Meta     Meta
	epoch    string
	revision int64
	entries  []keyed
	ended    []heldSwitch
	now      time.Time
}

type keyed struct {
	key string
	entry
}

// Image takes what is in force for the disk cache.
func (s *State) Image(now time.Time) *Image {
	i := &Image{
		Meta:  Meta{Written: now.Round(0), ClockOffset: s.ahead, Whole: s.agreed, Left: s.Left(), Token: s.token},
		epoch: s.epoch, revision: s.revision, now: now,
		entries: make([]keyed, 0, len(s.entries)),
	}
	for key, e := range s.entries {
		i.entries = append(i.entries, keyed{key, e})
		i.Meta.Whole = i.Meta.Whole && e.rejected == nil
	}
	for _, sw := range s.ended {
		i.ended = append(i.ended, sw)
	}
	return i
}

// saved writes the image as the content of a cache file. Documents keep the revision at
// which they came into force.
func (i *Image) saved() Saved {
	c := Saved{Meta: i.Meta, update: &policydv1.Update{Epoch: i.epoch, Revision: i.revision, Snapshot: true}}
	slices.SortFunc(i.entries, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	for _, e := range i.entries {
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
	for _, sw := range i.ended {
		doc, err := proto.Marshal(sw.source)
		if err != nil {
			continue // it came from the wire; nothing but a fading effect is lost
		}
		// The end is kept as a time of policyd's clock, as the other ends are.
		end := i.now.Add(sw.sw.Ends.Sub(i.now)).Round(0).Add(i.Meta.ClockOffset)
		c.Meta.Ended = append(c.Meta.Ended, cachedSwitch{Document: doc, Revision: sw.sw.Revision, EndedAt: end})
	}
	return c
}

// Restore makes a State of the content and counts the documents that could not be used.
// Switches go on where they were: their ends are moments, not durations.
func (c *Saved) Restore(now time.Time) (s State, dropped int) {
	at := clock{now: now, ahead: c.Meta.ClockOffset}
	if behind := c.Meta.Written.Sub(now); behind > 0 {
		at.ahead += behind // this machine's clock was set back; time has passed all the same
	}
	s = State{
		epoch: c.update.GetEpoch(), revision: c.update.GetRevision(), ahead: at.ahead, entries: map[string]entry{},
		token: bounded(c.Meta.Token), left: slices.Clone(c.Meta.Left[max(0, len(c.Meta.Left)-MaxLeft):]),
	}
	for _, sent := range c.update.GetEntries() {
		e := s.read(sent, nil, at)
		if e.rejected != nil || len(s.entries) == MaxEntries {
			dropped++
			continue
		}
		if _, twice := s.entries[sent.GetKey()]; twice {
			dropped++
			continue
		}
		s.entries[sent.GetKey()] = *e
		s.hash += engine.EntryHash(sent.GetKey(), sent.GetRevision())
	}
	for _, gone := range c.Meta.Ended {
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
		s.keepEnded(*sw, now)
	}
	if s.agreed = c.Meta.Whole && dropped == 0 && s.epoch != ""; s.agreed {
		s.complete = s.revision
	}
	return s, dropped
}
