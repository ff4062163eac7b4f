// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestO_PU_01_a_policy_that_appears_later_is_sent_alone(t *testing.T) {
	b := start(t, nil)
	b.put("shop/payments/a", "a")
	b.load()
	p := b.join(t, hello("i1", "shop/payments/a", "shop/payments/b"))
	u := p.update()
	require.True(t, u.GetSnapshot())
	require.Len(t, u.GetEntries(), 1)
	p.ack()

	b.put("shop/payments/c", "of no concern")
	revision := b.put("shop/payments/b", "b")
	u = p.update()
	require.False(t, u.GetSnapshot())
	require.Equal(t, revision, u.GetRevision())
	require.Len(t, u.GetEntries(), 1)
	require.Equal(t, "policies/shop/payments/b", u.GetEntries()[0].GetKey())
}

func TestO_PU_02_an_ack_that_crosses_a_newer_update_loses_nothing(t *testing.T) {
	b := start(t, func(c *push.Config) { c.Gather = time.Millisecond })
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	for i := range 1000 {
		b.put("shop/payments/x", fmt.Sprint("first ", i))
		first := p.update()
		b.put("shop/payments/x", fmt.Sprint("second ", i))
		// The ack of the first is under way while the second is sent.
		p.say(&policydv1.Ack{Epoch: first.GetEpoch(), Revision: first.GetRevision()})
		third := b.put("shop/payments/x", fmt.Sprint("third ", i))
		p.until(third)
		require.Equal(t, fmt.Sprint("third ", i), p.text("shop/payments/x"))
	}
	eventually(t, "in force", func() bool {
		in, _ := b.fleet.Instance("i1")
		return in.State == fleet.Live && in.Revision == p.at.GetRevision()
	})
}

func TestO_PU_04_subscription_changes_do_not_multiply_updates(t *testing.T) {
	b := start(t, nil)
	b.put("shop/payments/z", "z")
	b.load()
	p := b.join(t, hello("i1", "shop/payments/a"))
	p.until(10)
	for i := range 100 {
		p.say(&policydv1.Subscribe{Targets: []string{fmt.Sprintf("shop/payments/a%d", i)}})
	}
	p.say(&policydv1.Subscribe{Targets: []string{"shop/payments/z"}})
	for p.text("shop/payments/z") == "" {
		require.True(t, p.update().GetSnapshot())
		p.ack()
	}
	in, ok := b.fleet.Instance("i1")
	require.True(t, ok)
	require.Len(t, in.Targets, 1)
	eventually(t, "views of earlier targets are gone", func() bool { return b.Stats().Views == 1 })

	before := p.updates
	p.until(b.put("shop/payments/z", "edited"))
	// A second copy would come before the answer to a later edit.
	p.until(b.put("shop/payments/z", "again"))
	require.Equal(t, before+2, p.updates)
}

func TestO_PU_06_one_open_stream_after_every_kind_of_break(t *testing.T) {
	b := start(t, nil)
	b.load()
	var at *policydv1.ResumePoint
	for i := range 20 {
		conn := dial(t, b.addr)
		p := open(t, conn)
		h := hello("i1")
		if h.Resume = at; at != nil {
			p.at = at
		}
		p.say(h)
		u := p.update()
		p.ack()
		require.Equal(t, at == nil, u.GetSnapshot())
		at = p.at
		eventually(t, "one stream", func() bool { return b.Stats().Streams == 1 })
		switch i % 3 {
		case 0:
			require.NoError(t, conn.Close())
		case 1:
			p.leave()
		case 2:
			require.NoError(t, p.stream.CloseSend())
			require.Error(t, p.end())
		}
		eventually(t, "no stream", func() bool { return b.Stats().Streams == 0 })
		in, _ := b.fleet.Instance("i1")
		require.Equal(t, fleet.Stale, in.State)
	}
}

func TestO_PU_10_twenty_thousand_policies_arrive_in_pieces(t *testing.T) {
	b := start(t, nil)
	const n = 20_000
	filler := strings.Repeat("x", 240)
	changes := make([]policy.Change, n)
	for i := range changes {
		changes[i] = policyChange(name(i), filler)
	}
	b.commit(changes...)
	b.load()
	// The client's own limit stays at gRPC's 4 MiB, which the whole does not fit.
	p := b.join(t, hello("i1"))
	r, err := p.next()
	require.NoError(t, err)
	require.True(t, r.GetUpdate().GetMore())
	require.Empty(t, p.held, "no piece is used before the last")
	p.until(int64(b.revision))
	require.Len(t, p.held, n)
	require.Greater(t, p.pieces, 20)
	require.Equal(t, 1, p.updates)

	p.until(b.put(name(7), "edited"))
	require.Equal(t, "edited", p.text(name(7)))
	require.Equal(t, n+1, p.entries)
}

func TestO_PU_11_a_bulk_change_is_few_messages_and_a_single_edit_is_one(t *testing.T) {
	b := start(t, nil)
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	before := p.pieces
	// Five transactions, as many as an apply of 500 needs.
	var last int64
	for part := range 5 {
		changes := make([]policy.Change, 100)
		for i := range changes {
			changes[i] = policyChange(name(part*100+i), "bulk")
		}
		last = b.commit(changes...)
	}
	p.until(last)
	require.Len(t, p.held, 500)
	require.LessOrEqual(t, p.pieces-before, 10)

	before = p.pieces
	p.until(b.put(name(3), "single"))
	require.Equal(t, 1, p.pieces-before)
}

func TestO_PU_11_a_burst_of_edits_is_gathered(t *testing.T) {
	b := start(t, nil)
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	before := p.updates
	var last int64
	for i := range 100 {
		last = b.put("shop/payments/x", fmt.Sprint(i))
	}
	p.until(last)
	require.Equal(t, "99", p.text("shop/payments/x"))
	require.Less(t, p.updates-before, 50)
}

func TestA_switch_does_not_wait_for_the_gathering(t *testing.T) {
	b := start(t, func(c *push.Config) { c.Gather = time.Hour })
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	b.put("shop/payments/x", "waits")
	// It flushes what was gathered before it.
	p.until(b.commit(switchChange("ks-1", "shop/payments", false)))
	require.Contains(t, p.held, "switches/ks-1")
	require.Equal(t, "waits", p.text("shop/payments/x"))
}

func TestO_PU_12_drain_sends_everybody_away_and_ends_the_rest(t *testing.T) {
	b := start(t, nil)
	b.load()
	peers := make([]*peer, 50)
	for i := range peers {
		peers[i] = b.join(t, hello(fmt.Sprint("i", i)))
		peers[i].until(10)
	}
	ctx, cancel := context.WithCancel(context.Background())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		b.Drain(ctx, 7*time.Second)
	}()
	for i, p := range peers {
		require.Equal(t, 7*time.Second, p.goAway().GetReconnectWithin().AsDuration())
		if i%2 == 0 {
			p.leave()
		}
	}
	// Nobody new is served meanwhile.
	late := b.join(t, hello("late"))
	require.Equal(t, codes.Unavailable, status.Code(late.end()))

	cancel() // no more time
	<-drained
	for i, p := range peers {
		if i%2 == 1 {
			require.Equal(t, codes.Unavailable, status.Code(p.end()))
		}
	}
	eventually(t, "nobody is left", func() bool { return b.Stats().Streams == 0 })
	b.server.GracefulStop()
}

func TestDrain_returns_when_all_have_left(t *testing.T) {
	b := start(t, nil)
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		b.Drain(context.Background(), time.Second)
	}()
	p.goAway()
	p.leave()
	<-drained
}

func TestResume(t *testing.T) {
	b := start(t, nil)
	b.put("global", "g")
	b.put("shop/payments/a", "a")
	b.put("shop/payments/b", "b")
	b.load()
	base := b.join(t, hello("base"))
	base.until(int64(b.revision))
	old := base.at
	held := func() map[string]*policydv1.Entry {
		m := make(map[string]*policydv1.Entry)
		for k, e := range base.held {
			m[k] = e
		}
		return m
	}
	back := func(t *testing.T, at *policydv1.ResumePoint, entries map[string]*policydv1.Entry) *peer {
		p := open(t, dial(t, b.addr))
		h := hello(strings.ReplaceAll(t.Name(), "/", "-"))
		h.Resume = at
		p.at, p.held = &policydv1.ResumePoint{Epoch: at.GetEpoch(), Revision: at.GetRevision()}, entries
		p.say(h)
		return p
	}

	t.Run("nothing changed: an empty update of at most 200 bytes", func(t *testing.T) {
		p := back(t, old, held())
		u := p.update()
		require.Empty(t, u.GetEntries())
		require.False(t, u.GetSnapshot())
		require.LessOrEqual(t, p.lastSize, 200)
		p.ack()
		in, _ := b.fleet.Instance(h(t))
		require.True(t, in.Resumed)
		require.Equal(t, old.GetRevision(), in.Revision)
	})

	atOld := held()
	b.commit(deletion("shop/payments/a"))
	base.until(b.put("shop/payments/c", "c"))

	t.Run("same epoch: what changed since, deletions included", func(t *testing.T) {
		p := back(t, old, atOld)
		u := p.update()
		require.False(t, u.GetSnapshot())
		require.Len(t, u.GetEntries(), 2)
		require.NotContains(t, p.held, "policies/shop/payments/a")
		require.Equal(t, "c", p.text("shop/payments/c"))
	})
	t.Run("a wrong hash at the newest revision: a snapshot", func(t *testing.T) {
		at := &policydv1.ResumePoint{Epoch: "e1", Revision: int64(b.revision), Hash: 1}
		require.True(t, back(t, at, held()).update().GetSnapshot())
	})
	t.Run("another epoch: a snapshot", func(t *testing.T) {
		at := &policydv1.ResumePoint{Epoch: "e0", Revision: int64(b.revision) + 1000, Hash: old.GetHash()}
		require.True(t, back(t, at, held()).update().GetSnapshot())
	})
	t.Run("from a replica that is ahead with the same documents: its own revision comes back", func(t *testing.T) {
		at := &policydv1.ResumePoint{Epoch: "e1", Revision: int64(b.revision) + 5, Hash: base.at.GetHash()}
		u := back(t, at, held()).update()
		require.Empty(t, u.GetEntries())
		require.Equal(t, at.GetRevision(), u.GetRevision())
	})
	t.Run("from a replica that is ahead: nothing until this one has caught up", func(t *testing.T) {
		ahead := policyChange("shop/payments/d", "d")
		ahead.Revision = b.revision + 1
		entries := held()
		entries[ahead.Key] = &policydv1.Entry{Key: ahead.Key, Revision: int64(ahead.Revision)}
		at := &policydv1.ResumePoint{Epoch: "e1", Revision: int64(ahead.Revision), Hash: base.at.GetHash() + hashOf(ahead)}
		p := back(t, at, entries)
		eventually(t, "connected", func() bool { in, _ := b.fleet.Instance(h(t)); return in.State == fleet.Live })
		require.Equal(t, at.GetRevision(), b.commit(ahead))
		u := p.update()
		require.Empty(t, u.GetEntries())
		require.Equal(t, at.GetRevision(), u.GetRevision())
	})
	t.Run("what came and went unseen here: its deletion", func(t *testing.T) {
		base.until(b.put("shop/payments/f", "f"))
		unseen := policyChange("shop/payments/u", "u")
		unseen.Revision = b.revision
		entries := held()
		entries[unseen.Key] = &policydv1.Entry{Key: unseen.Key, Revision: int64(unseen.Revision)}
		at := &policydv1.ResumePoint{Epoch: "e1", Revision: int64(unseen.Revision), Hash: base.at.GetHash() + hashOf(unseen)}
		b.commit(deletion("shop/payments/u"))
		base.until(b.put("shop/payments/f", "g"))
		p := back(t, at, entries)
		u := p.update()
		require.False(t, u.GetSnapshot())
		require.Len(t, u.GetEntries(), 2)
		require.NotContains(t, p.held, unseen.Key)
		require.Equal(t, base.at.GetHash(), u.GetHash())
	})
	t.Run("older than the deletions that are known: a snapshot", func(t *testing.T) {
		b.since = b.revision
		base.until(b.put("shop/payments/e", "e"))
		require.True(t, back(t, old, atOld).update().GetSnapshot())
	})
}

func TestA_new_epoch_replaces_everything(t *testing.T) {
	b := start(t, nil)
	b.put("shop/payments/a", "a")
	b.load()
	p := b.join(t, hello("i1"))
	p.until(int64(b.revision))

	b.mu.Lock()
	b.epoch, b.revision = "e2", 3
	c := policyChange("shop/payments/b", "b")
	c.Revision = 3
	b.docs = map[string]policy.Change{c.Key: c}
	b.mu.Unlock()
	b.load()
	u := p.update()
	require.True(t, u.GetSnapshot())
	require.Equal(t, "e2", u.GetEpoch())
	require.EqualValues(t, 3, u.GetRevision())
	require.Len(t, p.held, 1)
	// What was confirmed of other data is not in force in these, however high its revision was.
	in, _ := b.fleet.Instance("i1")
	require.Equal(t, fleet.Behind, in.State)
	require.Zero(t, in.Revision)
	// An ack of the epoch before changes nothing.
	p.say(&policydv1.Ack{Epoch: "e1", Revision: 11})
	p.ack()
	eventually(t, "in force", func() bool { in, _ := b.fleet.Instance("i1"); return in.State == fleet.Live && in.Revision == 3 })
}

func TestA_complete_update_of_the_same_epoch_sends_only_the_difference(t *testing.T) {
	b := start(t, nil)
	for i := range 100 {
		b.put(name(i), "x")
	}
	b.load()
	p := b.join(t, hello("i1"))
	p.until(int64(b.revision))

	// The store lost its watch: it lists again, and one policy is gone without a word.
	b.mu.Lock()
	delete(b.docs, policy.PolicyKey(name(1)))
	b.revision++
	b.mu.Unlock()
	b.load()
	u := p.update()
	require.False(t, u.GetSnapshot())
	require.Len(t, u.GetEntries(), 1)
	require.True(t, u.GetEntries()[0].GetDeleted())
	require.Len(t, p.held, 99)
}

func TestO_WA_03_a_repair_reaches_streams_beyond_its_revision(t *testing.T) {
	b := start(t, nil)
	b.put("shop/payments/a", "a")
	b.load()
	p := b.join(t, hello("i1"))
	p.until(b.put("shop/payments/b", "b"))
	// A deletion that was swallowed between the two is found: the revision does not move.
	b.Publish(policy.Update{Epoch: "e1", Revision: b.revision, Changes: []policy.Change{
		{Key: "policies/shop/payments/a", Scope: "shop/payments/a", Revision: b.revision},
	}})
	u := p.update()
	require.Len(t, u.GetEntries(), 1)
	require.Len(t, p.held, 1)
}

func TestWhat_an_instance_sees(t *testing.T) {
	b := start(t, nil)
	for _, c := range []policy.Change{
		policyChange("global", "x"), policyChange("shop", "x"), policyChange("shop/pay", "x"),
		policyChange("shop/pay/charge", "x"), policyChange("shop/payments", "x"), policyChange("shopping", "x"),
		policyChange("media/encode/jobs", "x"),
		switchChange("ks-shop", "shop", false), switchChange("ks-media", "media", false),
		switchChange("ks-drill", "shop", true), switchChange("ks-all", "global", false),
	} {
		b.commit(c)
	}
	b.load()
	cases := map[string]struct {
		hello *policydv1.Hello
		sees  []string
	}{
		"its namespace without targets": {
			hello: &policydv1.Hello{Namespace: "shop"},
			sees: []string{
				"policies/global", "policies/shop", "policies/shop/pay", "policies/shop/pay/charge",
				"policies/shop/payments", "switches/ks-shop", "switches/ks-all",
			},
		},
		"a service and what lies above and below": {
			hello: &policydv1.Hello{Namespace: "other", Targets: []string{"shop/pay"}},
			sees: []string{
				"policies/global", "policies/shop", "policies/shop/pay", "policies/shop/pay/charge",
				"switches/ks-shop", "switches/ks-all",
			},
		},
		"an endpoint": {
			hello: &policydv1.Hello{Targets: []string{"shop/pay/charge"}},
			sees: []string{
				"policies/global", "policies/shop", "policies/shop/pay", "policies/shop/pay/charge",
				"switches/ks-shop", "switches/ks-all",
			},
		},
		"global documents only, without namespace and targets": {
			hello: &policydv1.Hello{},
			sees:  []string{"policies/global", "switches/ks-all"},
		},
		"everything, with the target global": {
			hello: &policydv1.Hello{Targets: []string{"global"}},
			sees: []string{
				"policies/global", "policies/shop", "policies/shop/pay", "policies/shop/pay/charge",
				"policies/shop/payments", "policies/shopping", "policies/media/encode/jobs",
				"switches/ks-shop", "switches/ks-media", "switches/ks-all",
			},
		},
		"drills, if it was started for them": {
			hello: &policydv1.Hello{Targets: []string{"shop/payments"}, Capabilities: []string{"drill"}},
			sees: []string{
				"policies/global", "policies/shop", "policies/shop/payments",
				"switches/ks-shop", "switches/ks-all", "switches/ks-drill",
			},
		},
		"two targets of which one holds the other": {
			hello: &policydv1.Hello{Targets: []string{"media/encode", "media", "media"}},
			sees:  []string{"policies/global", "policies/media/encode/jobs", "switches/ks-media", "switches/ks-all"},
		},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			c.hello.Instance = what
			p := b.join(t, c.hello)
			p.update()
			var sees []string
			for key := range p.held {
				sees = append(sees, key)
			}
			require.ElementsMatch(t, c.sees, sees)
		})
	}
}

func TestThe_end_of_a_drill_is_told_only_to_those_who_saw_it(t *testing.T) {
	b := start(t, nil)
	b.commit(switchChange("ks-drill", "shop", true))
	b.load()
	drilled := hello("i1")
	drilled.Capabilities = []string{"drill"}
	p, q := b.join(t, drilled), b.join(t, hello("i2"))
	p.until(int64(b.revision))
	q.until(int64(b.revision))
	b.commit(policy.Change{Key: policy.SwitchKey("ks-drill"), Scope: "shop", Urgent: true})
	last := b.put("shop", "x")
	p.until(last)
	q.until(last)
	require.Equal(t, 3, p.entries)
	require.Equal(t, 1, q.entries)
	in, _ := b.fleet.Instance("i1")
	require.True(t, in.Drill)
}

func TestO_WA_07_a_neighbour_with_the_same_beginning_is_not_told(t *testing.T) {
	b := start(t, nil)
	b.load()
	p := b.join(t, hello("i1", "shop/pay"))
	p.until(10)
	b.put("shop/payments", "neighbour")
	p.until(b.put("shop/pay", "mine"))
	require.Len(t, p.held, 1)
	require.Equal(t, 2, p.updates)
}

func TestA_snapshot_is_sent_on_request_but_not_for_ever(t *testing.T) {
	b := start(t, nil)
	b.put("shop/payments/a", "a")
	b.load()
	p := b.join(t, hello("i1"))
	p.update()
	for range 3 {
		p.say(&policydv1.Ack{Epoch: "e1", Revision: p.at.GetRevision(), WantSnapshot: true})
		require.True(t, p.update().GetSnapshot())
	}
	p.say(&policydv1.Ack{Epoch: "e1", Revision: p.at.GetRevision(), WantSnapshot: true})
	// What happens meanwhile is not held back.
	b.commit(switchChange("ks-1", "shop", false))
	require.False(t, p.update().GetSnapshot())
	require.Contains(t, p.held, "switches/ks-1")
	in, _ := b.fleet.Instance("i1")
	require.Equal(t, fleet.Behind, in.State, "who asks for a snapshot has nothing in force")
}

func TestBad_introductions_are_refused(t *testing.T) {
	b := start(t, nil)
	b.load()
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint("ns", i)
	}
	cases := map[string][]any{
		"an ack first":               {&policydv1.Ack{}},
		"nothing in it":              {nil},
		"no instance":                {&policydv1.Hello{Namespace: "shop"}},
		"a long instance":            {&policydv1.Hello{Instance: strings.Repeat("x", 129)}},
		"a line break in the name":   {&policydv1.Hello{Instance: "a\nb"}},
		"a namespace that is a path": {&policydv1.Hello{Instance: "i", Namespace: "a/b"}},
		"a namespace named global":   {&policydv1.Hello{Instance: "i", Namespace: "global"}},
		"a service that is a path":   {&policydv1.Hello{Instance: "i", Namespace: "a", Service: "pay/ments"}},
		"a target that is no scope":  {&policydv1.Hello{Instance: "i", Targets: []string{"Shop"}}},
		"a relay without an id":      {&policydv1.Hello{Instance: "i", Relay: &policydv1.Relay{}}},
		"a relay of too many relays": {&policydv1.Hello{Instance: "i", Relay: &policydv1.Relay{Id: "r", Below: make([]string, 1001)}}},
		"too many targets":           {&policydv1.Hello{Instance: "i", Targets: many}},
		"two hellos":                 {hello("i"), hello("i")},
		"an ack of the future":       {hello("i"), &policydv1.Ack{Epoch: "e1", Revision: 1 << 40}},
		"bad targets in mid-stream":  {hello("i"), &policydv1.Subscribe{Targets: []string{"a//b"}}},
		"many targets in mid-stream": {hello("i"), &policydv1.Subscribe{Targets: many}},
	}
	for what, said := range cases {
		t.Run(what, func(t *testing.T) {
			p := open(t, dial(t, b.addr))
			for i, m := range said {
				if i == 1 {
					p.update()
				}
				p.say(m)
			}
			require.Equal(t, codes.InvalidArgument, status.Code(p.end()))
		})
	}
	eventually(t, "nothing is left", func() bool { return b.Stats().Streams == 0 && b.Stats().Views == 0 })
}

func TestWho_does_not_introduce_itself_is_sent_away(t *testing.T) {
	b := start(t, func(c *push.Config) { c.Limits.Hello = 20 * time.Millisecond })
	b.load()
	require.Equal(t, codes.InvalidArgument, status.Code(open(t, dial(t, b.addr)).end()))
}

func TestA_server_without_the_options_says_so(t *testing.T) {
	b := start(t, nil)
	b.server.Stop()
	bare := grpc.NewServer()
	b.Register(bare)
	b.load()
	p := open(t, dial(t, serve(t, bare)))
	p.say(hello("i1"))
	require.Equal(t, codes.Internal, status.Code(p.end()))
}

func TestToo_many_streams_are_told_when_to_come_back(t *testing.T) {
	b := start(t, func(c *push.Config) { c.Limits.Streams = 2 })
	b.load()
	first := b.join(t, hello("i1"))
	first.until(10)
	b.join(t, hello("i2")).until(10)
	err := b.join(t, hello("i3")).end()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	info, ok := status.Convert(err).Details()[0].(*errdetails.RetryInfo)
	require.True(t, ok)
	require.Positive(t, info.GetRetryDelay().AsDuration())
	require.EqualValues(t, 1, b.Stats().Refused)

	first.leave()
	eventually(t, "a place is free", func() bool { return b.Stats().Streams == 1 })
	b.join(t, hello("i3")).until(10)
}

func TestStreams_that_come_before_the_store_wait_for_it(t *testing.T) {
	b := start(t, nil)
	p := b.join(t, hello("i1"))
	eventually(t, "connected", func() bool { return b.Stats().Streams == 1 })
	b.put("shop/payments/a", "a") // refused: there is no epoch yet
	b.load()
	p.until(int64(b.revision))
	require.Equal(t, "a", p.text("shop/payments/a"))
}
