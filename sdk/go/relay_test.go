// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyd "github.com/policyd/policyd/sdk/go"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// relayBeat is a heartbeat of a relay that has been cut off since asOf.
func (c *watchConn) relayBeat(tb testing.TB, revision int64, asOf time.Time) {
	tb.Helper()
	beat := &policydv1.Heartbeat{Revision: revision, ServerTime: timestamppb.New(time.Now().Add(time.Hour))} // its clock is ahead
	if !asOf.IsZero() {
		beat.AsOf = timestamppb.New(asOf.Add(time.Hour))
	}
	c.send(tb, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{Heartbeat: beat}})
	synctest.Wait()
}

func TestRelay_that_is_cut_off_leaves_the_client_connected_and_stale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		var events []policyd.PolicyEvent
		c := s.client(policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) { events = append(events, e) }}))
		conn := s.next()
		conn.apply(t, wholeState("e", 5, tries("shop", 5, 2)))
		cut := time.Now()
		synctest.Wait()
		said := len(events)

		time.Sleep(15 * time.Second)
		conn.relayBeat(t, 5, cut)
		if st := c.Status(); st.State != policyd.StateLive || !st.AsOf.Equal(cut) {
			t.Fatalf("a relay that lost its upstream a moment ago: %+v", st)
		}
		for range 4 {
			time.Sleep(15 * time.Second)
			conn.relayBeat(t, 5, cut)
		}
		st := c.Status()
		if st.State != policyd.StateStale || !st.AsOf.Equal(cut) || st.LastErr == nil || !strings.Contains(st.LastErr.Error(), "cut off") {
			t.Fatalf("status %+v", st)
		}
		if st.Revision != 5 || st.Source != s.addr || len(events) != said || s.count.Load() != 1 {
			t.Fatalf("status %+v, %d streams, events %v", st, s.count.Load(), events)
		}

		time.Sleep(15 * time.Second)
		conn.relayBeat(t, 5, time.Time{})
		if st := c.Status(); st.State != policyd.StateLive || !st.AsOf.Equal(time.Now()) || st.LastErr != nil {
			t.Fatalf("after the relay found its upstream: %+v", st)
		}
	})
}

func TestRelay_that_is_cut_off_is_left_for_another_address(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client(policyd.WithAddr("127.0.0.1:7400,127.0.0.1:7401"))
		conn := s.next()
		conn.apply(t, wholeState("e", 5, tries("shop", 5, 2)))
		cut := time.Now()
		for range 2 {
			time.Sleep(15 * time.Second)
			conn.relayBeat(t, 5, cut)
		}
		if n := s.count.Load(); n != 1 {
			t.Fatal("left at once: the upstream may come back")
		}
		time.Sleep(15 * time.Second)
		conn.relayBeat(t, 5, cut)
		next := s.next()
		if got := next.hello.GetResume(); got.GetRevision() != 5 || got.GetEpoch() != "e" {
			t.Fatalf("resumes at %v", got)
		}
	})
}

func TestRelay_that_is_cut_off_cannot_bring_another_epoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("new", 5, tries("shop", 5, 2)))
		conn.end <- nil
		conn = s.next()
		old := wholeState("old", 500, tries("shop", 500, 9))
		old.ServerTime, old.AsOf = timestamppb.New(time.Now()), timestamppb.New(time.Now().Add(-time.Hour))
		conn.update(t, old)
		conn = s.next() // it left
		if st := c.Status(); st.Revision != 5 {
			t.Fatalf("status %+v", st)
		}
		// One that is not cut off may: the store was restored.
		old.AsOf = nil
		conn.apply(t, old)
		synctest.Wait()
		if st := c.Status(); st.Revision != 500 || st.State != policyd.StateLive {
			t.Fatalf("status %+v", st)
		}
	})
}
