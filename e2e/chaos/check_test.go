// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// violation is a promise that was not kept.
type violation struct {
	rule     string
	instance int // -1: of the store or of an edit
	text     string
}

func (v violation) String() string {
	if v.instance < 0 {
		return v.rule + ": " + v.text
	}
	return fmt.Sprintf("%s: %s: %s", v.rule, instanceName(v.instance), v.text)
}

// Rules, as violations name them.
const (
	ruleBack     = "an instance never goes back"
	ruleHash     = "an instance has what the store has"
	ruleMessage  = "what policyd sends can be used"
	ruleSwitch   = "a switch ends on time"
	ruleEpoch    = "an epoch changes with the data"
	ruleLog      = "no process breaks"
	ruleAudit    = "no edit without its record, none twice"
	ruleRefused  = "what was refused leaves no trace"
	ruleAcked    = "what was acknowledged is in the store"
	ruleInForce  = "what was acknowledged is in force"
	ruleGrowth   = "nothing grows"
	ruleShutdown = "processes end when asked to"
)

// order follows one instance and finds where its revision or its epoch goes back. A process
// that starts anew is another instance, but for the epochs that its disk cache remembers.
type order struct {
	instance int
	// remembers says of an epoch left at a time whether a process that starts at another
	// knows of it.
	remembers func(left, start time.Time) bool

	fed             int // number of the last event
	epoch           string
	confirmed, told int64
	left            map[string]time.Time // epochs before, and since when
	fresh           int                  // snapshots of other epochs that nobody was told of yet
	offered         string
}

// feed takes the events that are new in a history.
func (o *order) feed(history []event) (found []violation) {
	for _, e := range history {
		if e.n <= o.fed {
			continue
		}
		o.fed = e.n
		back := func(from int64) {
			found = append(found, violation{ruleBack, o.instance, fmt.Sprintf("from %d in epoch %.6s: %s", from, o.epoch, e)})
		}
		at := time.Unix(0, e.At)
		switch e.Kind {
		case "start":
			for epoch, left := range o.left {
				if o.remembers == nil || !o.remembers(left, at) {
					delete(o.left, epoch)
				}
			}
			o.epoch, o.confirmed, o.told, o.fresh, o.offered = "", 0, 0, 0, ""
		case "ack", "rejected":
			if e.Epoch != o.epoch {
				if _, before := o.left[e.Epoch]; before {
					back(o.confirmed)
				}
				if o.left == nil {
					o.left = map[string]time.Time{}
				}
				if o.epoch != "" {
					o.left[o.epoch] = at
				}
				o.epoch, o.confirmed = e.Epoch, 0
			}
			if e.Revision < o.confirmed {
				back(o.confirmed)
			}
			o.confirmed = max(o.confirmed, e.Revision)
		case "hello":
			if e.Epoch == o.epoch && e.Epoch != "" && e.Revision < o.confirmed {
				back(o.confirmed)
			}
			if o.offered == "" {
				o.offered = e.Epoch // of the disk cache
			}
		case "policy":
			// Told without its epoch, and later than the snapshot that brought a new one.
			if e.Revision < o.told {
				if o.fresh--; o.fresh < 0 {
					back(o.told)
				}
			}
			o.told = e.Revision
		case "snapshot":
			if e.Epoch != o.offered && o.offered != "" {
				o.fresh++
			}
			o.offered = e.Epoch
		}
	}
	return found
}

// checkEpochs finds epochs that came without a restore, and restores that went by without one
// although something was lost.
func checkEpochs(r *record, settled bool) (found []violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.lives {
		inherited := min(i, 1)
		if n := len(l.epochs); n > 1+inherited {
			found = append(found, violation{ruleEpoch, -1, fmt.Sprintf("life %d of the store has the epochs %q", i, l.epochs)})
		}
		if i == 0 || i < len(r.lives)-1 || !settled {
			continue
		}
		before := r.lives[i-1]
		if n := len(before.epochs); n > 0 && before.seen > l.base && slices.Contains(before.epochs, l.epochs[len(l.epochs)-1]) {
			found = append(found, violation{ruleEpoch, -1, fmt.Sprintf(
				"life %d went back from revision %d to %d and still has epoch %s", i, before.seen, l.base, before.epochs[n-1])})
		}
	}
	return found
}

// checkHashes compares every state that an instance confirmed, or says to hold when it comes,
// with the store at that revision, and every message with what can be used. What an instance
// holds counts as of the last heartbeat: one that vouched for more than was sent is found here.
func checkHashes(instance int, history []event, r *record) (found []violation, compared int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group := instance % len(r.groups)
	for _, e := range history {
		switch e.Kind {
		case "unfit", "mismatch", "unreadable", "rejected":
			found = append(found, violation{ruleMessage, instance, e.String()})
		}
		if confirmed := e.Kind == "ack" && e.HasHash; !confirmed && (e.Kind != "hello" || e.Epoch == "") {
			continue
		}
		known, fits := false, false
		for i, l := range r.lives {
			if !slices.Contains(l.epochs, e.Epoch) || e.Revision < l.base {
				continue
			}
			last := i == len(r.lives)-1
			if e.Revision > l.seen && !last {
				fits = true // written in the moment in which the store was killed for good
				continue
			}
			known = true
			hash, _ := l.lines[group].at(e.Revision)
			fits = fits || hash == e.Hash
		}
		if known && !fits {
			found = append(found, violation{ruleHash, instance, "the store had another state: " + e.String()})
		}
		if known {
			compared++
		}
	}
	return found, compared
}

// checkSwitches finds switches that an instance ended too late or, without being told, too
// early. allowed says by how much it may be late at a moment. Switches still on are judged
// at end.
func checkSwitches(instance int, history []event, end time.Time, allowed func(from, to time.Time) time.Duration) (found []violation, seen int) {
	type state struct {
		ends  int64
		ended bool // policyd said so
	}
	on := map[string]*state{}
	// told are the ends that policyd told last.
	told := map[string]int64{}
	judge := func(id string, s *state, at int64, off bool) {
		seen++
		ends := time.Unix(0, s.ends)
		late := time.Unix(0, at).Sub(ends)
		if bound := allowed(ends, time.Unix(0, at)); late > bound {
			found = append(found, violation{ruleSwitch, instance, fmt.Sprintf("%s on for %v too long (%v allowed)", id, late, bound)})
		}
		// An instance counts from when a message came. One that was long on its way gives a late
		// end, which the next message can take back.
		first := s.ends
		if e := told[id]; e != 0 {
			first = min(first, e)
		}
		const early = 50 * time.Millisecond
		if off && at < first-int64(early) && !s.ended {
			found = append(found, violation{ruleSwitch, instance, fmt.Sprintf("%s off %v early although nobody ended it", id, -late)})
		}
	}
	for _, e := range history {
		switch e.Kind {
		case "start":
			clear(on) // with its process
		case "switch":
			told[e.Text] = e.Ends
			if s := on[e.Text]; s != nil && e.Ends == 0 {
				s.ended = true
			}
		case "snapshot":
			for _, s := range on {
				s.ended = true // it may not be in it any more; the hash tells whether that is right
			}
		case "on":
			on[e.Text] = &state{ends: e.Ends, ended: told[e.Text] == 0 && hasKey(told, e.Text)}
		case "off":
			if s := on[e.Text]; s != nil {
				judge(e.Text, s, e.At, true)
				delete(on, e.Text)
			}
		}
	}
	for id, s := range on {
		judge(id, s, end.UnixNano(), false)
	}
	return found, seen
}

func hasKey(m map[string]int64, key string) bool { _, ok := m[key]; return ok }

// outcome is what an operator was told of an edit.
type outcome int

const (
	acknowledged outcome = iota
	refused
	unknown // neither: both are right
	unchanged
)

// edit is one thing that an operator asked for.
type edit struct {
	n        int
	kind     string
	reason   string           // unique; for edits of existing switches, that of their start
	markers  map[string]int64 // by key, of the policies written
	deleted  []string
	switchID string
	outcome  outcome
	revision int64 // if acknowledged
	life     int
	detail   string
	why      string // of an error: its code and reason
	at       time.Time
}

func (e *edit) String() string {
	return fmt.Sprintf("edit %d at %s: %s %s%v: %s", e.n, e.at.UTC().Format("15:04:05.000"), e.kind, e.switchID, sortedKeys(e.markers), e.detail)
}

func sortedKeys(m map[string]int64) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// checkAudit finds changes without exactly one record that names them, and records that
// stand alone or were written twice.
func checkAudit(r *record) (found []violation, compared int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lives {
		for _, rev := range l.order {
			t := l.revisions[rev]
			if len(t.changes) == 0 && len(t.audits) == 0 {
				continue
			}
			compared++
			var changed []string
			for _, c := range t.changes {
				// A switch whose effect is back moves away; its end was recorded before.
				if c.deleted && slices.Contains(t.moved, c.key) {
					continue
				}
				changed = append(changed, c.key)
			}
			if len(changed) == 0 && len(t.audits) == 0 {
				continue
			}
			slices.Sort(changed)
			if len(t.audits) != 1 {
				found = append(found, violation{ruleAudit, -1, fmt.Sprintf("revision %d changed %v with %d records", rev, changed, len(t.audits))})
				continue
			}
			named := slices.Sorted(slices.Values(t.audits[0].keys))
			if !slices.Equal(named, changed) {
				found = append(found, violation{ruleAudit, -1, fmt.Sprintf("revision %d changed %v, its record says %v", rev, changed, named)})
			}
		}
		for id, n := range l.records {
			if n != 1 {
				found = append(found, violation{ruleAudit, -1, fmt.Sprintf("record %s was written %d times", id, n)})
			}
		}
	}
	return found, compared
}

// checkEdits compares what operators were told with what the store went through.
func checkEdits(edits []*edit, r *record) (found []violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byReason := map[string][]place{}
	byMarker := map[int64][]place{}
	for i, l := range r.lives {
		for _, rev := range l.order {
			at := place{i, rev}
			for _, a := range l.revisions[rev].audits {
				byReason[a.action+" "+a.reason] = append(byReason[a.action+" "+a.reason], at)
			}
			for _, c := range l.revisions[rev].changes {
				if c.marker != 0 && !c.deleted {
					byMarker[c.marker] = append(byMarker[c.marker], at)
				}
			}
		}
	}
	for _, e := range edits {
		written := byReason[e.kind+" "+e.reason]
		own := e.kind != "switch.extend" && e.kind != "switch.revert" // else the reason is another's
		switch e.outcome {
		case unchanged:
		case acknowledged:
			l := r.lives[e.life]
			if t := l.revisions[e.revision]; e.revision > l.seen && e.life < len(r.lives)-1 {
				continue
			} else if t == nil || !t.holds(e) {
				found = append(found, violation{ruleAcked, -1, fmt.Sprintf("%s: revision %d does not hold it", e, e.revision)})
			}
			if own && len(written) != 1 {
				found = append(found, violation{ruleAudit, -1, fmt.Sprintf("%s: %d records: %v", e, len(written), written)})
			}
		case refused:
			if own && len(written) != 0 {
				found = append(found, violation{ruleRefused, -1, fmt.Sprintf("%s: records at %v", e, written)})
			}
			for key, marker := range e.markers {
				if at := byMarker[marker]; len(at) > 0 {
					found = append(found, violation{ruleRefused, -1, fmt.Sprintf("%s: %s written at %v", e, key, at)})
				}
			}
		case unknown:
			if own && len(written) > 1 {
				found = append(found, violation{ruleAudit, -1, fmt.Sprintf("%s: %d records: %v", e, len(written), written)})
			}
		}
	}
	return found
}

// place is a revision of a life.
type place struct {
	life     int
	revision int64
}

// holds reports whether a transaction is the one of an edit.
func (t *revision) holds(e *edit) bool {
	for key, marker := range e.markers {
		if !slices.ContainsFunc(t.changes, func(c change) bool { return c.key == key && c.marker == marker && !c.deleted }) {
			return false
		}
	}
	for _, key := range e.deleted {
		if !slices.ContainsFunc(t.changes, func(c change) bool { return c.key == key && c.deleted }) {
			return false
		}
	}
	return e.switchID == "" || slices.ContainsFunc(t.changes, func(c change) bool { return c.key == "switches/"+e.switchID })
}

// checkEnds finds switches that the store still calls active well after their end.
func checkEnds(r *record, now time.Time, allowed time.Duration) (found []violation) {
	for key, d := range r.present() {
		if _, ok := switchID(key); !ok || !d.active {
			continue
		}
		if late := now.Sub(time.Unix(0, d.ends)); late > allowed {
			found = append(found, violation{ruleSwitch, -1, fmt.Sprintf("%s is active in the store %v after its end (%v allowed)", key, late, allowed)})
		}
	}
	return found
}

// checkEffective compares what an instance says is in force with what the store says must be.
func checkEffective(e event, watched []string, r *record) (found []violation) {
	now := r.present()
	targets := r.groups[e.Instance%len(r.groups)]
	for _, name := range watched {
		want, from := int64(200*time.Millisecond), "built-in"
		for at := name; at != ""; {
			if d, ok := now["policies/"+at]; ok && visible(d.scope, targets) {
				want, from = d.marker, at
				break
			}
			switch i := strings.LastIndexByte(at, '/'); {
			case at == "global":
				at = ""
			case i < 0:
				at = "global"
			default:
				at = at[:i]
			}
		}
		if got := e.Values[name]; got != want {
			found = append(found, violation{ruleInForce, e.Instance, fmt.Sprintf(
				"%s has backoff.base %v, the store says %v (%s)", name, time.Duration(got), time.Duration(want), from)})
		}
	}
	return found
}

// checkLog finds in what a process wrote that it broke.
func checkLog(name, log string) (found []violation) {
	for line := range strings.Lines(log) {
		for _, sign := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: ", "view drifted from the store", "update refused", "panic="} {
			if strings.Contains(line, sign) {
				found = append(found, violation{ruleLog, -1, fmt.Sprintf("%s: %.300s", name, strings.TrimSpace(line))})
			}
		}
	}
	return found
}

// checkGrowth compares a figure with what it was before.
func checkGrowth(what string, before, after, factor, spare float64) []violation {
	if bound := before*factor + spare; after > bound {
		return []violation{{ruleGrowth, -1, fmt.Sprintf("%s: %.0f, was %.0f (at most %.0f)", what, after, before, bound)}}
	}
	return nil
}
