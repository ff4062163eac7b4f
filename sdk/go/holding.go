// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Prefixes of storage keys.
const (
	policyPrefix = "policies/"
	switchPrefix = "switches/"
)

// maxDelivery is how long an update may have been under way before a switch of the longest
// duration counts as too long.
const maxDelivery = time.Minute

// maxEntries bounds what policyd can make a client keep.
const maxEntries = 200_000

// holding is the state that policyd and a client agree on: every entry that policyd sent,
// whether it is in force or was rejected. The zero value holds nothing. It is used by one
// goroutine at a time.
type holding struct {
	epoch    string
	revision int64
	hash     uint64 // over the entries as sent
	entries  map[string]entry
	// ended are switches that are gone while their effects fade, by id.
	ended map[string]heldSwitch
	// ahead is how far policyd's clock is ahead of this machine's.
	ahead time.Duration
	// whole is the newest revision that was in force without any rejection.
	whole int64
}

// entry is a document as sent, and what of it is in force. Immutable.
type entry struct {
	revision int64 // newest that was sent
	rejected *rejection
	policy   *heldPolicy
	sw       *heldSwitch
}

type heldPolicy struct {
	document engine.Document
	source   *policydv1.Policy
}

// heldSwitch has its end on this process's monotonic clock.
type heldSwitch struct {
	sw     engine.Switch
	source *policydv1.KillSwitch
}

// faded reports whether nothing is left of a switch on any instance.
func (s heldSwitch) faded(now time.Time) bool {
	return now.After(s.sw.Ends.Add(s.sw.Restore))
}

// change is what an update did beyond the documents that came into force.
type change struct {
	newEpoch bool
	// rejected are the documents that this update brought and that are not in force.
	rejected []rejection
	// added are the scopes of policies, started the ids of switches, not in force before.
	added   []engine.Scope
	started []string
}

// Why an update changes nothing.
var (
	errOlder    = errors.New("update is older than what is held")
	errHash     = errors.New("state differs from policyd's")
	errNoEpoch  = errors.New("update of another epoch that is no snapshot")
	errTooLarge = fmt.Errorf("more than %d documents", maxEntries)
)

// apply takes a complete update in. Either all of it is taken, except for documents that are
// rejected for their scope, or an error says why nothing was.
func (h *holding) apply(u *policydv1.Update, now time.Time) (change, error) {
	ch := change{newEpoch: h.epoch != "" && u.GetEpoch() != h.epoch}
	switch {
	case u.GetEpoch() != h.epoch && !u.GetSnapshot():
		return ch, errNoEpoch
	case u.GetEpoch() == h.epoch && u.GetRevision() < h.revision:
		return ch, errOlder
	}

	ahead, ok := clockAhead(u.GetServerTime(), now)
	if !ok {
		ahead = h.ahead
	}
	next, hash, err := h.staged(u, now, ahead)
	if err != nil {
		return ch, err
	}
	if hash != u.GetHash() {
		return ch, errHash
	}

	// From here on nothing can fail.
	h.epoch, h.revision, h.hash, h.ahead = u.GetEpoch(), u.GetRevision(), hash, ahead
	h.commit(next, &ch, now)
	if len(h.rejections()) == 0 {
		h.whole = h.revision
	}
	return ch, nil
}

// staged returns the entries that the update changes, nil for those that go, and the hash of
// the state with them.
func (h *holding) staged(u *policydv1.Update, now time.Time, ahead time.Duration) (map[string]*entry, uint64, error) {
	next := make(map[string]*entry, len(u.GetEntries()))
	hash, size := h.hash, len(h.entries)
	if u.GetSnapshot() {
		hash, size = 0, 0
		for key := range h.entries {
			next[key] = nil
		}
	}
	other := u.GetEpoch() != h.epoch
	for _, e := range u.GetEntries() {
		key := e.GetKey()
		have, held := h.entries[key]
		before, counted := have.revision, held && !u.GetSnapshot()
		if staged, seen := next[key]; seen && staged != nil {
			before, counted = staged.revision, true
		} else if seen && !u.GetSnapshot() {
			counted = false
		}
		if held && !other && e.GetRevision() < have.revision {
			return nil, 0, fmt.Errorf("%w: %.200q comes at %d, held at %d", errHash, key, e.GetRevision(), have.revision)
		}
		if counted {
			hash -= engine.EntryHash(key, before)
			size--
		}
		if e.GetDeleted() {
			next[key] = nil
			continue
		}
		var previous *entry
		if held {
			previous = &have
		}
		next[key] = h.read(e, previous, clock{now: now, ahead: ahead, other: other})
		hash += engine.EntryHash(key, e.GetRevision())
		if size++; size > maxEntries {
			return nil, 0, errTooLarge
		}
	}
	return next, hash, nil
}

// clockAhead is how far policyd's clock is ahead of this machine's.
func clockAhead(server *timestamppb.Timestamp, now time.Time) (time.Duration, bool) {
	if server == nil || !server.IsValid() {
		return 0, false
	}
	return server.AsTime().Sub(now), true
}

// clock is what it takes to bring an end of policyd's clock onto this process's.
type clock struct {
	now   time.Time
	ahead time.Duration
	other bool // the entry comes from another epoch than the one held
}

// here returns the moment of this process's monotonic clock that is t on policyd's clock.
func (c clock) here(t time.Time) time.Time {
	return c.now.Add(t.Sub(c.now.Add(c.ahead)))
}

// read makes an entry of what was sent; what was in force before stays if it is rejected.
func (h *holding) read(e *policydv1.Entry, previous *entry, c clock) *entry {
	if previous != nil && !c.other && previous.revision == e.GetRevision() {
		return previous // a switch keeps the end that was counted from its first arrival
	}
	next := entry{revision: e.GetRevision()}
	var err error
	switch doc := e.GetDocument().(type) {
	case *policydv1.Entry_Policy:
		next.policy, err = readPolicy(e.GetKey(), doc.Policy, e.GetRevision())
	case *policydv1.Entry_KillSwitch:
		next.sw, err = readSwitch(e.GetKey(), doc.KillSwitch, e.GetRevision(), c)
	default:
		err = errors.New("document of a kind that this SDK does not know")
	}
	if err != nil {
		next.rejected = newRejection(e, err)
		if previous != nil {
			next.policy, next.sw = previous.policy, previous.sw
		}
	}
	return &next
}

// commit puts the staged entries in and notes what that changes.
func (h *holding) commit(next map[string]*entry, ch *change, now time.Time) {
	if h.entries == nil {
		h.entries = make(map[string]entry, len(next))
	}
	for id, s := range h.ended {
		if s.faded(now) {
			delete(h.ended, id)
		}
	}
	for key, e := range next {
		old := h.entries[key]
		if e == nil {
			delete(h.entries, key)
			e = &entry{}
		} else {
			h.entries[key] = *e
			if e.rejected != nil && e.rejected != old.rejected {
				ch.rejected = append(ch.rejected, *e.rejected)
			}
		}
		if old.policy == nil && e.policy != nil {
			ch.added = append(ch.added, e.policy.document.Scope)
		}
		if old.sw != e.sw {
			h.switched(old.sw, e.sw, ch, now)
		}
	}
	h.enforceLimits(ch)
	slices.SortFunc(ch.rejected, func(a, b rejection) int { return cmp.Compare(a.Scope, b.Scope) })
}

// switched notes a change of a switch. One that goes away starts to fade at once, or goes on
// fading if it had ended already.
func (h *holding) switched(before, after *heldSwitch, ch *change, now time.Time) {
	if after != nil {
		delete(h.ended, after.sw.ID)
		if before == nil {
			ch.started = append(ch.started, after.sw.ID)
		}
		return
	}
	gone := *before
	if gone.sw.Ends.After(now) {
		gone.sw.Ends = now
	}
	h.keepEnded(gone, now)
}

func (h *holding) keepEnded(s heldSwitch, now time.Time) {
	if s.faded(now) {
		return
	}
	if h.ended == nil {
		h.ended = map[string]heldSwitch{}
	}
	h.ended[s.sw.ID] = s
}

// rejections returns what was sent and is not in force, by key.
func (h *holding) rejections() []rejection {
	var all []rejection
	for _, e := range h.entries {
		if e.rejected != nil {
			all = append(all, *e.rejected)
		}
	}
	slices.SortFunc(all, func(a, b rejection) int { return cmp.Compare(a.Scope, b.Scope) })
	return all
}

// documents returns the policies in force.
func (h *holding) documents() map[engine.Scope]*engine.Document {
	all := make(map[engine.Scope]*engine.Document, len(h.entries))
	for _, e := range h.entries {
		if e.policy != nil {
			all[e.policy.document.Scope] = &e.policy.document
		}
	}
	return all
}

// switches returns those in force or fading; the order carries no meaning.
func (h *holding) switches(now time.Time) []engine.Switch {
	var all []engine.Switch
	add := func(s heldSwitch) {
		if !s.faded(now) {
			all = append(all, s.sw)
		}
	}
	for _, e := range h.entries {
		if e.sw != nil {
			add(*e.sw)
		}
	}
	for _, s := range h.ended {
		add(s)
	}
	sortSwitches(all)
	return all
}

// sortSwitches brings switches into the order of their ids.
func sortSwitches(all []engine.Switch) {
	slices.SortFunc(all, func(a, b engine.Switch) int { return cmp.Compare(a.ID, b.ID) })
}

// resume is the point from which policyd may send changes only; nil if nothing is held.
func (h *holding) resume() *policydv1.ResumePoint {
	if h.epoch == "" {
		return nil
	}
	return &policydv1.ResumePoint{Epoch: h.epoch, Revision: h.revision, Hash: h.hash}
}

// enforceLimits rejects what came on top of what a client keeps, however it got stored.
func (h *holding) enforceLimits(ch *change) {
	if len(h.entries) <= engine.MaxActiveSwitches { // the smaller of the two limits
		return
	}
	slices.Sort(ch.added)
	slices.Sort(ch.started)
	policies, active := map[string]int{}, 0
	for _, e := range h.entries {
		if e.policy != nil {
			policies[e.policy.document.Scope.Namespace()]++
		}
		if e.sw != nil && e.sw.source.GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
			active++
		}
	}
	for _, scope := range ch.added {
		if ns := scope.Namespace(); policies[ns] > engine.MaxPoliciesPerNS {
			policies[ns]--
			h.refuse(policyPrefix+string(scope), ch, fmt.Sprintf("more than %d policies in %s", engine.MaxPoliciesPerNS, ns))
		}
	}
	for _, id := range ch.started {
		if active > engine.MaxActiveSwitches {
			active--
			h.refuse(switchPrefix+id, ch, fmt.Sprintf("more than %d active switches", engine.MaxActiveSwitches))
		}
	}
}

// refuse takes an entry back that was not in force before.
func (h *holding) refuse(key string, ch *change, reason string) {
	e := h.entries[key]
	e.policy, e.sw = nil, nil
	e.rejected = newRejection(&policydv1.Entry{Key: key, Revision: e.revision}, errors.New(reason))
	h.entries[key] = e
	ch.rejected = append(ch.rejected, *e.rejected)
}
