// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// document is one version of an entry, or its deletion. Immutable but for superseded.
type document struct {
	key      string
	scope    engine.Scope // "": deleted, and nobody knows where it was
	revision int64
	seq      uint64        // of the update that brought it; see snapshot
	at       time.Duration // when it was published
	deleted  bool
	drill    bool
	urgent   bool // no stream waits with it
	// encoded is the entry as it stands in field Update.entries, tag and length included.
	encoded mem.Buffer
	// superseded is the seq of the update that replaced it, 0: none.
	superseded atomic.Uint64
}

// liveAt reports whether the document was the newest of its key at a seq.
func (d *document) liveAt(seq uint64) bool {
	by := d.superseded.Load()
	return by == 0 || by > seq
}

func (d *document) hash() uint64 { return engine.EntryHash(d.key, d.revision) }

// snapshot is everything there is after one update. Immutable.
//
// Its seq counts applied updates. Streams are followed by seq and not by revision, because
// a repair may bring an entry whose revision they passed long ago.
type snapshot struct {
	epoch    string
	revision int64
	seq      uint64
	// since: a reader at an older revision may have missed a deletion.
	since   int64
	history *policy.History // nil: of a relay
	token   []byte          // proves that revision was served
	// spaces hold the documents by namespace, "" those that everybody sees.
	spaces map[string]space
}

// space is the log of one namespace in order of seq. A later snapshot may append to the
// same array; it never changes what an earlier one can reach.
type space struct {
	log []*document
	// dropped is the seq of the newest deletion that was removed from the log.
	dropped uint64
	garbage int // superseded documents in the log
}

func spaceOf(s engine.Scope) string {
	if s == "" || s == engine.Global {
		return ""
	}
	return s.Namespace()
}

// change is what an update did to one key; either side may be nil.
type change struct {
	before, after *document
}

func (c change) scope() engine.Scope { return c.after.scope }

// world keeps the newest snapshot and makes the next. Used by one goroutine at a time.
type world struct {
	snap *snapshot
	live map[string]*document // by key, deletions included
}

func newWorld() *world {
	return &world{
		snap: &snapshot{spaces: make(map[string]space)},
		live: make(map[string]*document),
	}
}

// apply makes the next snapshot. fresh says that it has nothing to do with the one before;
// else changes are what moved. After an error nothing has changed.
func (w *world) apply(u *policy.Update, at time.Duration) (changes []change, fresh bool, err error) {
	prev := w.snap
	fresh = string(u.Epoch) != prev.epoch
	switch {
	case fresh && !u.Reset:
		return nil, false, fmt.Errorf("update %d of epoch %q does not continue epoch %q", u.Revision, u.Epoch, prev.epoch)
	case !fresh && int64(u.Revision) < prev.revision:
		return nil, false, fmt.Errorf("update %d is older than revision %d", u.Revision, prev.revision)
	}
	next := &snapshot{
		epoch: string(u.Epoch), revision: int64(u.Revision), seq: prev.seq + 1,
		since: int64(u.DeletionsKnownSince), history: u.History, token: u.Token,
	}
	if next.token == nil {
		next.token = u.History.Token(u.Revision)
	}
	if fresh {
		next.spaces = make(map[string]space)
		w.live = make(map[string]*document)
	} else {
		next.spaces = maps.Clone(prev.spaces)
		next.since = max(next.since, prev.since)
	}
	w.snap = next

	grown := make(map[string]struct{})
	for i := range u.Changes {
		if c, ok := w.put(&u.Changes[i], int64(u.Revision), at); ok {
			grown[spaceOf(c.after.scope)] = struct{}{}
			if c.before != nil || !c.after.deleted {
				changes = append(changes, c)
			}
		}
	}
	if u.Reset && !fresh {
		for _, gone := range w.missing(u) {
			if c, ok := w.put(&gone, int64(u.Revision), at); ok {
				grown[spaceOf(c.after.scope)] = struct{}{}
				changes = append(changes, c)
			}
		}
	}
	for name := range grown {
		if sp := next.spaces[name]; sp.garbage >= minGarbage && sp.garbage >= len(sp.log)/2 {
			w.compact(name)
		}
	}
	return changes, fresh, nil
}

// missing returns deletions for the documents that a complete update does not mention.
func (w *world) missing(u *policy.Update) []policy.Change {
	mentioned := make(map[string]struct{}, len(u.Changes))
	for i := range u.Changes {
		mentioned[u.Changes[i].Key] = struct{}{}
	}
	var gone []policy.Change
	for key, d := range w.live {
		if _, ok := mentioned[key]; !ok && !d.deleted {
			gone = append(gone, policy.Change{Key: key, Revision: u.Revision, Scope: d.scope})
		}
	}
	return gone
}

// put appends a version to the log of its space, unless it is known or outdated.
func (w *world) put(c *policy.Change, revision int64, at time.Duration) (change, bool) {
	field, ok := entryField(c.Key)
	if !ok {
		return change{}, false
	}
	d := &document{
		key: c.Key, scope: c.Scope, revision: int64(c.Revision),
		seq: w.snap.seq, at: at, deleted: c.Deleted(), urgent: c.Urgent,
	}
	if d.revision <= 0 {
		d.revision = revision
	}
	before := w.live[c.Key]
	if before != nil {
		if before.revision > d.revision || before.revision == d.revision && before.deleted == d.deleted {
			return change{}, false
		}
		if d.scope == "" {
			d.scope = before.scope
		}
	}
	switch {
	case d.deleted:
		d.drill = before != nil && before.drill
	case field == fieldKillSwitch:
		d.drill = isDrill(c.Document)
	}
	d.encoded = encodeEntry(d, field, c.Document)
	w.live[c.Key] = d
	w.append(d)
	if before == nil {
		return change{after: d}, true
	}
	w.supersede(before)
	if before.deleted {
		return change{after: d}, true
	}
	return change{before: before, after: d}, true
}

func (w *world) append(d *document) {
	sp := w.snap.spaces[spaceOf(d.scope)]
	sp.log = append(sp.log, d)
	w.snap.spaces[spaceOf(d.scope)] = sp
}

func (w *world) supersede(d *document) {
	d.superseded.Store(w.snap.seq)
	sp := w.snap.spaces[spaceOf(d.scope)]
	sp.garbage++
	w.snap.spaces[spaceOf(d.scope)] = sp
}

const minGarbage = 256

// compact rebuilds the log of a space without what is superseded. Deletions that no resume
// point can need any more go with it.
func (w *world) compact(name string) {
	sp := w.snap.spaces[name]
	kept := make([]*document, 0, 2*(len(sp.log)-sp.garbage))
	for _, d := range sp.log {
		switch {
		case d.superseded.Load() != 0:
		case d.deleted && d.revision < w.snap.since:
			sp.dropped = max(sp.dropped, d.seq)
			delete(w.live, d.key)
		default:
			kept = append(kept, d)
		}
	}
	sp.log, sp.garbage = kept, 0
	w.snap.spaces[name] = sp
}

// Fields of Entry.
const (
	fieldKey        protowire.Number = 1
	fieldRevision   protowire.Number = 2
	fieldPolicy     protowire.Number = 3
	fieldKillSwitch protowire.Number = 4
	fieldDeleted    protowire.Number = 5
)

// entryField returns the field of Entry that holds the document of a key.
func entryField(key string) (protowire.Number, bool) {
	switch {
	case strings.HasPrefix(key, "policies/"):
		return fieldPolicy, true
	case strings.HasPrefix(key, "switches/"):
		return fieldKillSwitch, true
	}
	return 0, false
}

// encodeEntry returns the entry as it stands in an Update, around the stored bytes of the
// document.
func encodeEntry(d *document, field protowire.Number, doc []byte) mem.SliceBuffer {
	size := protowire.SizeTag(fieldKey) + protowire.SizeBytes(len(d.key)) +
		protowire.SizeTag(fieldRevision) + protowire.SizeVarint(uint64(d.revision))
	if d.deleted {
		size += protowire.SizeTag(fieldDeleted) + protowire.SizeVarint(1)
	} else {
		size += protowire.SizeTag(field) + protowire.SizeBytes(len(doc))
	}
	b := make([]byte, 0, protowire.SizeTag(fieldEntries)+protowire.SizeBytes(size))
	b = protowire.AppendTag(b, fieldEntries, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, fieldKey, protowire.BytesType)
	b = protowire.AppendString(b, d.key)
	b = protowire.AppendTag(b, fieldRevision, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(d.revision))
	if d.deleted {
		b = protowire.AppendTag(b, fieldDeleted, protowire.VarintType)
		return protowire.AppendVarint(b, 1)
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, doc)
}

// isDrill reads the flag from a stored switch. One that cannot be read is kept from
// everybody's sight no more than any other document: the receiver refuses it by name.
func isDrill(doc []byte) bool {
	var sw policydv1.KillSwitch
	return proto.Unmarshal(doc, &sw) == nil && sw.GetDrill()
}
