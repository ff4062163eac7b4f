// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestO_PU_03_a_reader_that_stops_holds_up_nobody(t *testing.T) {
	b := start(t, nil)
	b.load()
	slow := b.join(t, hello("slow"))
	slow.update()
	slow.ack()
	others := make([]*peer, 99)
	for i := range others {
		others[i] = b.join(t, hello(fmt.Sprint("i", i)))
		others[i].until(10)
	}
	before := b.Stats()
	text := strings.Repeat("x", 8<<10)
	var last int64
	for i := range 20 {
		last = b.put(name(i), fmt.Sprint(i, text))
		for _, p := range others {
			p.until(last)
			require.Len(t, p.held, i+1)
		}
	}
	// 99 streams got 20 updates each; what the slow one was sent is bounded.
	after := b.Stats()
	require.LessOrEqual(t, after.Updates-before.Updates, int64(99*20+5))
	in, _ := b.fleet.Instance("slow")
	require.Equal(t, fleet.Behind, in.State)
	require.Equal(t, last, in.Wanted)

	got := slow.updates
	slow.until(last)
	require.Len(t, slow.held, 20)
	require.LessOrEqual(t, slow.updates-got, 6, "what it missed comes at once")
	require.Positive(t, b.Stats().Coalesced)
}

func TestA_large_snapshot_that_nobody_reads_holds_up_nobody(t *testing.T) {
	b := start(t, nil)
	filler := strings.Repeat("x", 50<<10)
	changes := make([]policy.Change, 200) // 10 MB
	for i := range changes {
		changes[i] = policyChange(name(i), filler)
	}
	b.commit(changes...)
	b.load()
	slow := b.join(t, hello("slow"))
	other := b.join(t, hello("other"))
	other.until(int64(b.revision))
	for i := range 50 {
		other.until(b.put(name(i), "edited"))
	}
	require.Len(t, other.held, 200)
	// The snapshot under way is of the state before; the edits follow in one piece.
	slow.until(int64(b.revision))
	require.Equal(t, 2, slow.updates)
	require.Equal(t, "edited", slow.text(name(49)))
}

func TestStreams_that_come_and_go_while_everything_changes_end_with_the_same_state(t *testing.T) {
	b := start(t, func(c *push.Config) {
		c.Gather = time.Millisecond
		c.Heartbeat = 20 * time.Millisecond
		c.Limits.Unconfirmed = 4 << 10
		c.Limits.Piece = 8 << 10
	})
	b.load()
	const edits = 5000
	conns := make([]*grpc.ClientConn, 4)
	for i := range conns {
		conns[i] = dial(t, b.addr)
	}
	targets := [][]string{{"shop"}, {"shop/payments"}, {"shop/payments/endpoint-00003", "media"}, {"global"}, nil}
	const peers = 60
	ready := make(chan int64, peers)
	var writer sync.WaitGroup
	writer.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for i := range edits {
			scope := name(r.IntN(40))
			switch r.IntN(10) {
			case 0:
				b.commit(deletion(scope))
			case 1:
				b.commit(switchChange(fmt.Sprint("ks-", r.IntN(5)), "shop/payments", false))
			case 2:
				b.put("global", fmt.Sprint(i))
			case 3:
				b.put(engine.Scope("media/encode/x"+fmt.Sprint(r.IntN(3))), fmt.Sprint(i))
			case 4:
				b.put("shop/search", strings.Repeat("y", r.IntN(3000)))
			case 5:
				b.load()
			default:
				b.put(scope, fmt.Sprint(i, strings.Repeat("z", r.IntN(2000))))
			}
		}
		b.put("global", "before the last")
		last := b.commit(switchChange("ks-last", "global", false))
		for range peers {
			ready <- last
		}
	})
	var readers sync.WaitGroup
	for i := range peers {
		readers.Go(func() {
			wanderer{b: b, t: t, conn: conns[i%len(conns)], r: rand.New(rand.NewPCG(3, uint64(i)))}.
				run(hello(fmt.Sprint("i", i), targets[i%len(targets)]...), ready)
		})
	}
	readers.Wait()
	writer.Wait()
	require.Zero(t, b.Stats().CutOff)
}

// wanderer is an instance that comes, goes, and asks for things at random.
type wanderer struct {
	b    *bench
	t    *testing.T
	conn *grpc.ClientConn
	r    *rand.Rand
}

// run wanders until final says which revision is the last, and checks what is held then.
func (w wanderer) run(h *policydv1.Hello, final <-chan int64) {
	p := open(w.t, w.conn)
	p.say(h)
	p.update()
	p.ack()
	var last int64
	for last == 0 {
		select {
		case last = <-final:
		default:
		}
		switch w.r.IntN(20) {
		case 0: // comes back with what it has
			p.leave()
			next := open(w.t, w.conn)
			next.held, next.at = p.held, p.at
			h.Resume = p.at
			next.say(h)
			p = next
			p.update()
		case 1:
			p.say(&policydv1.Subscribe{Targets: h.GetTargets()})
		case 2:
			p.say(&policydv1.Ack{Epoch: p.at.GetEpoch(), Revision: p.at.GetRevision(), WantSnapshot: true})
		default:
			_, err := p.next()
			require.NoError(w.t, err)
		}
		p.ack()
	}
	p.ack()
	p.until(last)
	require.Contains(w.t, p.held, "switches/ks-last")

	targets := h.GetTargets()
	if len(targets) == 0 {
		targets = []string{h.GetNamespace()}
	}
	require.Equal(w.t, w.b.hashOf(func(c policy.Change) bool {
		return c.Scope == engine.Global || slices.ContainsFunc(targets, func(target string) bool {
			return c.Scope.Overlaps(engine.Scope(target))
		})
	}), p.at.GetHash())
	eventually(w.t, "in force", func() bool {
		in, _ := w.b.fleet.Instance(h.GetInstance())
		return in.State == fleet.Live && in.Revision >= last
	})
}
