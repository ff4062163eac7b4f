// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/reconnect"
)

func doc(key string, revision int64) sent {
	return sent{key: key, revision: revision, document: []byte(fmt.Sprint(key, revision))}
}

func gone(key string, revision int64) sent { return sent{key: key, revision: revision} }

func hashOf(entries ...sent) (h uint64) {
	for _, e := range entries {
		h += engine.EntryHash(e.key, e.revision)
	}
	return h
}

func snapshot(epoch string, revision int64, entries ...sent) *update {
	return &update{Update: &policydv1.Update{Epoch: epoch, Revision: revision, Snapshot: true, Hash: hashOf(entries...)}, entries: entries}
}

func delta(epoch string, revision int64, hash uint64, entries ...sent) *update {
	return &update{Update: &policydv1.Update{Epoch: epoch, Revision: revision, Hash: hash}, entries: entries}
}

func TestState_changes_nothing_when_an_update_does_not_fit(t *testing.T) {
	now := time.Now()
	a := doc("policies/shop", 7)
	for name, c := range map[string]struct {
		update *update
		want   error
		agreed bool // changes may go on from what is held
	}{
		"a lower revision of the same epoch":         {snapshot("e", 6, doc("policies/shop", 6)), errOlder, true},
		"a lower revision without any entry":         {delta("e", 6, hashOf(a)), errOlder, true},
		"a hash that differs":                        {delta("e", 8, 1, doc("policies/shop", 8)), errHash, false},
		"changes of another epoch":                   {delta("f", 8, 0, doc("policies/shop", 8)), errNoEpoch, false},
		"no epoch at all":                            {snapshot("", 8), errNoEpoch, false},
		"a document older than the one that is held": {snapshot("e", 9, doc("policies/shop", 6)), errHash, false},
		"a document that comes twice":                {delta("e", 9, hashOf(doc("policies/shop", 9)), doc("policies/shop", 8), doc("policies/shop", 9)), errHash, false},
		"an epoch that was left":                     {snapshot("before", 9), errLeft, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := state{}
			_, err := s.apply(snapshot("before", 100), now)
			require.NoError(t, err)
			_, err = s.apply(snapshot("e", 7, a), now)
			require.NoError(t, err)
			_, err = s.apply(c.update, now)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, []any{"e", int64(7), hashOf(a)}, []any{s.epoch, s.revision, s.hash})
			require.Equal(t, c.agreed, s.resume() != nil)
			require.Len(t, s.entries, 1)
		})
	}
}

func TestState_an_epoch_that_was_left_may_come_back_much_later(t *testing.T) {
	now := time.Now()
	s := state{}
	for _, epoch := range []string{"a", "b"} {
		_, err := s.apply(snapshot(epoch, 5), now)
		require.NoError(t, err)
	}
	_, err := s.apply(snapshot("a", 6), now.Add(leftFor-time.Second))
	require.ErrorIs(t, err, errLeft)
	_, err = s.apply(snapshot("a", 6), now.Add(leftFor))
	require.NoError(t, err, "somebody decided to go back to the old store")
}

func TestState_deletions_are_known_for_an_hour_and_bounded(t *testing.T) {
	now := time.Now()
	s := state{}
	a, b := doc("policies/a", 1), doc("policies/b", 2)
	_, err := s.apply(snapshot("e", 2, a, b), now)
	require.NoError(t, err)
	require.EqualValues(t, 2, s.since)
	out, err := s.apply(delta("e", 3, hashOf(b), gone("policies/a", 3)), now)
	require.NoError(t, err)
	require.EqualValues(t, 2, out.DeletionsKnownSince)
	require.Equal(t, engine.Scope("a"), out.Changes[0].Scope)
	require.True(t, out.Changes[0].Deleted())

	out, err = s.apply(delta("e", 4, hashOf(b)), now.Add(keepDeletions))
	require.NoError(t, err)
	require.EqualValues(t, 3, out.DeletionsKnownSince, "who is at 2 needs a snapshot now")
	require.Empty(t, s.deleted)

	many := make([]sent, maxDeletions+1)
	for i := range many {
		many[i] = gone(fmt.Sprint("policies/x", i), 5)
	}
	out, err = s.apply(delta("e", 5, hashOf(b), many...), now)
	require.NoError(t, err)
	require.Empty(t, s.deleted)
	require.EqualValues(t, 5, out.DeletionsKnownSince)
}

func TestState_more_documents_than_a_relay_keeps_are_refused(t *testing.T) {
	many := make([]sent, maxEntries+1)
	for i := range many {
		many[i] = sent{key: fmt.Sprint("policies/x", i), revision: 5, document: []byte{}}
	}
	s := state{}
	_, err := s.apply(snapshot("e", 5, many...), time.Now())
	require.ErrorIs(t, err, errTooLarge)
}

// A relay holds, after any history, what the root holds, and so does one that was
// restarted from its disk at any point.
func TestState_follows_any_history_across_restarts(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a seed repeats the run
		dir := t.TempDir()
		root := map[string]sent{}
		now := time.Now()
		s := &state{}
		at := int64(0) // what the relay has
		for revision := int64(1); revision < 60; revision++ {
			key := fmt.Sprintf("%s%d", []string{policyPrefix, switchPrefix}[rnd.IntN(2)], rnd.IntN(8))
			root[key] = doc(key, revision)
			if rnd.IntN(3) == 0 {
				root[key] = gone(key, revision)
			}
			if rnd.IntN(3) == 0 {
				continue // the next update brings both
			}
			u := &update{Update: &policydv1.Update{Epoch: "e", Revision: revision, Snapshot: at == 0 || rnd.IntN(20) == 0}}
			u.Token = fmt.Appendf(nil, "proof of %d", revision)
			for _, e := range root {
				if e.document != nil {
					u.Hash += engine.EntryHash(e.key, e.revision)
				}
				if !u.Snapshot && e.revision > at || u.Snapshot && e.document != nil {
					u.entries = append(u.entries, e)
				}
			}
			out, err := s.apply(u, now)
			require.NoError(t, err, "seed %d", seed)
			require.Equal(t, u.Snapshot, out.Reset)
			at = revision
			if rnd.IntN(5) == 0 {
				require.NoError(t, s.image().save(dir))
				restored, m, err := load(dir, now)
				require.NoError(t, err)
				require.Equal(t, revision, m.Revision)
				require.Equal(t, u.Token, restored.resume().GetToken())
				require.Equal(t, s.resume(), restored.resume())
				require.Equal(t, s.since, restored.since)
				require.Equal(t, s.everything(), restored.everything(), "seed %d", seed)
				s = restored
			}
		}
		for key, e := range root {
			have, held := s.entries[key]
			require.Equal(t, at >= e.revision && e.document != nil, held && have.revision == e.revision)
		}
	}
}

func TestState_a_heartbeat_moves_revision_and_proof_only_where_nothing_is_missing(t *testing.T) {
	now := time.Now()
	s := &state{}
	beat := func(revision int64, token string) (holds, news bool) {
		return s.current(&policydv1.Heartbeat{Revision: revision, Token: []byte(token)})
	}
	holds, _ := beat(5, "t5")
	require.False(t, holds, "nothing is held")
	_, err := s.apply(snapshot("e", 10, doc("policies/a", 10)), now)
	require.NoError(t, err)
	holds, _ = beat(9, "t9")
	require.False(t, holds, "the upstream is behind")
	holds, news := beat(12, "t12")
	require.True(t, holds && news)
	require.Equal(t, "t12", string(s.resume().GetToken()))
	holds, news = beat(12, "t12")
	require.True(t, holds && !news)
	_, err = s.apply(delta("e", 13, 1, doc("policies/a", 13)), now)
	require.ErrorIs(t, err, errHash)
	holds, _ = beat(14, "t14")
	require.False(t, holds, "revision 13 is missing")
}

// endedStream is one that the upstream has ended: no Send goes through, and what came before
// the end is still to be received.
type endedStream struct {
	grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse]

	received int
}

func (*endedStream) Send(*policydv1.WatchRequest) error { return io.EOF }

func (e *endedStream) RecvMsg(any) error {
	e.received++
	return nil
}

func TestSession_a_send_after_the_end_takes_no_message_away(t *testing.T) {
	var stream endedStream
	s := session{stream: &stream}
	require.NoError(t, s.send(&policydv1.WatchRequest{}))
	require.Zero(t, stream.received)
}

func TestFile_any_damage_is_found(t *testing.T) {
	s := state{}
	_, err := s.apply(snapshot("e", 7, doc("policies/shop", 7), doc("switches/x", 6)), time.Now())
	require.NoError(t, err)
	good, err := s.image().encode()
	require.NoError(t, err)
	_, _, err = decodeFile(good, time.Now())
	require.NoError(t, err)
	for i := range good {
		_, _, err := decodeFile(good[:i], time.Now())
		require.Error(t, err, "cut at %d", i)
		bad := append([]byte{}, good...)
		bad[i] ^= 0x20
		_, _, err = decodeFile(bad, time.Now())
		require.Error(t, err, "turned bit at %d", i)
	}
	other := strings.Replace(string(good), "relay 1 ", "relay 2 ", 1)
	_, _, err = decodeFile([]byte(other), time.Now())
	require.ErrorContains(t, err, "version")
}

func TestFile_that_is_none(t *testing.T) {
	dir := t.TempDir()
	s, _, err := load(dir, time.Now())
	require.NoError(t, err)
	require.Nil(t, s, "there is none")
	require.NoError(t, os.Mkdir(filepath.Join(dir, fileName), 0o700))
	_, _, err = load(dir, time.Now())
	require.ErrorContains(t, err, "regular file")
}

func FuzzDecodeFile(f *testing.F) {
	s := state{}
	if _, err := s.apply(snapshot("e", 7, doc("policies/shop", 7), doc("switches/x", 6)), time.Now()); err != nil {
		f.Fatal(err)
	}
	i := s.image()
	f.Add([]byte(`{"epoch":"e","revision":7}` + "\n"))
	f.Add([]byte(`{"epoch":"e","revision":7}` + "\n" + string(appendEntry(nil, i.entries[0], fieldPolicy))))
	f.Fuzz(func(t *testing.T, body []byte) {
		held, m, err := decodeFile(withSum(body), time.Now())
		if err != nil {
			return
		}
		require.Positive(t, m.Revision)
		for key, e := range held.entries {
			require.NotEmpty(t, key)
			require.NotNil(t, e.document)
		}
		again := image{meta: m, entries: held.image().entries}
		data, err := again.encode()
		require.NoError(t, err)
		same, _, err := decodeFile(data, time.Now())
		require.NoError(t, err)
		require.Equal(t, held.hash, same.hash)
	})
}

// What is read field by field is what protobuf reads.
func FuzzReadResponse(f *testing.F) {
	attempts := int64(3)
	for _, m := range []*policydv1.WatchResponse{
		{Kind: &policydv1.WatchResponse_Update{Update: &policydv1.Update{
			Epoch: "e", Revision: 7, Hash: 9, Snapshot: true, More: true,
			Entries: []*policydv1.Entry{
				{Key: "policies/shop", Revision: 7, Document: &policydv1.Entry_Policy{Policy: &policydv1.Policy{Scope: "shop", Spec: &policydv1.PolicySpec{MaxAttempts: &attempts}}}},
				{Key: "switches/x", Revision: 6, Document: &policydv1.Entry_KillSwitch{KillSwitch: &policydv1.KillSwitch{Id: "x"}}},
				{Key: "policies/mall", Revision: 5, Document: &policydv1.Entry_Deleted{Deleted: true}},
			},
		}}},
		{Kind: &policydv1.WatchResponse_Heartbeat{Heartbeat: &policydv1.Heartbeat{Revision: 8}}},
		{Kind: &policydv1.WatchResponse_GoAway{GoAway: &policydv1.GoAway{ReconnectWithin: durationpb.New(time.Second)}}},
		{},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		u, other, err := readResponse(b)
		if err != nil {
			return
		}
		if u == nil {
			require.NotNil(t, other)
			return
		}
		want := &policydv1.WatchResponse{}
		if proto.Unmarshal(b, want) != nil || want.GetUpdate() == nil {
			return // documents are not looked into here
		}
		require.Equal(t, want.GetUpdate().GetEpoch(), u.GetEpoch())
		require.Equal(t, want.GetUpdate().GetRevision(), u.GetRevision())
		require.Equal(t, want.GetUpdate().GetHash(), u.GetHash())
		require.Equal(t, want.GetUpdate().GetMore(), u.GetMore())
		require.Len(t, u.entries, len(want.GetUpdate().GetEntries()))
		for i, e := range want.GetUpdate().GetEntries() {
			require.Equal(t, e.GetKey(), u.entries[i].key)
			require.Equal(t, e.GetRevision(), u.entries[i].revision)
		}
	})
}

func TestClock_follows_the_upstream_and_not_its_delays(t *testing.T) {
	c := newClock()
	now := c.origin
	say := func(ahead, late time.Duration) {
		now = now.Add(15 * time.Second)
		c.seen(c.origin.Round(0).Add(now.Sub(c.origin)).Add(ahead-late), now)
	}
	near := func(want time.Duration) { t.Helper(); require.InDelta(t, want, c.lead(), float64(time.Millisecond)) }

	c.restore(5 * time.Hour)
	near(5 * time.Hour)
	say(-time.Hour, 0)
	near(-time.Hour) // the first word of an upstream counts
	say(-time.Hour, 200*time.Millisecond)
	near(-time.Hour)
	say(-time.Hour, 3*time.Second)
	near(-time.Hour) // one late message
	say(-time.Hour, 0)
	near(-time.Hour)
	say(time.Minute, 0)
	near(time.Minute) // set forward: no message is early
	say(-time.Minute, 0)
	near(time.Minute)
	say(-time.Minute, 0)
	near(-time.Minute) // set back: two say so
	for range readings {
		say(-time.Minute-time.Second, 0)
	}
	near(-time.Minute - time.Second) // drift
	c.seen(time.Time{}, now)
	near(-time.Minute - time.Second)
}

func TestReconnect_spreads_and_forgives(t *testing.T) {
	failed := reconnect.Ended{Err: status.Error(codes.Unavailable, "x")}
	var r reconnect.Wait
	all := func() float64 { return 1 }
	none := func() float64 { return 0 }
	var limits []time.Duration
	for range 8 {
		limits = append(limits, r.After(failed, all))
	}
	s := time.Second
	require.Equal(t, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}, limits)
	require.Zero(t, r.After(failed, none), "a random share of it")
	require.Equal(t, 30*s, r.After(reconnect.Ended{Err: failed.Err, Up: 60*s - 1}, all))
	require.Equal(t, s, r.After(reconnect.Ended{Err: failed.Err, Up: 60 * s}, all), "a long stream forgives")
	require.Zero(t, r.After(reconnect.Ended{Up: 60 * s, ComeBack: time.Now()}, all), "the window spreads")

	full, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(7 * s)})
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.After(reconnect.Ended{Err: full.Err()}, none), 7*s)
	loop := status.Error(codes.FailedPrecondition, "loop")
	require.GreaterOrEqual(t, r.After(reconnect.Ended{Err: loop, Refused: refused(loop)}, none), 30*s)
}
