// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestAn_edit_waits_for_the_confirmation_of_the_one_before_and_a_switch_does_not(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		synctest.Wait()
		put := func(text string) {
			b.put("shop/payments/x", text)
			time.Sleep(20 * time.Millisecond) // for the gathering
			synctest.Wait()
		}
		sent := func() int64 { return b.Stats().Updates }

		before := sent()
		put("first")
		put("second")
		put("third")
		require.Equal(t, before+1, sent(), "one that nobody confirmed is enough")
		require.Equal(t, "first", policyText(p.update()))

		b.commit(switchChange("ks-1", "shop/payments", false))
		synctest.Wait()
		require.Equal(t, before+2, sent(), "a switch waits for nothing")
		put("fourth")
		b.commit(switchChange("ks-2", "shop/payments", false))
		synctest.Wait()
		require.Equal(t, before+3, sent(), "not even for a switch")
		p.update()
		require.Contains(t, p.held, "switches/ks-1")
		require.Equal(t, "third", p.text("shop/payments/x"), "it brings everything up to it")
		p.update()
		require.Contains(t, p.held, "switches/ks-2")

		put("fifth")
		require.Equal(t, before+3, sent())
		in, _ := b.fleet.Instance("i1")
		require.Equal(t, fleet.Behind, in.State)
		p.ack()
		p.until(int64(b.revision))
		require.Equal(t, "fifth", p.text("shop/payments/x"))
		synctest.Wait()
		in, _ = b.fleet.Instance("i1")
		require.Equal(t, fleet.Live, in.State)
	})
}

func TestAn_edit_waits_for_a_confirmation_that_never_comes_but_not_for_ever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		began := time.Now()
		b.put("shop/payments/x", "first")
		p.update()
		b.put("shop/payments/x", "second")
		p.update()
		require.Equal(t, "second", p.text("shop/payments/x"))
		require.LessOrEqual(t, time.Since(began), 20*time.Second, "the next heartbeat finds it")
		require.GreaterOrEqual(t, time.Since(began), 4*time.Second)
		// Edits that go on need no heartbeat.
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			b.put("shop/payments/x", "more")
		}
		require.Equal(t, "more", policyText(p.update()))
		require.LessOrEqual(t, time.Since(began), 30*time.Second)
	})
}

func TestA_confirmation_of_an_older_update_lets_the_next_edit_go_only_if_it_is_the_last(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		edit := b.put("shop/payments/x", "edit")
		p.update()
		sw := b.commit(switchChange("ks-1", "shop/payments", false))
		p.update()
		last := b.put("shop/payments/x", "last")
		p.say(&policydv1.Ack{Epoch: "e1", Revision: edit})
		synctest.Wait()
		sent := b.Stats().Updates
		time.Sleep(time.Second)
		require.Equal(t, sent, b.Stats().Updates, "the switch is not confirmed yet")
		p.say(&policydv1.Ack{Epoch: "e1", Revision: sw})
		p.until(last)
		require.Equal(t, "last", p.text("shop/payments/x"))
	})
}

// crowd is 200 peers that are up to date; the first belongs to another namespace.
func crowd(t *testing.T, b *bench, l *pipe) (peers []*peer) {
	var conn *grpc.ClientConn
	for i := range 200 {
		if i%100 == 0 {
			conn = l.dial(t)
		}
		p := longOpen(t, conn)
		peers = append(peers, p)
		h := hello(fmt.Sprint("i", i))
		if i == 0 {
			h.Namespace = "media"
		}
		p.say(h)
		p.until(10)
	}
	time.Sleep(time.Minute)
	return peers
}

func TestEdits_reach_many_streams_in_rounds_and_a_switch_waits_for_none(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, func(c *push.Config) { c.Gather = time.Millisecond }, push.ServerOptions()...)
		b.load()
		peers := crowd(t, b, l)
		before := b.Stats().Updates
		rounds, last := int64(0), int64(0)
		for i := range 240 {
			last = b.put("shop/payments/x", fmt.Sprint(i))
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if i == 0 {
				require.EqualValues(t, 199, b.Stats().Updates-before, "an edit after a pause waits for nothing")
			}
			for ; rounds < (b.Stats().Updates-before)/199; rounds++ {
				for _, p := range peers[1:] {
					p.update()
					p.ack()
				}
			}
		}
		require.LessOrEqual(t, rounds, int64(11), "one in 24 ms")
		require.GreaterOrEqual(t, rounds, int64(9))

		b.commit(switchChange("ks-1", "shop/payments", false))
		synctest.Wait()
		for _, p := range peers[1:] {
			for p.held["switches/ks-1"] == nil {
				p.update()
			}
			require.Equal(t, "239", p.text("shop/payments/x"))
			p.until(last)
		}
		// One view does not wait for the rounds of another.
		b.put("shop/payments/x", "once more")
		b.put("media/x", "alone")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		peers[0].update()
		require.Equal(t, "alone", peers[0].text("media/x"))
	})
}

func TestInstances_get_time_for_their_confirmations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		peers := crowd(t, b, l)
		given := func() (all []time.Duration) {
			for _, p := range peers[1:] {
				all = append(all, p.update().GetConfirmWithin().AsDuration())
				p.ack()
			}
			return all
		}

		b.put("global", "everybody")
		alone := given()
		peers[0].update()
		peers[0].ack()
		require.Equal(t, 8*time.Millisecond, alone[0], "for the readers of all views")
		b.commit(switchChange("ks-1", "shop/payments", false))
		require.InDelta(t, alone[0], given()[0], float64(time.Millisecond))
		b.put("media/x", "for one alone")
		require.Nil(t, peers[0].update().GetConfirmWithin(), "few need no time")
	})
}

// policyText is the description in the only policy of an update.
func policyText(u *policydv1.Update) string {
	for _, e := range u.GetEntries() {
		if p := e.GetPolicy(); p != nil {
			return p.GetSpec().GetDescription()
		}
	}
	return ""
}
