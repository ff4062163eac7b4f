// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

func policyAt(scope string, revision int64, attempts int64) *policydv1.Entry {
	return &policydv1.Entry{Key: "policies/" + scope, Revision: revision, Document: &policydv1.Entry_Policy{
		Policy: &policydv1.Policy{Scope: scope, Spec: &policydv1.PolicySpec{MaxAttempts: &attempts}},
	}}
}

func switchAt(id string, revision int64, ends time.Time) *policydv1.Entry {
	return &policydv1.Entry{Key: "switches/" + id, Revision: revision, Document: &policydv1.Entry_KillSwitch{
		KillSwitch: &policydv1.KillSwitch{
			Id: id, ExpiresAt: timestamppb.New(ends), Phase: policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE,
			Spec: &policydv1.SwitchSpec{
				Action: policydv1.SwitchAction_SWITCH_ACTION_DISABLE_RETRIES, Scope: "shop", Reason: "test",
				Restore: &policydv1.Restore{Over: durationpb.New(2 * time.Minute)},
			},
		},
	}}
}

func gone(key string, revision int64) *policydv1.Entry {
	return &policydv1.Entry{Key: key, Revision: revision, Document: &policydv1.Entry_Deleted{Deleted: true}}
}

func hashOf(entries ...*policydv1.Entry) (h uint64) {
	for _, e := range entries {
		h += engine.EntryHash(e.GetKey(), e.GetRevision())
	}
	return h
}

func snapshot(epoch string, revision int64, at time.Time, entries ...*policydv1.Entry) *policydv1.Update {
	return &policydv1.Update{
		Epoch: epoch, Revision: revision, Snapshot: true, Hash: hashOf(entries...),
		ServerTime: timestamppb.New(at), Entries: entries,
	}
}

func attempts(t *testing.T, s *state.State, scope engine.Scope) int64 {
	t.Helper()
	d := s.Documents()[scope]
	if d == nil {
		return 0
	}
	return d.Settings[engine.MaxAttempts].Int
}

func mustApply(t *testing.T, s *state.State, u *policydv1.Update, now time.Time) state.Change {
	t.Helper()
	ch, err := s.Apply(u, now)
	if err != nil {
		t.Fatalf("apply revision %d: %v", u.GetRevision(), err)
	}
	return ch
}

func TestApply_takes_a_snapshot_and_then_what_changed(t *testing.T) {
	now := time.Now()
	var s state.State
	a, b := policyAt("shop", 1, 2), policyAt("shop/pay", 2, 3)
	mustApply(t, &s, snapshot("e", 2, now, a, b), now)
	if got := attempts(t, &s, "shop/pay"); got != 3 {
		t.Fatalf("maxAttempts = %d, want 3", got)
	}

	b4, c5 := policyAt("shop/pay", 4, 4), policyAt("shop/search", 5, 5)
	mustApply(t, &s, &policydv1.Update{
		Epoch: "e", Revision: 5, Hash: hashOf(b4, c5), Entries: []*policydv1.Entry{b4, c5, gone("policies/shop", 5)},
	}, now)
	if got, want := len(s.Documents()), 2; got != want {
		t.Fatalf("%d documents, want %d", got, want)
	}
	if got := s.Resume(); got.GetRevision() != 5 || got.GetHash() != hashOf(b4, c5) || got.GetEpoch() != "e" {
		t.Fatalf("resume point %v", got)
	}
	if s.Complete() != 5 {
		t.Fatalf("complete = %d, want 5", s.Complete())
	}
}

func TestApply_changes_nothing_when_an_update_does_not_fit(t *testing.T) {
	now := time.Now()
	a := policyAt("shop", 7, 2)
	for name, c := range map[string]struct {
		update *policydv1.Update
		want   error
		resume bool // changes may go on from what is held
	}{
		"a lower revision of the same epoch": {
			update: snapshot("e", 6, now, policyAt("shop", 6, 9)), want: state.ErrOlder, resume: true,
		},
		"a lower revision without any entry": {
			update: &policydv1.Update{Epoch: "e", Revision: 6, Hash: hashOf(a)}, want: state.ErrOlder, resume: true,
		},
		"a hash that differs": {
			update: &policydv1.Update{Epoch: "e", Revision: 8, Hash: 1, Entries: []*policydv1.Entry{policyAt("shop", 8, 9)}},
			want:   state.ErrHash,
		},
		"changes of another epoch": {
			update: &policydv1.Update{Epoch: "f", Revision: 8, Entries: []*policydv1.Entry{policyAt("shop", 8, 9)}},
			want:   state.ErrNoEpoch,
		},
		"no epoch at all": {update: snapshot("", 8, now), want: state.ErrNoEpoch},
		"a document older than the one that is held": {
			update: snapshot("e", 9, now, policyAt("shop", 6, 9)), want: state.ErrHash,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s state.State
			mustApply(t, &s, snapshot("e", 7, now, a), now)
			if _, err := s.Apply(c.update, now); !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if s.Revision() != 7 || s.Epoch() != "e" || attempts(t, &s, "shop") != 2 {
				t.Fatalf("state moved: epoch %s revision %d", s.Epoch(), s.Revision())
			}
			if got := s.Resume() != nil; got != c.resume {
				t.Fatalf("resumes = %v, want %v", got, c.resume)
			}
		})
	}
}

func TestApply_new_epoch_with_a_snapshot_replaces_everything(t *testing.T) {
	now := time.Now()
	var s state.State
	mustApply(t, &s, snapshot("e", 100, now, policyAt("shop", 90, 2), policyAt("shop/pay", 91, 3)), now)
	ch := mustApply(t, &s, snapshot("restored", 40, now, policyAt("shop", 40, 5)), now)
	if !ch.NewEpoch || s.Revision() != 40 || attempts(t, &s, "shop") != 5 || len(s.Documents()) != 1 {
		t.Fatalf("new epoch %v, revision %d, documents %v", ch.NewEpoch, s.Revision(), s.Documents())
	}
}

func TestApply_takes_nothing_of_an_epoch_that_was_left(t *testing.T) {
	now := time.Now()
	var s state.State
	name := func(n int) string { return fmt.Sprintf("e%d", n) }
	for n := range 20 {
		mustApply(t, &s, snapshot(name(n), 40, now, policyAt("shop", 40, int64(1+n%9))), now)
	}
	again, _ := state.RoundTrip(t, &s, now)
	for what, s := range map[string]*state.State{"held": &s, "from the disk cache": &again} {
		for n := 20 - state.MaxLeft - 1; n < 19; n++ {
			if _, err := s.Apply(snapshot(name(n), 90, now, policyAt("shop", 90, 9)), now); !errors.Is(err, state.ErrLeft) {
				t.Fatalf("%s: epoch %d was left: %v", what, n, err)
			}
		}
		if s.Epoch() != name(19) || s.Resume().GetEpoch() != name(19) || attempts(t, s, "shop") != 2 {
			t.Fatalf("%s: epoch %s, resume %v", what, s.Epoch(), s.Resume())
		}
		if left := s.Left(); len(left) != state.MaxLeft || left[len(left)-1] != name(18) {
			t.Fatalf("%s: left %v", what, left)
		}
		// What is new is taken, and so is what was left too long ago to be remembered.
		mustApply(t, s, snapshot("restored again", 3, now, policyAt("shop", 3, 4)), now)
		mustApply(t, s, snapshot(name(1), 3, now, policyAt("shop", 3, 4)), now)
	}
}

func TestResume_carries_the_token_of_its_revision(t *testing.T) {
	now := time.Now()
	var s state.State
	send := func(revision int64, token string, whole bool) {
		u := snapshot("e", revision, now, policyAt("shop", 5, 2))
		if u.Token = []byte(token); !whole {
			u.Snapshot, u.Entries = false, nil
		}
		mustApply(t, &s, u, now)
	}
	want := func(revision int64, token string) {
		t.Helper()
		if r := s.Resume(); r.GetRevision() != revision || string(r.GetToken()) != token {
			t.Fatalf("resume at %d with %q, want %d with %q", r.GetRevision(), r.GetToken(), revision, token)
		}
	}
	send(5, "t5", true)
	want(5, "t5")
	send(5, "", false) // a policyd that can prove nothing of it
	want(5, "t5")
	s.Current(9, []byte("t9"))
	s.Current(8, []byte("t8"))
	want(9, "t9")
	again, _ := state.RoundTrip(t, &s, now)
	if r := again.Resume(); r.GetRevision() != 5 || string(r.GetToken()) != "t5" {
		t.Fatalf("the disk cache resumes from %v", r)
	}
	send(10, "", false)
	want(10, "")
	send(11, strings.Repeat("x", 1000), false)
	want(11, "") // too long to be one of policyd's
	mustApply(t, &s, snapshot("f", 11, now), now)
	want(11, "")
}

func TestO_SE_06_forged_document_is_rejected_for_its_scope_alone(t *testing.T) {
	now := time.Now()
	unknown := policyAt("shop/pay", 11, 3)
	unknown.GetPolicy().Spec.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // field 127
	deep := policyAt("shop/pay", 11, 3)
	deep.GetPolicy().Spec.Backoff = &policydv1.Backoff{}
	deep.GetPolicy().Spec.Backoff.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	zero := policyAt("shop/pay", 11, 3)
	zero.GetPolicy().Spec.Backoff = &policydv1.Backoff{Base: durationpb.New(0)}
	wild := policyAt("shop/pay", 11, 3)
	wild.GetPolicy().Spec.Budget = &policydv1.Budget{Ratio: proto.Float64(1000)}
	queued := policyAt("shop/pay", 11, 3)
	queued.GetPolicy().Spec.OfflineQueue = &policydv1.OfflineQueue{MaxItems: proto.Int64(1 << 40)}
	jitter := policyAt("shop/pay", 11, 3)
	word := policydv1.Jitter(77)
	jitter.GetPolicy().Spec.Backoff = &policydv1.Backoff{Jitter: &word}
	huge := policyAt("shop/pay", 11, 3)
	huge.GetPolicy().Spec.Description = proto.String(strings.Repeat("x", engine.MaxDocumentBytes))
	other := policyAt("shop/pay", 11, 3)
	other.GetPolicy().Scope = "shop"
	kind := &policydv1.Entry{Key: "policies/shop/pay", Revision: 11}

	for name, c := range map[string]struct {
		entry *policydv1.Entry
		field string
	}{
		"a million attempts":                 {policyAt("shop/pay", 11, 1_000_000), "maxAttempts"},
		"no attempts":                        {policyAt("shop/pay", 11, 0), "maxAttempts"},
		"no wait between retries":            {zero, "backoff.base"},
		"a thousand retries per call":        {wild, "budget.ratio"},
		"a queue without end":                {queued, "offlineQueue.maxItems"},
		"an unknown field":                   {unknown, "127"},
		"an unknown field in a block":        {deep, "backoff.127"},
		"an unknown word":                    {jitter, "backoff.jitter"},
		"a document that is too large":       {huge, ""},
		"a document under another's key":     {other, "scope"},
		"a kind that this SDK does not know": {kind, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s state.State
			a, b := policyAt("shop", 1, 2), policyAt("shop/pay", 10, 3)
			mustApply(t, &s, snapshot("e", 10, now, a, b), now)

			a12 := policyAt("shop", 12, 4)
			ch := mustApply(t, &s, &policydv1.Update{
				Epoch: "e", Revision: 12, Hash: hashOf(a12, c.entry), Entries: []*policydv1.Entry{c.entry, a12},
			}, now)
			if len(ch.Rejected) != 1 || ch.Rejected[0].Scope != "shop/pay" || ch.Rejected[0].Revision != 11 || ch.Rejected[0].Field != c.field {
				t.Fatalf("rejected %+v, want field %q of shop/pay", ch.Rejected, c.field)
			}
			if got := attempts(t, &s, "shop/pay"); got != 3 {
				t.Errorf("shop/pay has maxAttempts %d, want the previous 3", got)
			}
			if got := attempts(t, &s, "shop"); got != 4 {
				t.Errorf("shop has maxAttempts %d, want the new 4", got)
			}
			if s.Complete() != 10 || s.Revision() != 12 {
				t.Errorf("complete %d of %d, want 10 of 12", s.Complete(), s.Revision())
			}
			// It is not fetched again: policyd is told that the revision arrived.
			if got := s.Resume().GetHash(); got != hashOf(a12, c.entry) {
				t.Errorf("resume hash %x, want %x", got, hashOf(a12, c.entry))
			}
			// The next good revision ends the rejection.
			b13 := policyAt("shop/pay", 13, 5)
			mustApply(t, &s, &policydv1.Update{Epoch: "e", Revision: 13, Hash: hashOf(a12, b13), Entries: []*policydv1.Entry{b13}}, now)
			if len(s.Rejections()) != 0 || s.Complete() != 13 || attempts(t, &s, "shop/pay") != 5 {
				t.Errorf("after a good document: rejections %v, complete %d", s.Rejections(), s.Complete())
			}
		})
	}
}

func TestApply_counts_the_end_of_a_switch_from_policyds_clock(t *testing.T) {
	now := time.Now()
	server := now.Add(3 * time.Hour) // its clock is ahead
	var s state.State
	mustApply(t, &s, snapshot("e", 1, server, switchAt("ks-1", 1, server.Add(30*time.Minute))), now)
	if got := s.Switches(now)[0].Ends.Sub(now); got != 30*time.Minute {
		t.Fatalf("ends in %s, want 30m", got)
	}
	// Sent again later, with another delay, it keeps its end.
	later := now.Add(time.Minute)
	mustApply(t, &s, snapshot("e", 2, server.Add(50*time.Second), switchAt("ks-1", 1, server.Add(30*time.Minute)), policyAt("shop", 2, 2)), later)
	if got := s.Switches(later)[0].Ends.Sub(now); got != 30*time.Minute {
		t.Fatalf("ends in %s after it came again, want 30m", got)
	}
}

func TestApply_deleted_switch_starts_to_fade_at_once(t *testing.T) {
	now := time.Now()
	for name, update := range map[string]*policydv1.Update{
		"by a deletion":       {Epoch: "e", Revision: 2, Entries: []*policydv1.Entry{gone("switches/ks-1", 2)}},
		"by a snapshot":       snapshot("e", 2, now),
		"by a restored store": snapshot("f", 1, now),
	} {
		t.Run(name, func(t *testing.T) {
			var s state.State
			mustApply(t, &s, snapshot("e", 1, now, switchAt("ks-1", 1, now.Add(time.Hour))), now)
			later := now.Add(10 * time.Minute)
			mustApply(t, &s, update, later)
			all := s.Switches(later)
			if len(all) != 1 || !all[0].Ends.Equal(later) {
				t.Fatalf("switches %+v, want ks-1 that ended now", all)
			}
			over := later.Add(2*time.Minute + time.Second)
			if all := s.Switches(over); len(all) != 0 {
				t.Fatalf("after its restore: %+v", all)
			}
		})
	}
	t.Run("unless it had ended before", func(t *testing.T) {
		var s state.State
		mustApply(t, &s, snapshot("e", 1, now, switchAt("ks-1", 1, now.Add(time.Minute))), now)
		later := now.Add(2 * time.Minute)
		mustApply(t, &s, snapshot("e", 2, later), later)
		if all := s.Switches(later); len(all) != 1 || !all[0].Ends.Equal(now.Add(time.Minute)) {
			t.Fatalf("switches %+v, want the end kept", all)
		}
	})
}

func TestApply_rejects_switches_that_break_the_rules(t *testing.T) {
	now := time.Now()
	long := switchAt("ks-1", 1, now.Add(25*time.Hour))
	endless := switchAt("ks-1", 1, now)
	endless.GetKillSwitch().ExpiresAt = nil
	action := switchAt("ks-1", 1, now.Add(time.Hour))
	action.GetKillSwitch().Spec.Action = 99
	for name, e := range map[string]*policydv1.Entry{"too long": long, "endless": endless, "unknown action": action} {
		t.Run(name, func(t *testing.T) {
			var s state.State
			ch := mustApply(t, &s, snapshot("e", 1, now, e), now)
			if len(ch.Rejected) != 1 || len(s.Switches(now)) != 0 {
				t.Fatalf("rejected %+v, in force %+v", ch.Rejected, s.Switches(now))
			}
		})
	}
}

func TestApply_holds_to_the_limits_of_the_contract(t *testing.T) {
	now := time.Now()
	t.Run("policies of a namespace", func(t *testing.T) {
		var entries []*policydv1.Entry
		for i := range engine.MaxPoliciesPerNS + 2 {
			entries = append(entries, policyAt(fmt.Sprintf("shop/s%05d", i), int64(i+1), 2))
		}
		var s state.State
		ch := mustApply(t, &s, snapshot("e", 1<<20, now, append(entries, policyAt("other", 1, 2))...), now)
		if got := len(s.Documents()); got != engine.MaxPoliciesPerNS+1 || len(ch.Rejected) != 2 {
			t.Fatalf("%d documents, %d rejected", got, len(ch.Rejected))
		}
	})
	t.Run("active switches", func(t *testing.T) {
		var entries []*policydv1.Entry
		for i := range engine.MaxActiveSwitches + 3 {
			entries = append(entries, switchAt(fmt.Sprintf("ks-%05d", i), int64(i+1), now.Add(time.Hour)))
		}
		var s state.State
		ch := mustApply(t, &s, snapshot("e", 1<<20, now, entries...), now)
		if got := len(s.Switches(now)); got != engine.MaxActiveSwitches || len(ch.Rejected) != 3 {
			t.Fatalf("%d switches, %d rejected", got, len(ch.Rejected))
		}
	})
}

func TestCurrent_moves_the_resume_point_without_a_new_state(t *testing.T) {
	now := time.Now()
	var s state.State
	mustApply(t, &s, snapshot("e", 5, now, policyAt("shop", 5, 2)), now)
	s.Current(90, nil)
	if got := s.Resume().GetRevision(); got != 90 || s.Revision() != 5 {
		t.Fatalf("resume at %d of %d, want 90 of 5", got, s.Revision())
	}
	s.Doubt()
	if s.Resume() != nil {
		t.Fatal("resumes although an update could not be read")
	}
}

func FuzzApply(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	for _, u := range []*policydv1.Update{
		snapshot("e", 2, now, policyAt("shop", 1, 2), switchAt("ks-1", 2, now.Add(time.Hour))),
		{Epoch: "e", Revision: 3, Entries: []*policydv1.Entry{gone("policies/shop", 3), policyAt("shop", 3, 3)}},
		snapshot("f", 1, now, policyAt("shop", 1, 2), policyAt("shop", 1, 2)),
	} {
		data, err := proto.Marshal(u)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, honest bool) {
		u := &policydv1.Update{}
		if proto.Unmarshal(data, u) != nil {
			return
		}
		var s state.State
		a, ks := policyAt("shop", 1, 2), switchAt("ks-1", 2, now.Add(time.Hour))
		mustApply(t, &s, snapshot("e", 2, now, a, ks), now)
		before := s.Resume()
		if honest {
			// A hash that fits what the update claims, so that the rest is reached.
			held := map[string]int64{a.Key: 1, ks.Key: 2}
			if u.Snapshot {
				clear(held)
			}
			for _, e := range u.Entries {
				if held[e.GetKey()] = e.GetRevision(); e.GetDeleted() {
					delete(held, e.GetKey())
				}
			}
			u.Hash = 0
			for key, revision := range held {
				u.Hash += engine.EntryHash(key, revision)
			}
		}
		_, err := s.Apply(u, now)
		if err != nil {
			if s.Revision() != before.GetRevision() || s.Epoch() != before.GetEpoch() || attempts(t, &s, "shop") != 2 {
				t.Fatalf("a refused update changed the state: %v", err)
			}
			return
		}
		if s.Epoch() == "e" && s.Revision() < 2 {
			t.Fatalf("went back to revision %d", s.Revision())
		}
		if s.Resume().GetHash() != u.GetHash() {
			t.Fatal("hash is not the one that was agreed")
		}
		for scope, d := range s.Documents() {
			if d.Scope != scope || len(engine.Validate(scope, d.Settings)) > 0 {
				t.Fatalf("a document that breaks the rules is in force: %+v", d)
			}
		}
		for _, sw := range s.Switches(now) {
			if sw.Ends.Sub(now) > engine.MaxSwitchDuration+time.Hour {
				t.Fatalf("a switch without end is in force: %+v", sw)
			}
		}
		restored, dropped := state.RoundTrip(t, &s, now)
		if dropped == 0 && len(restored.Documents()) != len(s.Documents()) {
			t.Fatal("the disk cache lost documents")
		}
	})
}
