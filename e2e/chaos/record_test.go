// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const prefix = "/policyd/v1/"

func switchID(key string) (string, bool) { return strings.CutPrefix(key, "switches/") }

// hashOf is the hash of a state as docs/protocol.md defines it.
func hashOf(entries map[string]int64) (h uint64) {
	for key, revision := range entries {
		h += engine.EntryHash(key, revision)
	}
	return h
}

// change is what one revision of the store did to one key.
type change struct {
	key     string
	deleted bool
	scope   engine.Scope
	marker  int64 // backoff.base of a policy in nanoseconds, the mark of the edit that wrote it
	active  bool  // of a switch
	ends    int64 // of a switch, nanoseconds since 1970
}

// audit is a record in the outbox.
type audit struct {
	id, action, reason, switchID string
	keys                         []string
}

// revision is one transaction of the store.
type revision struct {
	at      int64
	changes []change
	audits  []audit
	moved   []string // switches that went to ended/
	epoch   string   // set by this revision
}

// life is what one set of data went through: from the start, or from a restore on.
type life struct {
	base      int64 // revision at which it begins
	seen      int64 // up to which everything is known
	revisions map[int64]*revision
	order     []int64
	epochs    []string
	now       map[string]live // documents by key
	lines     []timeline      // by group
	records   map[string]int  // how often a record was written, by id
}

type live struct {
	change
	revision int64
}

// timeline is how the hash of what a group of instances sees moves.
type timeline struct {
	revisions []int64
	hashes    []uint64
}

// at returns the hash at a revision, and the revision that made it so.
func (t timeline) at(r int64) (uint64, int64) {
	i := sort.Search(len(t.revisions), func(i int) bool { return t.revisions[i] > r }) - 1
	if i < 0 {
		return 0, 0
	}
	return t.hashes[i], t.revisions[i]
}

// record is everything that the store went through, read from etcd itself.
type record struct {
	groups [][]engine.Scope

	mu      sync.Mutex
	lives   []*life
	changed chan struct{} // closed and replaced at each revision
}

func newRecord(targets [][]string) *record {
	r := &record{changed: make(chan struct{})}
	for _, names := range targets {
		var scopes []engine.Scope
		for _, name := range names {
			scopes = append(scopes, engine.Scope(name))
		}
		r.groups = append(r.groups, scopes)
	}
	return r
}

func visible(scope engine.Scope, targets []engine.Scope) bool {
	return scope == engine.Global || slices.ContainsFunc(targets, scope.Overlaps)
}

// begin starts a life with what the store holds at a revision.
func (r *record) begin(at int64, kvs []pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &life{
		base: at, seen: at, revisions: map[int64]*revision{}, now: map[string]live{},
		lines: make([]timeline, len(r.groups)), records: map[string]int{},
	}
	r.lives = append(r.lives, l)
	for _, kv := range kvs {
		switch key := kv.key; {
		case key == "meta/epoch":
			l.epochs = append(l.epochs, epochOf(kv.value))
		case isDocument(key):
			if c, err := changeOf(key, kv.value); err == nil {
				l.now[key] = live{c, kv.revision}
			}
		case strings.HasPrefix(key, "outbox/"):
			l.records[strings.TrimPrefix(key, "outbox/")]++
		}
	}
	r.mark(l, at)
	r.signal()
}

func (r *record) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// mark puts the hashes of l as they are on the lines; mu is held.
func (r *record) mark(l *life, at int64) {
	for g, targets := range r.groups {
		var hash uint64
		for key, d := range l.now {
			if visible(d.scope, targets) {
				hash += engine.EntryHash(key, d.revision)
			}
		}
		line := &l.lines[g]
		if n := len(line.hashes); n == 0 || line.hashes[n-1] != hash {
			line.revisions, line.hashes = append(line.revisions, at), append(line.hashes, hash)
		}
	}
}

// pair is a key below the prefix with its value.
type pair struct {
	key      string
	value    []byte
	revision int64
	deleted  bool
}

func isDocument(key string) bool {
	return strings.HasPrefix(key, "policies/") || strings.HasPrefix(key, "switches/")
}

func epochOf(value []byte) string {
	var e policydv1.StoredEpoch
	_ = proto.Unmarshal(value, &e)
	return e.GetId()
}

func changeOf(key string, value []byte) (change, error) {
	c := change{key: key}
	if _, ok := switchID(key); ok {
		var sw policydv1.KillSwitch
		if err := proto.Unmarshal(value, &sw); err != nil {
			return c, err
		}
		c.scope = engine.Scope(sw.GetSpec().GetScope())
		c.active = sw.GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE
		c.ends = sw.GetExpiresAt().AsTime().UnixNano()
		return c, nil
	}
	var p policydv1.Policy
	if err := proto.Unmarshal(value, &p); err != nil {
		return c, err
	}
	c.scope, c.marker = engine.Scope(p.GetScope()), int64(p.GetSpec().GetBackoff().GetBase().AsDuration())
	return c, nil
}

// take adds the events of one revision to the present life.
func (r *record) take(rev int64, pairs []pair) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.signal()
	l := r.lives[len(r.lives)-1]
	at := &revision{at: time.Now().UnixNano()}
	l.revisions[rev], l.seen = at, rev
	l.order = append(l.order, rev)
	documents := false
	for _, kv := range pairs {
		switch key := kv.key; {
		case isDocument(key) && kv.deleted:
			c := l.now[key].change
			c.key, c.deleted = key, true
			at.changes = append(at.changes, c)
			delete(l.now, key)
			documents = true
		case isDocument(key):
			c, err := changeOf(key, kv.value)
			if err != nil {
				return fmt.Errorf("revision %d: %s: %w", rev, key, err)
			}
			at.changes = append(at.changes, c)
			l.now[key] = live{c, rev}
			documents = true
		case strings.HasPrefix(key, "outbox/") && !kv.deleted:
			var e policydv1.StoredAuditEntry
			if err := proto.Unmarshal(kv.value, &e); err != nil {
				return fmt.Errorf("revision %d: %s: %w", rev, key, err)
			}
			a := audit{id: e.GetId(), action: e.GetAction(), reason: e.GetReason(), switchID: e.GetSwitchId()}
			for _, c := range e.GetChanges() {
				a.keys = append(a.keys, c.GetKey())
			}
			at.audits = append(at.audits, a)
			l.records[a.id]++
		case strings.HasPrefix(key, "ended/") && !kv.deleted:
			at.moved = append(at.moved, "switches/"+strings.TrimPrefix(key, "ended/"))
		case key == "meta/epoch" && !kv.deleted:
			at.epoch = epochOf(kv.value)
			l.epochs = append(l.epochs, at.epoch)
		}
	}
	if documents {
		r.mark(l, rev)
	}
	return nil
}

// follow reads what the store holds and follows it until ctx ends.
func (r *record) follow(ctx context.Context, client *clientv3.Client) error {
	got, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	var all []pair
	for _, kv := range got.Kvs {
		all = append(all, pair{key: strings.TrimPrefix(string(kv.GetKey()), prefix), value: kv.GetValue(), revision: kv.GetModRevision()})
	}
	at := got.Header.GetRevision()
	r.begin(at, all)
	var pending []pair
	for response := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(at+1)) {
		if err := response.Err(); err != nil {
			return err
		}
		for i, e := range response.Events {
			rev := e.Kv.GetModRevision()
			pending = append(pending, pair{
				key: strings.TrimPrefix(string(e.Kv.GetKey()), prefix), value: e.Kv.GetValue(),
				revision: rev, deleted: e.Type == clientv3.EventTypeDelete,
			})
			if i+1 < len(response.Events) && response.Events[i+1].Kv.GetModRevision() == rev {
				continue
			}
			if err := r.take(rev, pending); err != nil {
				return err
			}
			pending = nil
		}
	}
	return nil
}

// present returns the documents of the present life.
func (r *record) present() map[string]live {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lives) == 0 {
		return nil
	}
	l := r.lives[len(r.lives)-1]
	now := make(map[string]live, len(l.now))
	for key, d := range l.now {
		now[key] = d
	}
	return now
}

// goal is the state that the instances of a group must have.
type goal struct {
	epoch    string
	revision int64 // from which on it counts as reached
	hash     uint64
}

// goals returns what the instances of each group must have now.
func (r *record) goals() []goal {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lives[len(r.lives)-1]
	goals := make([]goal, len(r.groups))
	for g := range goals {
		goals[g].hash, goals[g].revision = l.lines[g].at(l.seen)
		if n := len(l.epochs); n > 0 {
			goals[g].epoch = l.epochs[n-1]
		}
	}
	return goals
}
