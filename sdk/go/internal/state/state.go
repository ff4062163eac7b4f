// SPDX-License-Identifier: Apache-2.0

// Package state holds what policyd sent an instance: it applies updates all or not at all,
// rejects documents that cannot be honoured for their scope, and keeps the last good state
// on disk. It never panics on input.
package state

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

// MaxEntries bounds what policyd can make a client keep.
const MaxEntries = 200_000

// State is what policyd and a client agree on: every entry that policyd sent, whether it is
// in force or was rejected. The zero State holds nothing. One goroutine at a time may use it.
type State struct {
	epoch    string
	revision int64
	hash     uint64 // over the entries as sent
	entries  map[string]entry
	// ended are switches that are gone while their effects fade, by id.
	ended map[string]heldSwitch
	// ahead is how far policyd's clock is ahead of this machine's.
	ahead time.Duration
	// complete is the newest revision that was in force without any rejection.
	complete int64
	// agreed: policyd may send changes from here on.
	agreed bool
	// current is the newest revision at which policyd said that the state is up to date.
	current int64
	// token and currentToken are policyd's proofs that it said revision and current.
	token, currentToken []byte
	// left are epochs that were held before, newest last. Nothing of them is taken any more.
	left []string
}

// MaxLeft is how many epochs a State remembers to have left.
const MaxLeft = 16

// maxToken bounds what is kept of a token.
const maxToken = 256

// Epoch is the life of the data that the state belongs to; "" for none.
func (s *State) Epoch() string { return s.epoch }

// Revision is the revision of the newest update taken.
func (s *State) Revision() int64 { return s.revision }

// Complete is the newest revision that was in force without any rejection.
func (s *State) Complete() int64 { return s.complete }

// Current takes a heartbeat: at that revision, too, the state is what policyd has. It reports
// false of one that says nothing of what is held: an older one, or while an update is missing.
func (s *State) Current(revision int64, token []byte) bool {
	if !s.agreed || revision < s.revision {
		return false
	}
	if revision > s.current {
		s.current, s.currentToken = revision, bounded(token)
	}
	return true
}

func bounded(token []byte) []byte {
	if len(token) == 0 || len(token) > maxToken {
		return nil
	}
	return slices.Clone(token)
}

// Left returns the epochs of which nothing is taken any more, newest last.
func (s *State) Left() []string { return slices.Clone(s.left) }

// Doubt makes the next stream start from a snapshot: an update could not be read.
func (s *State) Doubt() { s.agreed = false }

// entry is a document as sent, and what of it is in force. Immutable.
type entry struct {
	revision int64 // newest that was sent
	rejected *Rejection
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

// Change is what an update did beyond the documents that came into force.
type Change struct {
	NewEpoch bool
	// Rejected are the documents that this update brought and that are not in force.
	Rejected []Rejection
	// added are the scopes of policies, started the ids of switches, not in force before.
	added   []engine.Scope
	started []string
}

// Why an update changes nothing.
var (
	ErrOlder    = errors.New("update is older than what is held")
	ErrHash     = errors.New("state differs from policyd's")
	ErrNoEpoch  = errors.New("update of another epoch that is no snapshot")
	ErrLeft     = errors.New("policyd offers data that others have replaced")
	ErrTooLarge = fmt.Errorf("more than %d documents", MaxEntries)
)

// Apply takes a whole update in. Either all of it is taken, except for documents that are
// rejected for their scope, or an error says why nothing was.
func (s *State) Apply(u *policydv1.Update, now time.Time) (Change, error) {
	ch := Change{NewEpoch: s.epoch != "" && u.GetEpoch() != s.epoch}
	if slices.Contains(s.left, u.GetEpoch()) {
		return ch, fmt.Errorf("%w: epoch %.100q was left for %.100q", ErrLeft, u.GetEpoch(), s.epoch)
	}
	if u.GetEpoch() == s.epoch && u.GetRevision() < s.revision {
		return ch, ErrOlder
	}
	s.agreed = false // until the update is taken
	if u.GetEpoch() != s.epoch && !u.GetSnapshot() || u.GetEpoch() == "" {
		return ch, ErrNoEpoch
	}

	ahead, ok := clockAhead(u.GetServerTime(), now)
	if !ok {
		ahead = s.ahead
	}
	next, hash, err := s.staged(u, now, ahead)
	if err != nil {
		return ch, err
	}
	if hash != u.GetHash() {
		return ch, ErrHash
	}

	// From here on nothing can fail.
	if ch.NewEpoch {
		s.left = append(s.left, s.epoch)
		s.left = slices.Clone(s.left[max(0, len(s.left)-MaxLeft):])
		s.token = nil
	}
	if token := bounded(u.GetToken()); token != nil || u.GetRevision() != s.revision {
		s.token = token
	}
	s.epoch, s.revision, s.hash, s.ahead = u.GetEpoch(), u.GetRevision(), hash, ahead
	s.agreed, s.current, s.currentToken = true, s.revision, nil
	s.commit(next, &ch, now)
	if len(s.Rejections()) == 0 {
		s.complete = s.revision
	}
	return ch, nil
}

// staged returns the entries that the update changes, nil for those that go, and the hash of
// the state with them.
func (s *State) staged(u *policydv1.Update, now time.Time, ahead time.Duration) (map[string]*entry, uint64, error) {
	next := make(map[string]*entry, len(u.GetEntries()))
	hash, size := s.hash, len(s.entries)
	if u.GetSnapshot() {
		hash, size = 0, 0
		for key := range s.entries {
			next[key] = nil
		}
	}
	other := u.GetEpoch() != s.epoch
	for _, e := range u.GetEntries() {
		key := e.GetKey()
		have, held := s.entries[key]
		before, counted := have.revision, held && !u.GetSnapshot()
		if staged, seen := next[key]; seen && staged != nil {
			before, counted = staged.revision, true
		} else if seen && !u.GetSnapshot() {
			counted = false
		}
		if held && !other && e.GetRevision() < have.revision {
			return nil, 0, fmt.Errorf("%w: %.200q comes at %d, held at %d", ErrHash, key, e.GetRevision(), have.revision)
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
		next[key] = s.read(e, previous, clock{now: now, ahead: ahead, other: other})
		hash += engine.EntryHash(key, e.GetRevision())
		if size++; size > MaxEntries {
			return nil, 0, ErrTooLarge
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

// ClockSeen takes a reading of policyd's clock and reports whether the difference to this
// machine's is another one than before, so that what is saved would be wrong.
func (s *State) ClockSeen(server *timestamppb.Timestamp, now time.Time) bool {
	const tolerance = 2 * time.Second
	ahead, ok := clockAhead(server, now)
	if !ok || (ahead-s.ahead).Abs() <= tolerance {
		return false
	}
	s.ahead = ahead
	return true
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
func (s *State) read(e *policydv1.Entry, previous *entry, c clock) *entry {
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
func (s *State) commit(next map[string]*entry, ch *Change, now time.Time) {
	if s.entries == nil {
		s.entries = make(map[string]entry, len(next))
	}
	for id, sw := range s.ended {
		if sw.faded(now) {
			delete(s.ended, id)
		}
	}
	for key, e := range next {
		old := s.entries[key]
		if e == nil {
			delete(s.entries, key)
			e = &entry{}
		} else {
			s.entries[key] = *e
			if e.rejected != nil && e.rejected != old.rejected {
				ch.Rejected = append(ch.Rejected, *e.rejected)
			}
		}
		if old.policy == nil && e.policy != nil {
			ch.added = append(ch.added, e.policy.document.Scope)
		}
		if old.sw != e.sw {
			s.switched(old.sw, e.sw, ch, now)
		}
	}
	s.enforceLimits(ch)
	slices.SortFunc(ch.Rejected, func(a, b Rejection) int { return cmp.Compare(a.Scope, b.Scope) })
}

// switched notes a change of a switch. One that goes away starts to fade at once, or goes on
// fading if it had ended already.
func (s *State) switched(before, after *heldSwitch, ch *Change, now time.Time) {
	if after != nil {
		delete(s.ended, after.sw.ID)
		if before == nil {
			ch.started = append(ch.started, after.sw.ID)
		}
		return
	}
	gone := *before
	if gone.sw.Ends.After(now) {
		gone.sw.Ends = now
	}
	s.keepEnded(gone, now)
}

func (s *State) keepEnded(sw heldSwitch, now time.Time) {
	if sw.faded(now) {
		return
	}
	if s.ended == nil {
		s.ended = map[string]heldSwitch{}
	}
	s.ended[sw.sw.ID] = sw
}

// Rejections returns what was sent and is not in force, by key.
func (s *State) Rejections() []Rejection {
	var all []Rejection
	for _, e := range s.entries {
		if e.rejected != nil {
			all = append(all, *e.rejected)
		}
	}
	slices.SortFunc(all, func(a, b Rejection) int { return cmp.Compare(a.Scope, b.Scope) })
	return all
}

// Documents returns the policies in force.
func (s *State) Documents() map[engine.Scope]*engine.Document {
	all := make(map[engine.Scope]*engine.Document, len(s.entries))
	for _, e := range s.entries {
		if e.policy != nil {
			all[e.policy.document.Scope] = &e.policy.document
		}
	}
	return all
}

// Switches returns those in force or fading at now, by id. Their ends are moments of this
// process's monotonic clock.
func (s *State) Switches(now time.Time) []engine.Switch {
	var all []engine.Switch
	add := func(held heldSwitch) {
		if !held.faded(now) {
			all = append(all, held.sw)
		}
	}
	for _, e := range s.entries {
		if e.sw != nil {
			add(*e.sw)
		}
	}
	for _, held := range s.ended {
		add(held)
	}
	SortSwitches(all)
	return all
}

// SortSwitches brings switches into the order of their ids.
func SortSwitches(all []engine.Switch) {
	slices.SortFunc(all, func(a, b engine.Switch) int { return cmp.Compare(a.ID, b.ID) })
}

// Resume is the point from which policyd may send changes only; nil for a snapshot.
func (s *State) Resume() *policydv1.ResumePoint {
	if !s.agreed {
		return nil
	}
	p := &policydv1.ResumePoint{Epoch: s.epoch, Revision: s.revision, Hash: s.hash, Token: s.token}
	if s.current > s.revision {
		p.Revision, p.Token = s.current, s.currentToken
	}
	return p
}

// enforceLimits rejects what came on top of what a client keeps, however it got stored.
func (s *State) enforceLimits(ch *Change) {
	if len(s.entries) <= engine.MaxActiveSwitches { // the smaller of the two limits
		return
	}
	slices.Sort(ch.added)
	slices.Sort(ch.started)
	policies, active := map[string]int{}, 0
	for _, e := range s.entries {
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
			s.refuse(policyPrefix+string(scope), ch, fmt.Sprintf("more than %d policies in %s", engine.MaxPoliciesPerNS, ns))
		}
	}
	for _, id := range ch.started {
		if active > engine.MaxActiveSwitches {
			active--
			s.refuse(switchPrefix+id, ch, fmt.Sprintf("more than %d active switches", engine.MaxActiveSwitches))
		}
	}
}

// refuse takes an entry back that was not in force before.
func (s *State) refuse(key string, ch *Change, reason string) {
	e := s.entries[key]
	e.policy, e.sw = nil, nil
	e.rejected = newRejection(&policydv1.Entry{Key: key, Revision: e.revision}, errors.New(reason))
	s.entries[key] = e
	ch.Rejected = append(ch.Rejected, *e.rejected)
}
