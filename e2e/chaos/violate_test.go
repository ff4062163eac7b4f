// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// What follows feeds every check a history that keeps its promise and ones that break it: a
// check that cannot fail proves nothing.

func ack(epoch string, revision int64) event {
	return event{Kind: "ack", Epoch: epoch, Revision: revision}
}

func TestChecks_order(t *testing.T) {
	snapshot := func(epoch string) event { return event{Kind: "snapshot", Epoch: epoch} }
	policy := func(revision int64) event { return event{Kind: "policy", Revision: revision} }
	for name, tc := range map[string]struct {
		history []event
		want    int
	}{
		"revisions that grow":                      {[]event{ack("a", 3), ack("a", 3), ack("a", 9)}, 0},
		"a lower revision in a new epoch":          {[]event{ack("a", 9), ack("b", 2), ack("b", 3)}, 0},
		"a lower revision in a new process":        {[]event{ack("a", 9), {Kind: "start"}, ack("a", 3)}, 0},
		"a lower revision":                         {[]event{ack("a", 9), ack("a", 8)}, 1},
		"a lower revision after a new stream":      {[]event{ack("a", 9), {Kind: "open"}, ack("a", 8)}, 1},
		"an epoch that comes back":                 {[]event{ack("a", 9), ack("b", 2), ack("a", 10)}, 1},
		"a resume from before what was confirmed":  {[]event{ack("a", 9), {Kind: "hello", Epoch: "a", Revision: 5}}, 1},
		"the SDK tells of a lower revision":        {[]event{snapshot("a"), policy(9), policy(8)}, 1},
		"the SDK tells of a new epoch":             {[]event{snapshot("a"), policy(9), snapshot("b"), policy(2), policy(3)}, 0},
		"a disk cache of another epoch":            {[]event{policy(9), {Kind: "hello", Epoch: "a", Revision: 9}, snapshot("b"), policy(2)}, 0},
		"the SDK tells of a new epoch, then falls": {[]event{snapshot("a"), policy(9), snapshot("b"), policy(4), policy(3)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.history {
				tc.history[i].n = i + 1
			}
			o := &order{}
			require.Len(t, o.feed(tc.history), tc.want)
			require.Empty(t, o.feed(tc.history), "what was judged is not judged again")
		})
	}
}

func TestChecks_order_over_restarts(t *testing.T) {
	second := func(n int64) int64 { return n * int64(time.Second) }
	history := []event{
		{Kind: "ack", Epoch: "a", Revision: 9, At: second(1)},
		{Kind: "ack", Epoch: "b", Revision: 2, At: second(5)},
		{Kind: "start", At: second(20)},
		{Kind: "ack", Epoch: "a", Revision: 9, At: second(21)},
	}
	for i := range history {
		history[i].n = i + 1
	}
	keeps := func(left, start time.Time) bool { return start.Sub(left) > 10*time.Second }
	require.Len(t, (&order{remembers: keeps}).feed(history), 1, "its disk cache knows that it has left a")
	require.Empty(t, (&order{}).feed(history), "without one it does not")
	history[1].At = second(15)
	require.Empty(t, (&order{remembers: keeps}).feed(history), "not written in time")
}

func TestChecks_epochs(t *testing.T) {
	of := func(base, seen int64, epochs ...string) *life { return &life{base: base, seen: seen, epochs: epochs} }
	for name, tc := range map[string]struct {
		lives []*life
		want  int
	}{
		"one epoch":                              {[]*life{of(0, 90, "a")}, 0},
		"a restore has its own":                  {[]*life{of(0, 90, "a"), of(50, 70, "a", "b")}, 0},
		"a restore of everything needs none":     {[]*life{of(0, 90, "a"), of(90, 95, "a")}, 0},
		"a second epoch for no reason":           {[]*life{of(0, 90, "a", "b")}, 1},
		"two epochs for one restore":             {[]*life{of(0, 90, "a"), of(50, 70, "a", "b", "c")}, 1},
		"a restore that nobody noticed":          {[]*life{of(0, 90, "a"), of(50, 70, "a")}, 1},
		"a restore that went back to an old one": {[]*life{of(0, 90, "a", "b"), of(50, 70, "a")}, 2},
	} {
		t.Run(name, func(t *testing.T) { require.Len(t, checkEpochs(&record{lives: tc.lives}, true), tc.want) })
	}
}

func TestChecks_logs(t *testing.T) {
	require.Empty(t, checkLog("policyd-0", "level=INFO msg=\"policyd is ready\"\nlevel=WARN msg=x\n"))
	require.Len(t, checkLog("policyd-0", "x\nWARNING: DATA RACE\npanic: oh\n"), 2)
}

// aRecord is a store with one policy in shop at revision 5, changed at 7, deleted at 9.
func aRecord(t *testing.T) *record {
	t.Helper()
	r := newRecord([][]string{{"shop"}, {"pay"}})
	epoch, err := proto.Marshal(&policydv1.StoredEpoch{Id: "a"})
	require.NoError(t, err)
	r.begin(3, []pair{{key: "meta/epoch", value: epoch, revision: 3}})
	for i, revision := range []int64{5, 7} {
		require.NoError(t, r.take(revision, []pair{
			stored(t, "policies/shop", revision, document("shop", time.Duration(i+1)*time.Second, 2)),
			outbox(t, fmt.Sprintf("e%d", revision), "policy.apply", fmt.Sprintf("reason %d", revision), revision, "policies/shop"),
		}))
	}
	require.NoError(t, r.take(9, []pair{
		{key: "policies/shop", revision: 9, deleted: true},
		outbox(t, "e9", "policy.delete", "reason 9", 9, "policies/shop"),
	}))
	return r
}

func stored(t *testing.T, key string, revision int64, m proto.Message) pair {
	t.Helper()
	value, err := proto.Marshal(m)
	require.NoError(t, err)
	return pair{key: key, value: value, revision: revision}
}

func outbox(t *testing.T, id, action, reason string, revision int64, keys ...string) pair {
	t.Helper()
	e := &policydv1.StoredAuditEntry{Id: id, Action: action, Reason: reason}
	for _, key := range keys {
		e.Changes = append(e.Changes, &policydv1.StoredAuditChange{Key: key})
	}
	return stored(t, "outbox/"+id, revision, e)
}

func TestChecks_hashes(t *testing.T) {
	r := aRecord(t)
	at5, at7 := hashOf(map[string]int64{"policies/shop": 5}), hashOf(map[string]int64{"policies/shop": 7})
	has := func(revision int64, hash uint64) event {
		return event{Kind: "ack", Epoch: "a", Revision: revision, Hash: hash, HasHash: true}
	}
	came := func(revision int64, hash uint64) event {
		return event{Kind: "hello", Epoch: "a", Revision: revision, Hash: hash}
	}
	for name, tc := range map[string]struct {
		instance int
		history  []event
		want     int
	}{
		"what is held":                    {0, []event{{Kind: "hello"}, came(6, at5), came(7, at7)}, 0},
		"a heartbeat that said too much":  {0, []event{came(7, at5)}, 1},
		"what the store had":              {0, []event{has(3, 0), has(5, at5), has(6, at5), has(7, at7), has(9, 0)}, 0},
		"nothing, by who sees nothing":    {1, []event{has(5, 0), has(7, 0), has(9, 0)}, 0},
		"what the store had before":       {0, []event{has(7, at5)}, 1},
		"what the store had later":        {0, []event{has(5, at7)}, 1},
		"what others see":                 {1, []event{has(5, at5)}, 1},
		"what was deleted":                {0, []event{has(9, at7)}, 1},
		"a revision that the store lacks": {0, []event{has(11, at7)}, 1},
		"a message that does not fit":     {0, []event{{Kind: "unfit"}}, 1},
		"a message that is refused":       {0, []event{{Kind: "mismatch"}}, 1},
		"a document that is refused":      {0, []event{{Kind: "rejected"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := checkHashes(tc.instance, tc.history, r)
			require.Len(t, found, tc.want)
		})
	}
}

func TestChecks_switches(t *testing.T) {
	start := time.Now()
	at := func(second float64) int64 { return start.Add(time.Duration(second * float64(time.Second))).UnixNano() }
	on := func(ends float64) event { return event{Kind: "on", Text: "ks", Ends: at(ends)} }
	off := func(second float64) event { return event{Kind: "off", Text: "ks", At: at(second)} }
	told := event{Kind: "switch", Text: "ks"}
	tells := func(ends float64) event { return event{Kind: "switch", Text: "ks", Ends: at(ends)} }
	for name, tc := range map[string]struct {
		history []event
		end     float64
		want    int
	}{
		"off at its end":                        {[]event{on(5), off(5.01)}, 9, 0},
		"off early because policyd ended it":    {[]event{on(5), told, off(2)}, 9, 0},
		"on, and its end is yet to come":        {[]event{on(5)}, 4, 0},
		"extended, off at the new end":          {[]event{on(5), on(8), off(8)}, 9, 0},
		"off at an end that a slow message hid": {[]event{tells(3), on(5), tells(4), off(4.2)}, 9, 0},
		"off before the end that policyd told":  {[]event{tells(3), on(5), tells(4), off(3.5)}, 9, 1},
		"off too late":                          {[]event{on(5), off(6.5)}, 9, 1},
		"on for ever":                           {[]event{on(5)}, 9, 1},
		"off early for no reason":               {[]event{on(5), off(2)}, 9, 1},
		"extended, and off at the old end":      {[]event{on(5), on(8), off(5)}, 9, 1},
		"on in a process that has gone":         {[]event{on(5), {Kind: "start"}}, 9, 0},
		"off early because a snapshot lacks it": {[]event{on(5), {Kind: "snapshot"}, off(2)}, 9, 0},
	} {
		t.Run(name, func(t *testing.T) {
			end := time.Unix(0, at(tc.end))
			found, _ := checkSwitches(0, tc.history, end, func(_, _ time.Time) time.Duration { return time.Second })
			require.Len(t, found, tc.want)
		})
	}
}

func TestChecks_switches_in_the_store(t *testing.T) {
	r := aRecord(t)
	now := time.Now()
	sw := &policydv1.KillSwitch{
		Id: "ks", Spec: &policydv1.SwitchSpec{Scope: "shop"}, Phase: policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE,
		ExpiresAt: timestamppb.New(now),
	}
	require.NoError(t, r.take(11, []pair{stored(t, "switches/ks", 11, sw), outbox(t, "e11", "switch.start", "", 11, "switches/ks")}))
	require.Empty(t, checkEnds(r, now.Add(time.Second), 2*time.Second))
	require.Len(t, checkEnds(r, now.Add(3*time.Second), 2*time.Second), 1)
}

func TestChecks_audit(t *testing.T) {
	for name, tc := range map[string]struct {
		revision []pair
		want     int
	}{
		"a change with its record": {[]pair{
			stored(t, "policies/shop", 11, document("shop", time.Second, 2)), outbox(t, "e11", "policy.apply", "", 11, "policies/shop"),
		}, 0},
		"a change without a record": {[]pair{stored(t, "policies/shop", 11, document("shop", time.Second, 2))}, 1},
		"a deletion without a record": {[]pair{
			{key: "policies/shop", revision: 11, deleted: true},
		}, 1},
		"a record without a change": {[]pair{outbox(t, "e11", "policy.apply", "", 11, "policies/shop")}, 1},
		"a change with two records": {[]pair{
			stored(t, "policies/shop", 11, document("shop", time.Second, 2)),
			outbox(t, "e11", "policy.apply", "", 11, "policies/shop"), outbox(t, "e12", "policy.apply", "", 11, "policies/shop"),
		}, 1},
		"a record of something else": {[]pair{
			stored(t, "policies/shop", 11, document("shop", time.Second, 2)), outbox(t, "e11", "policy.apply", "", 11, "policies/pay"),
		}, 1},
		"a record written again": {[]pair{
			stored(t, "policies/shop", 11, document("shop", time.Second, 2)), outbox(t, "e7", "policy.apply", "", 11, "policies/shop"),
		}, 1},
		"a switch that moves away": {[]pair{
			{key: "switches/ks", revision: 11, deleted: true}, stored(t, "ended/ks", 11, &policydv1.KillSwitch{Id: "ks"}),
		}, 0},
		"a switch that vanishes": {[]pair{{key: "switches/ks", revision: 11, deleted: true}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := aRecord(t)
			require.NoError(t, r.take(11, tc.revision))
			found, _ := checkAudit(r)
			require.Len(t, found, tc.want)
		})
	}
}

func TestChecks_edits(t *testing.T) {
	written := map[string]int64{"policies/shop": int64(2 * time.Second)}
	for name, tc := range map[string]struct {
		edit edit
		want int
	}{
		"acknowledged and there":           {edit{kind: "policy.apply", reason: "reason 7", markers: written, revision: 7}, 0},
		"a deletion that is there":         {edit{kind: "policy.delete", reason: "reason 9", deleted: []string{"policies/shop"}, revision: 9}, 0},
		"acknowledged and not there":       {edit{kind: "policy.apply", reason: "reason 7", markers: map[string]int64{"policies/shop": 77}, revision: 7}, 1},
		"acknowledged at another revision": {edit{kind: "policy.apply", reason: "reason 7", markers: written, revision: 5}, 1},
		"acknowledged without a record":    {edit{kind: "policy.apply", reason: "reason 8", markers: written, revision: 7}, 1},
		"a deletion that is not there":     {edit{kind: "policy.delete", reason: "reason 9", deleted: []string{"policies/shop"}, revision: 7}, 1},
		"a switch that is not there":       {edit{kind: "switch.extend", switchID: "ks", revision: 7}, 1},
		"refused without a trace":          {edit{kind: "policy.apply", reason: "other", outcome: refused, markers: map[string]int64{"policies/shop": 77}}, 0},
		"refused and recorded":             {edit{kind: "policy.apply", reason: "reason 7", outcome: refused}, 1},
		"refused and written":              {edit{kind: "policy.apply", reason: "other", outcome: refused, markers: written}, 1},
		"unknown and written":              {edit{kind: "policy.apply", reason: "reason 7", outcome: unknown, markers: written}, 0},
		"unknown and not written":          {edit{kind: "policy.apply", reason: "other", outcome: unknown}, 0},
	} {
		t.Run(name, func(t *testing.T) { require.Len(t, checkEdits([]*edit{&tc.edit}, aRecord(t)), tc.want) })
	}
	t.Run("written twice", func(t *testing.T) {
		r := aRecord(t)
		require.NoError(t, r.take(11, []pair{
			stored(t, "policies/shop", 11, document("shop", 2*time.Second, 2)), outbox(t, "e11", "policy.apply", "reason 7", 11, "policies/shop"),
		}))
		e := edit{kind: "policy.apply", reason: "reason 7", markers: written, revision: 7}
		require.Len(t, checkEdits([]*edit{&e}, r), 1)
		e.outcome = unknown
		require.Len(t, checkEdits([]*edit{&e}, r), 1)
	})
}

func TestChecks_effective(t *testing.T) {
	r := aRecord(t)
	require.NoError(t, r.take(11, []pair{stored(t, "policies/shop/s1", 11, document("shop/s1", 3*time.Second, 2))}))
	require.NoError(t, r.take(13, []pair{stored(t, "policies/global", 13, document("global", 4*time.Second, 2))}))
	names := []string{"shop/s1/e1", "shop/s2/e1"}
	right := map[string]int64{names[0]: int64(3 * time.Second), names[1]: int64(4 * time.Second)}
	require.Empty(t, checkEffective(event{Values: right}, names, r))
	wrong := map[string]int64{names[0]: int64(4 * time.Second), names[1]: int64(4 * time.Second)}
	require.Len(t, checkEffective(event{Values: wrong}, names, r), 1)
	require.Len(t, checkEffective(event{}, names, r), 2)
	// Who does not see shop obeys global there.
	other := map[string]int64{names[0]: int64(4 * time.Second), names[1]: int64(4 * time.Second)}
	require.Empty(t, checkEffective(event{Instance: 1, Values: other}, names, r))
}

func TestChecks_growth(t *testing.T) {
	require.Empty(t, checkGrowth("x", 100, 115, 1.1, 5))
	require.Len(t, checkGrowth("x", 100, 116, 1.1, 5), 1)
}

func TestSchedule_is_that_of_its_seed(t *testing.T) {
	faults := lanes()[0]
	make := func(seed uint64) []step {
		return schedule(rand.New(rand.NewPCG(seed, 1)), faults, time.Minute, time.Second)
	}
	require.Equal(t, make(4), make(4))
	require.NotEqual(t, make(4), make(5))
	seen := map[string]bool{}
	for _, s := range make(4)[:len(faults)] {
		seen[s.fault] = true
	}
	require.Len(t, seen, len(faults), "every fault comes before one comes again")
}

// TestEar_hears_what_is_on_the_wire feeds the tap bytes in pieces of every size.
func TestEar_hears_what_is_on_the_wire(t *testing.T) {
	update := func(revision int64, snapshot bool, hash uint64, entries ...*policydv1.Entry) proto.Message {
		return &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Update{Update: &policydv1.Update{
			Epoch: "a", Revision: revision, Snapshot: snapshot, Hash: hash, Entries: entries,
		}}}
	}
	shop := &policydv1.Entry{Key: "policies/shop", Revision: 5, Document: &policydv1.Entry_Policy{Policy: &policydv1.Policy{
		Scope: "shop", Spec: &policydv1.PolicySpec{Backoff: &policydv1.Backoff{Base: durationpb.New(time.Second)}},
	}}}
	gone := &policydv1.Entry{Key: "policies/shop", Revision: 7, Document: &policydv1.Entry_Deleted{Deleted: true}}
	at5 := hashOf(map[string]int64{"policies/shop": 5})
	in := bytes.Join([][]byte{
		frame(4, nil), frame(0, message(t, update(5, true, at5, shop))), frame(0, message(t, update(7, false, 1, gone))),
	}, nil)
	confirm := func(revision int64) []byte {
		return frame(0, message(t, &policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: &policydv1.Ack{Epoch: "a", Revision: revision}}}))
	}
	for size := 1; size < 40; size++ {
		var heard []event
		e := &ear{tell: func(e event) { heard = append(heard, e) }}
		received, sent := messages{take: e.received}, messages{take: e.sent, skip: len(preface)}
		for part := range slices.Chunk(in, size) {
			received.feed(part)
		}
		for part := range slices.Chunk(append([]byte(preface), confirm(5)...), size) {
			sent.feed(part)
		}
		require.Equal(t, []event{
			{Kind: "snapshot", Epoch: "a", Revision: 5, Count: 1},
			{Kind: "unfit", Epoch: "a", Revision: 7, Hash: 1},
			{Kind: "ack", Epoch: "a", Revision: 5, Hash: at5, HasHash: true, Folded: true},
		}, heard)
	}
}

func message(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...)
}

func frame(kind byte, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0, 0, 0, 0, 1}, payload...)
}
