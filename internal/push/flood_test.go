// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestA_flood_of_subscriptions_is_taken_at_a_bounded_rate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.put("shop/payments/z", "z")
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1", "shop/payments/a"))
		p.until(10)
		other := longOpen(t, l.dial(t))
		other.say(hello("i2"))
		other.until(10)

		began := time.Now()
		for i := range 299 {
			p.say(&policydv1.Subscribe{Targets: []string{fmt.Sprintf("shop/payments/a%d", i)}})
		}
		p.say(&policydv1.Subscribe{Targets: []string{"shop/payments/z"}})
		other.until(b.put("shop/payments/b", "not held up"))
		require.LessOrEqual(t, time.Since(began), time.Second)
		for p.text("shop/payments/z") == "" {
			p.update()
			p.ack()
		}
		require.InDelta(t, 10*time.Second, time.Since(began), float64(time.Second))
	})
}

func TestA_stream_that_ends_does_not_wait_with_its_subscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipe()
		b := startOn(t, l, nil, push.ServerOptions()...)
		b.load()
		p := longOpen(t, l.dial(t))
		p.say(hello("i1"))
		p.until(10)
		for i := range 400 {
			p.say(&policydv1.Subscribe{Targets: []string{fmt.Sprintf("shop/a%d", i)}})
		}
		p.leave()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, b.Stats().Streams)
		require.Zero(t, b.Stats().Views)
	})
}

func TestA_message_beyond_what_any_instance_says_ends_its_stream(t *testing.T) {
	b := startOn(t, listen(t), nil, append(push.ServerOptions(), grpc.MaxRecvMsgSize(8<<20))...)
	b.load()
	p := b.join(t, hello("i1"))
	p.until(10)
	report := &policydv1.Report{}
	for range 300 {
		report.Endpoints = append(report.Endpoints, &policydv1.EndpointReport{Endpoint: strings.Repeat("x", 1<<10)})
	}
	p.say(report) // more than policyd keeps, and yet no fault
	p.until(b.put("shop/payments/x", "x"))
	for range 900 {
		report.Endpoints = append(report.Endpoints, &policydv1.EndpointReport{Endpoint: strings.Repeat("x", 1<<10)})
	}
	p.say(report)
	err := p.end()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "at most 1048576")
}

func TestAn_instance_that_confirms_what_it_does_not_read_holds_up_nobody(t *testing.T) {
	b := start(t, func(c *push.Config) { c.Limits.Writers = 1 })
	b.load()
	// A window that does not grow.
	blind := open(t, dial(t, b.addr, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10)))
	blind.say(hello("blind"))
	other := b.join(t, hello("other"))
	blind.until(10)
	other.until(10)
	wanted := func() int64 { in, _ := b.fleet.Instance("blind"); return in.Wanted }
	for range 20 { // several times what may lie unread
		revision := b.put("shop/payments/x", strings.Repeat("x", 20<<10))
		other.until(revision)
		eventually(t, "its turn", func() bool { return wanted() == revision || b.Stats().CutOff > 0 })
		blind.say(&policydv1.Ack{Epoch: "e1", Revision: revision})
	}
	other.until(b.commit(switchChange("ks-1", "shop/payments", false)))
	require.EqualValues(t, 1, b.Stats().CutOff)
}
