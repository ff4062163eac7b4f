// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// state is what Run knows of the store. The maps that a published view shares are copied
// before the first change after it; the others are Run's own.
type state struct {
	epoch         policy.Epoch
	history       *policy.History
	epochRevision int64 // mod revision of the epoch's key, for comparing
	cluster       uint64
	// revision of the newest change to a document. It follows from what is stored, so every
	// replica says the same, whatever other keys the store holds.
	revision policy.Revision
	// written is the newest at which a document, a record of deletions or the epoch was put:
	// those that no branch begins before. Other hands may have deleted something since.
	written policy.Revision
	since   policy.Revision // deletions after it are all in deleted

	documents  map[string]document // by key below the prefix
	tombstones map[string]tombstone
	deleted    map[string]policy.Revision
	unreadable map[string]policy.Revision // values that do not decode, as last logged
	unrecorded map[string]policy.Revision // deleted by other hands, without a tombstone so far

	// shared with views
	policies map[engine.Scope]*policy.Policy
	switches map[string]*policy.Switch
	ended    map[string]*policy.Switch
	owned    ownership
}

// ownership says which shared maps no published view has yet.
type ownership struct{ policies, switches, ended bool }

func newState() *state {
	return &state{
		documents:  make(map[string]document),
		tombstones: make(map[string]tombstone),
		deleted:    make(map[string]policy.Revision),
		unreadable: make(map[string]policy.Revision),
		unrecorded: make(map[string]policy.Revision),
		policies:   make(map[engine.Scope]*policy.Policy),
		switches:   make(map[string]*policy.Switch),
		ended:      make(map[string]*policy.Switch),
		owned:      ownership{true, true, true},
	}
}

// put takes in a policy or switch.
func (st *state) put(key string, d document) {
	st.documents[key] = d
	delete(st.deleted, key)
	delete(st.unreadable, key)
	delete(st.unrecorded, key)
	if d.policy != nil {
		st.ownPolicies()
		st.policies[d.scope] = d.policy
		return
	}
	st.ownSwitches()
	st.switches[d.active.ID] = d.active
}

// remove forgets a policy or switch that was deleted at revision.
func (st *state) remove(key string, d document, revision policy.Revision) {
	delete(st.documents, key)
	st.deleted[key] = revision
	if d.policy != nil {
		st.ownPolicies()
		delete(st.policies, d.scope)
		return
	}
	st.ownSwitches()
	delete(st.switches, d.active.ID)
}

func (st *state) ownPolicies() {
	if !st.owned.policies {
		st.policies, st.owned.policies = maps.Clone(st.policies), true
	}
}

func (st *state) ownSwitches() {
	if !st.owned.switches {
		st.switches, st.owned.switches = maps.Clone(st.switches), true
	}
}

func (st *state) ownEnded() {
	if !st.owned.ended {
		st.ended, st.owned.ended = maps.Clone(st.ended), true
	}
}

// bury takes in the record of deleted keys.
func (st *state) bury(key string, t tombstone) {
	st.tombstones[key] = t
	st.revision, st.written = max(st.revision, t.revision), max(st.written, t.revision)
	for _, k := range t.keys {
		delete(st.unrecorded, k)
		// A key that came back lives, unless the record is of a later deletion, and then its
		// event has removed it.
		if _, alive := st.documents[k]; !alive {
			st.deleted[k] = max(st.deleted[k], t.revision)
		}
	}
}

// unbury forgets a record that was swept.
func (st *state) unbury(key string) {
	for _, k := range st.tombstones[key].keys {
		if st.deleted[k] == st.tombstones[key].revision {
			delete(st.deleted, k)
		}
	}
	delete(st.tombstones, key)
}

// everything returns all documents and the deletions still known, oldest first.
func (st *state) everything() []policy.Change {
	changes := make([]policy.Change, 0, len(st.documents)+len(st.deleted))
	for key, d := range st.documents {
		changes = append(changes, written(key, d))
	}
	for key, revision := range st.deleted {
		changes = append(changes, st.deletion(key, revision))
	}
	sortChanges(changes)
	return changes
}

func written(key string, d document) policy.Change {
	return policy.Change{Key: key, Revision: d.revision, Document: d.raw, Scope: d.scope, Urgent: d.active != nil}
}

// deletion describes a deleted key when only the key is known. A switch that nobody
// remembers concerns everyone, as does a key that is none: hearing of it does no harm.
func (st *state) deletion(key string, revision policy.Revision) policy.Change {
	if scope, ok := strings.CutPrefix(key, dirPolicies); ok && scope != "" {
		return policy.Change{Key: key, Revision: revision, Scope: engine.Scope(scope)}
	}
	scope := engine.Global
	if ended, ok := st.ended[strings.TrimPrefix(key, dirSwitches)]; ok {
		scope = ended.Scope
	}
	return policy.Change{Key: key, Revision: revision, Scope: scope, Urgent: true}
}

func sortChanges(changes []policy.Change) {
	slices.SortFunc(changes, func(a, b policy.Change) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Key, b.Key))
	})
}

// difference returns what changed from old to st, which was read later, oldest first. past
// says that some of it happened at or before old's revision, so that old was wrong.
func (st *state) difference(old *state) (changes []policy.Change, past bool) {
	for key, d := range st.documents {
		if was, ok := old.documents[key]; !ok || was.revision != d.revision {
			changes = append(changes, written(key, d))
		}
	}
	for key, was := range old.documents {
		if _, ok := st.documents[key]; ok {
			continue
		}
		c := policy.Change{Key: key, Revision: st.deleted[key], Scope: was.scope, Urgent: was.active != nil}
		if c.Revision == 0 {
			c.Revision = st.revision // deleted by hand: nothing says when
			st.deleted[key] = c.Revision
			st.unrecorded[key] = c.Revision
		}
		changes = append(changes, c)
	}
	for _, c := range changes {
		past = past || c.Revision <= old.revision
	}
	// What came and went in between was never seen here, but an instance may hold it that was
	// with another replica.
	for key, revision := range st.deleted {
		if _, known := old.documents[key]; !known && revision > old.deleted[key] {
			changes = append(changes, st.deletion(key, revision))
		}
	}
	sortChanges(changes)
	return changes, past
}

// drifted compares the view with keys listed at revision and returns the keys that are not
// as they should be. What moved after revision is not compared.
func (st *state) drifted(listed []*mvccpb.KeyValue, below func([]byte) string, revision policy.Revision) []string {
	var wrong []string
	stored := make(map[string]policy.Revision, len(listed))
	for _, kv := range listed {
		key, mod := below(kv.GetKey()), policy.Revision(kv.GetModRevision())
		stored[key] = mod
		known, ok := st.documents[key]
		switch {
		case ok && (known.revision == mod || known.revision > revision):
		case st.unreadable[key] == mod, st.deleted[key] > revision:
		default:
			wrong = append(wrong, key)
		}
	}
	for key, d := range st.documents {
		if _, ok := stored[key]; !ok && d.revision <= revision && st.unreadable[key] <= revision {
			wrong = append(wrong, key)
		}
	}
	slices.Sort(wrong)
	return wrong
}
