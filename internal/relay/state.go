// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const (
	policyPrefix = "policies/"
	switchPrefix = "switches/"

	// maxEntries bounds what an upstream can make a relay keep.
	maxEntries = 200_000
	// Deletions are known for an hour, as policyd knows them, and not more than these.
	keepDeletions = time.Hour
	maxDeletions  = 20_000
	// leftFor is how long an epoch that was left is not taken again: a replica of policyd may
	// not have noticed yet that the store was restored.
	leftFor = 5 * time.Minute
)

// state is what an upstream and this relay agree on. One goroutine at a time may use it.
type state struct {
	epoch string
	// revision is the newest at which the upstream said that this is what there is.
	revision int64
	hash     uint64
	// token is the upstream's proof that it served the revision, handed on as it came.
	token []byte
	// since: deletions after it are all in deleted.
	since   int64
	entries map[string]entry
	deleted map[string]tombstone
	// left are the epochs before this one and when they ended.
	left map[string]time.Time
	// agreed: the upstream may send changes from here on.
	agreed bool
}

// entry is a document as it was sent. Immutable.
type entry struct {
	sent

	scope engine.Scope
}

type tombstone struct {
	revision int64
	scope    engine.Scope
	at       time.Time
}

// Why an update changes nothing.
var (
	errOlder    = errors.New("update is older than what is held")
	errHash     = errors.New("state differs from the upstream's")
	errNoEpoch  = errors.New("update of another epoch that is no snapshot")
	errLeft     = errors.New("update of an epoch that was left: the upstream has not noticed yet that the store was restored")
	errTooLarge = fmt.Errorf("more than %d documents", maxEntries)
)

// apply takes a whole update in and returns it as the hub takes it, or says why nothing was.
func (s *state) apply(u *update, now time.Time) (policy.Update, error) {
	other := u.GetEpoch() != s.epoch
	if !other && u.GetRevision() < s.revision {
		return policy.Update{}, errOlder
	}
	if ended, ok := s.left[u.GetEpoch()]; ok && now.Sub(ended) < leftFor {
		return policy.Update{}, errLeft
	}
	s.agreed = false // until the update is taken
	if other && !u.GetSnapshot() || u.GetEpoch() == "" {
		return policy.Update{}, errNoEpoch
	}
	next, hash, err := s.staged(u, other)
	if err != nil {
		return policy.Update{}, err
	}
	if hash != u.GetHash() {
		return policy.Update{}, errHash
	}

	// From here on nothing can fail.
	if other {
		s.leave(now)
		s.epoch, s.entries, s.deleted, s.since = u.GetEpoch(), nil, nil, 0
	}
	if other || u.GetRevision() != s.revision || len(u.GetToken()) > 0 {
		s.token = bounded(u.GetToken())
	}
	s.revision, s.hash, s.agreed = u.GetRevision(), hash, true
	out := policy.Update{
		Epoch: policy.Epoch(s.epoch), Revision: policy.Revision(s.revision), Reset: u.GetSnapshot(), Token: s.token,
	}
	if u.GetSnapshot() {
		s.entries, s.deleted, s.since = make(map[string]entry, len(next)), nil, s.revision
	}
	for key, e := range next {
		out.Changes = append(out.Changes, s.put(key, e, now))
	}
	sortChanges(out.Changes)
	s.trim(now)
	out.DeletionsKnownSince = policy.Revision(s.since)
	return out, nil
}

// current takes a heartbeat. It reports whether the heartbeat speaks of what is held, and
// whether it moves the revision.
func (s *state) current(beat *policydv1.Heartbeat) (holds, news bool) {
	if !s.agreed || beat.GetRevision() < s.revision {
		return false, false
	}
	if beat.GetRevision() == s.revision {
		return true, false
	}
	s.revision, s.token = beat.GetRevision(), bounded(beat.GetToken())
	return true, true
}

// maxToken bounds what is kept of a token.
const maxToken = 256

func bounded(token []byte) []byte {
	if len(token) == 0 || len(token) > maxToken {
		return nil
	}
	return slices.Clone(token)
}

// leave remembers the epoch that ends now.
func (s *state) leave(now time.Time) {
	for epoch, ended := range s.left {
		if now.Sub(ended) >= leftFor {
			delete(s.left, epoch)
		}
	}
	if s.epoch != "" {
		if s.left == nil {
			s.left = make(map[string]time.Time)
		}
		s.left[s.epoch] = now
	}
}

// staged returns the entries that the update brings and the hash of the state with them.
func (s *state) staged(u *update, other bool) (map[string]sent, uint64, error) {
	next := make(map[string]sent, len(u.entries))
	hash, size := s.hash, len(s.entries)
	if u.GetSnapshot() {
		hash, size = 0, 0
	}
	for _, e := range u.entries {
		before, held := s.entries[e.key]
		if held && !other && e.revision < before.revision {
			return nil, 0, fmt.Errorf("%w: %.200q comes at %d, held at %d", errHash, e.key, e.revision, before.revision)
		}
		if _, twice := next[e.key]; twice {
			return nil, 0, fmt.Errorf("%w: %.200q comes twice", errHash, e.key)
		}
		next[e.key] = e
		if held && !u.GetSnapshot() {
			hash -= engine.EntryHash(e.key, before.revision)
			size--
		}
		if e.document != nil {
			hash += engine.EntryHash(e.key, e.revision)
			size++
		}
	}
	if size > maxEntries {
		return nil, 0, errTooLarge
	}
	return next, hash, nil
}

// put takes one entry in and returns the change.
func (s *state) put(key string, e sent, now time.Time) policy.Change {
	held := s.entries[key]
	c := policy.Change{
		Key: key, Revision: policy.Revision(e.revision), Document: e.document,
		Urgent: strings.HasPrefix(key, switchPrefix),
	}
	if e.document == nil {
		// A switch that nobody remembers concerns everyone: hearing of it does no harm.
		c.Scope = cmp.Or(held.scope, engine.Global)
		if scope, ok := strings.CutPrefix(key, policyPrefix); ok {
			c.Scope = engine.Scope(scope)
		}
		delete(s.entries, key)
		if s.deleted == nil {
			s.deleted = make(map[string]tombstone)
		}
		s.deleted[key] = tombstone{revision: e.revision, scope: c.Scope, at: now}
		return c
	}
	if held.revision == e.revision {
		c.Document = held.document // the bytes that are shared already
		e = held.sent
	}
	c.Scope = scopeOf(e)
	delete(s.deleted, key)
	s.entries[key] = entry{sent: e, scope: c.Scope}
	return c
}

// scopeOf returns where a document applies. One that says nothing readable is for
// everybody, who refuse it by name.
func scopeOf(e sent) engine.Scope {
	if scope, ok := strings.CutPrefix(e.key, policyPrefix); ok {
		return engine.Scope(scope)
	}
	var k policydv1.KillSwitch
	if !strings.HasPrefix(e.key, switchPrefix) || proto.Unmarshal(e.document, &k) != nil {
		return engine.Global
	}
	scope, err := engine.ParseScope(k.GetSpec().GetScope())
	if err != nil {
		return engine.Global
	}
	return scope
}

// trim forgets deletions that are old, or too many.
func (s *state) trim(now time.Time) {
	for key, t := range s.deleted {
		if now.Sub(t.at) >= keepDeletions {
			delete(s.deleted, key)
			s.since = max(s.since, t.revision)
		}
	}
	if len(s.deleted) > maxDeletions {
		s.deleted, s.since = nil, s.revision
	}
}

// everything returns the state as the hub takes it at the start.
func (s *state) everything() policy.Update {
	out := policy.Update{
		Epoch: policy.Epoch(s.epoch), Revision: policy.Revision(s.revision), Token: s.token, Reset: true,
		DeletionsKnownSince: policy.Revision(s.since),
	}
	for key, e := range s.entries {
		out.Changes = append(out.Changes, policy.Change{
			Key: key, Revision: policy.Revision(e.revision), Document: e.document, Scope: e.scope,
			Urgent: strings.HasPrefix(key, switchPrefix),
		})
	}
	for key, t := range s.deleted {
		out.Changes = append(out.Changes, policy.Change{Key: key, Revision: policy.Revision(t.revision), Scope: t.scope})
	}
	sortChanges(out.Changes)
	return out
}

func sortChanges(changes []policy.Change) {
	slices.SortFunc(changes, func(a, b policy.Change) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Key, b.Key))
	})
}

// resume is the point from which the upstream may send changes only; nil for a snapshot.
func (s *state) resume() *policydv1.ResumePoint {
	if !s.agreed {
		return nil
	}
	return &policydv1.ResumePoint{Epoch: s.epoch, Revision: s.revision, Hash: s.hash, Token: s.token}
}
