// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	policyd "github.com/policyd/policyd/sdk/go"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestNew_does_not_dial_before_the_first_call(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := newWatched(t, s.options()...)
		time.Sleep(time.Hour)
		if n := s.count.Load(); n != 0 {
			t.Fatalf("%d streams before the first call", n)
		}
		if st := c.Status(); st.State != policyd.StateConnecting || st.Source != "built-in" {
			t.Fatalf("status %+v", st)
		}
		c.Touch(ep)
		s.next()
	})
}

func TestWatch_puts_documents_in_force_before_it_confirms_them(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		events := make(chan policyd.PolicyEvent, 10)
		c := s.client(policyd.WithTargets("shop", "fx/rates"), policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) { events <- e }}))
		c.Touch("shop/pay/charge")
		changed := c.Changed()
		conn := s.next()
		want := &policydv1.Hello{
			Instance: "i-1", Namespace: "shop", Service: "web", SdkLanguage: "go", SdkVersion: policyd.Version,
			Mode: policydv1.Mode_MODE_ENFORCE, Targets: []string{"shop", "fx/rates"}, Source: "built-in",
		}
		if !proto.Equal(conn.hello, want) {
			t.Fatalf("hello %v\nwant %v", conn.hello, want)
		}

		a := tries("shop/pay", 4, 5)
		ack := conn.apply(t, wholeState("e", 7, a))
		if got := maxAttempts(c, "shop/pay/charge"); got != 5 {
			t.Fatalf("confirmed, but maxAttempts is %d", got)
		}
		if ack.GetEpoch() != "e" || ack.GetRevision() != 7 || ack.GetWantSnapshot() || len(ack.GetRejected()) != 0 {
			t.Fatalf("ack %v", ack)
		}
		receive(t, changed, "the wake-up of waits")
		if e := receive(t, events, "OnPolicy"); e.Revision != 7 || fmt.Sprint(e.Changed) != "[shop/pay/charge]" || e.Err != nil {
			t.Fatalf("event %+v", e)
		}
		if err := c.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		st := c.Status()
		if st.State != policyd.StateLive || st.Revision != 7 || st.Offered != 7 || st.Source != s.addr || st.LastErr != nil || st.AsOf.IsZero() {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestWatch_uses_no_piece_of_an_update_before_the_last(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))

		all := []*policydv1.Entry{tries("shop", 9, 4), tries("shop/a", 8, 4), tries("shop/b", 9, 4)}
		for i, e := range all {
			u := wholeState("e", 9, all...)
			u.Entries, u.More = []*policydv1.Entry{e}, i < len(all)-1
			conn.update(t, u)
			synctest.Wait()
			want := int64(2)
			if i == len(all)-1 {
				want = 4
			}
			if got := maxAttempts(c, "shop/a/x"); got != want {
				t.Fatalf("after piece %d: maxAttempts %d, want %d", i+1, got, want)
			}
		}
		if ack := receive(t, conn.acks, "an ack"); ack.GetRevision() != 9 {
			t.Fatalf("ack %v", ack)
		}
	})
}

func TestWatch_asks_for_everything_once_when_the_hash_differs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))

		wrong := changes("e", 2, nil, tries("shop", 2, 5))
		wrong.Hash++
		ack := conn.apply(t, wrong)
		if !ack.GetWantSnapshot() || ack.GetRevision() != 1 {
			t.Fatalf("ack %v, want a plea for a snapshot at revision 1", ack)
		}
		if got := maxAttempts(c, "shop/x"); got != 2 {
			t.Fatalf("maxAttempts %d, want the last good 2", got)
		}
		if ack := conn.apply(t, wholeState("e", 2, tries("shop", 2, 5))); ack.GetRevision() != 2 || ack.GetWantSnapshot() {
			t.Fatalf("ack %v", ack)
		}

		// What does not fit twice ends the stream, and the next one starts from nothing.
		wrong = changes("e", 3, nil, tries("shop", 3, 6))
		wrong.Hash++
		conn.apply(t, wrong)
		conn.update(t, wrong)
		receive(t, conn.left, "the end of the stream")
		if conn := s.next(); conn.hello.GetResume() != nil {
			t.Fatalf("resumes at %v", conn.hello.GetResume())
		}
		if st := c.Status(); st.State != policyd.StateStale || st.LastErr == nil {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestWatch_refuses_a_lower_revision_and_takes_a_new_epoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		c := s.client(policyd.WithLogger(log.logger()))
		conn := s.next()
		conn.apply(t, wholeState("e", 50, tries("shop", 50, 2)))
		for range 3 {
			if ack := conn.apply(t, wholeState("e", 49, tries("shop", 49, 9))); ack.GetRevision() != 50 {
				t.Fatalf("ack %v, want revision 50", ack)
			}
		}
		if got := maxAttempts(c, "shop/x"); got != 2 {
			t.Fatalf("maxAttempts %d: went back in time", got)
		}
		if n := log.count("older revision", "revision=49", "held=50"); n != 1 {
			t.Fatalf("%d lines of the older revision, want 1:\n%s", n, log)
		}

		if ack := conn.apply(t, changes("f", 3, nil, tries("shop", 3, 4))); !ack.GetWantSnapshot() {
			t.Fatalf("changes of another epoch: ack %v", ack)
		}
		if ack := conn.apply(t, wholeState("f", 3, tries("shop", 3, 4))); ack.GetEpoch() != "f" || ack.GetRevision() != 3 {
			t.Fatalf("ack %v", ack)
		}
		if got := maxAttempts(c, "shop/x"); got != 4 {
			t.Fatalf("maxAttempts %d, want that of the new epoch", got)
		}
		if log.count("WARN policyd has other data than before", "epoch=f", "before=e") != 1 {
			t.Fatalf("no warning of the new epoch:\n%s", log)
		}
	})
}

func TestWatch_rejects_what_it_cannot_honour_for_its_scope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		events := make(chan policyd.PolicyEvent, 10)
		c := s.client(policyd.WithLogger(log.logger()), policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) { events <- e }}))
		conn := s.next()
		search := tries("shop/search", 1, 4)
		conn.apply(t, wholeState("e", 1, search))
		receive(t, events, "OnPolicy")

		newer := policyEntry("shop/search", 2, &policydv1.PolicySpec{OfflineQueue: &policydv1.OfflineQueue{MaxItems: proto.Int64(5)}})
		newer.GetPolicy().Spec.OfflineQueue.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // field 127
		pay := tries("shop/pay", 3, 5)
		ack := conn.apply(t, changes("e", 3, []*policydv1.Entry{newer, pay}, newer, pay))
		want := &policydv1.Ack{Epoch: "e", Revision: 3, Rejected: []*policydv1.Rejection{{
			Scope: "shop/search", Revision: 2, Field: "offlineQueue.127", Reason: "unknown field; this build is too old for the document",
		}}}
		if !proto.Equal(ack, want) {
			t.Fatalf("ack %v\nwant %v", ack, want)
		}
		if a, b := maxAttempts(c, "shop/search/q"), maxAttempts(c, "shop/pay/c"); a != 4 || b != 5 {
			t.Fatalf("search %d, pay %d; want the previous 4 and the new 5", a, b)
		}
		st := c.Status()
		if st.State != policyd.StateRejected || st.Revision != 1 || st.Offered != 3 || st.LastErr == nil {
			t.Fatalf("status %+v", st)
		}
		if e := receive(t, events, "OnPolicy"); e.Err == nil || !strings.Contains(e.Err.Error(), "shop/search at revision 2 is rejected: offlineQueue.127") {
			t.Fatalf("event %+v", e)
		}
		if log.count("WARN policy rejected", "rev=2", "scope=shop/search", "field=offlineQueue.127") != 1 {
			t.Fatalf("log:\n%s", log)
		}

		// A reconnect does not fetch it again; a good document ends the state.
		conn.end <- errors.New("restart")
		conn = s.next()
		if got := conn.hello.GetResume(); got.GetRevision() != 3 || got.GetHash() != stateHash(newer, pay) {
			t.Fatalf("resume point %v", got)
		}
		if ack := conn.apply(t, changes("e", 3, []*policydv1.Entry{newer, pay})); len(ack.GetRejected()) != 1 {
			t.Fatalf("ack %v, want the rejection again", ack)
		}
		search = tries("shop/search", 4, 3)
		conn.apply(t, changes("e", 4, []*policydv1.Entry{search, pay}, search))
		if st := c.Status(); st.State != policyd.StateLive || st.Revision != 4 || st.LastErr != nil {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestO_PU_05_silent_stream_is_dropped_and_opened_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		conn.heartbeat(t, 1)
		synctest.Wait()
		start := time.Now()

		time.Sleep(37 * time.Second)
		synctest.Wait()
		if st := c.Status(); st.State != policyd.StateLive {
			t.Fatalf("after 37s: %s", st.State)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if st := c.Status(); st.State == policyd.StateLive {
			t.Fatalf("after 38s of silence: %s", st.State)
		}
		again := s.next()
		if got := again.hello.GetResume().GetRevision(); got != 1 {
			t.Fatalf("resumes at %d", got)
		}
		again.apply(t, changes("e", 2, []*policydv1.Entry{tries("shop", 2, 5)}, tries("shop", 2, 5)))
		if took := time.Since(start); took > time.Minute {
			t.Fatalf("edit in force after %s, want at most 60s", took)
		}
		if st := c.Status(); st.State != policyd.StateLive || maxAttempts(c, "shop/x") != 5 {
			t.Fatalf("status %+v", st)
		}
		if s.most.Load() > 1 {
			t.Fatalf("%d streams at once", s.most.Load())
		}
	})
}

func TestWatch_heartbeats_keep_a_stream_alive_and_fresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		conn.beat(t, 40)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		st := c.Status()
		if n := s.count.Load(); n != 1 || st.State != policyd.StateLive || time.Since(st.AsOf) > 16*time.Second {
			t.Fatalf("%d streams, status %+v", n, st)
		}
		conn.end <- nil
		if got := s.next().hello.GetResume().GetRevision(); got != 40 {
			t.Fatalf("resumes at %d, want the revision of the heartbeats", got)
		}
	})
}

func TestWatch_leaves_a_policyd_that_offers_an_epoch_it_has_left(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		c := s.client(policyd.WithLogger(log.logger()), policyd.WithAddr(s.addr+","+s.addr))
		conn := s.next()
		conn.apply(t, wholeState("e", 50, tries("shop", 50, 2)))
		conn.apply(t, wholeState("f", 3, tries("shop", 3, 4)))
		for range 3 {
			conn.update(t, wholeState("e", 60, tries("shop", 60, 9)))
			receive(t, conn.left, "the end of the stream")
			synctest.Wait()
			if st := c.Status(); st.State != policyd.StateStale || st.LastErr == nil || !strings.Contains(st.LastErr.Error(), "replaced") {
				t.Fatalf("status %+v", st)
			}
			conn = s.next() // by its backoff, perhaps to another policyd
			if left := conn.hello.GetLeft(); len(left) != 1 || left[0] != "e" || conn.hello.GetResume().GetEpoch() != "f" {
				t.Fatalf("hello %v", conn.hello)
			}
			if got := maxAttempts(c, "shop/x"); got != 4 {
				t.Fatalf("maxAttempts %d: went back to what was left", got)
			}
		}
		if n := log.count("WARN policyd offers data that others have replaced"); n != 1 {
			t.Fatalf("%d warnings, want one:\n%s", n, log)
		}
		// A restore of the restore is something new.
		conn.apply(t, wholeState("g", 2, tries("shop", 2, 5)))
		if st := c.Status(); st.State != policyd.StateLive || st.LastErr != nil || maxAttempts(c, "shop/x") != 5 {
			t.Fatalf("status %+v", st)
		}
	})
}

func TestWatch_leaves_a_policyd_that_does_not_get_as_far_as_it_is(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 50, tries("shop", 50, 2)))
		conn.end <- nil
		behind := s.next()
		behind.beat(t, 40)
		receive(t, behind.left, "the end of the stream")
		again := s.next()
		if token := again.hello.GetResume().GetRevision(); token != 50 || c.Status().State != policyd.StateStale {
			t.Fatalf("resumes at %d, status %+v", token, c.Status())
		}
	})
}

func TestHello_carries_back_what_policyd_proves_itself_with(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client()
		conn := s.next()
		u := wholeState("e", 50, tries("shop", 50, 2))
		u.Token = []byte("t50")
		conn.apply(t, u)
		conn.send(t, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{
			Heartbeat: &policydv1.Heartbeat{Revision: 60, Token: []byte("t60")},
		}})
		synctest.Wait()
		conn.end <- nil
		if r := s.next().hello.GetResume(); r.GetRevision() != 60 || string(r.GetToken()) != "t60" {
			t.Fatalf("resumes from %v", r)
		}
	})
}

func TestO_PU_06_never_more_than_one_stream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		events := make(chan policyd.PolicyEvent, 100)
		c := s.client(policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) { events <- e }}))
		revision := int64(0)
		for i := range 20 {
			conn := s.next()
			held := tries("shop", revision+1, 2+int64(i%4))
			revision++
			conn.apply(t, wholeState("e", revision, held))
			receive(t, events, "OnPolicy")
			synctest.Wait()
			if len(events) != 0 {
				t.Fatalf("break %d: %d more callbacks of one edit", i, len(events))
			}
			if n := s.open.Load(); n != 1 {
				t.Fatalf("break %d: %d open streams", i, n)
			}
			switch i % 5 {
			case 0:
				conn.end <- nil
			case 1:
				conn.end <- status.Error(codes.Unavailable, "shutting down")
			case 2:
				conn.send(t, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_GoAway{GoAway: &policydv1.GoAway{ReconnectWithin: durationpb.New(5 * time.Second)}}})
			case 3: // silence
			case 4:
				s.stop()
				s.start()
			}
			receive(t, conn.left, "the end of the stream")
		}
		if n := s.most.Load(); n != 1 {
			t.Fatalf("%d streams at once", n)
		}
		_ = c
	})
}

func TestGoAway_reconnects_at_a_random_time_within_the_window(t *testing.T) {
	for name, c := range map[string]struct {
		share float64
		early bool // policyd ends the stream before its window
		up    time.Duration
		want  time.Duration
	}{
		"after a healthy stream":           {share: 0.25, up: 2 * time.Minute, want: 10 * time.Second},
		"at the end of the window":         {share: 0.99, up: 2 * time.Minute, want: 39600 * time.Millisecond},
		"though policyd is gone before":    {share: 0.25, early: true, up: 2 * time.Minute, want: 10 * time.Second},
		"with the backoff of a short life": {share: 0.25, up: time.Second, want: 10*time.Second + 250*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := pipeServer(t)
				client := newWatched(t, s.options()...)
				client.SetRandom(c.share)
				client.Touch(ep)
				conn := s.next()
				conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
				conn.beat(t, 1)
				time.Sleep(c.up)
				conn.send(t, &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_GoAway{GoAway: &policydv1.GoAway{ReconnectWithin: durationpb.New(40 * time.Second)}}})
				synctest.Wait()
				start := time.Now()
				if c.early {
					time.Sleep(time.Second)
					conn.end <- status.Error(codes.Unavailable, "closing")
				}
				s.next()
				if got := time.Since(start); (got - c.want).Abs() > 50*time.Millisecond {
					t.Fatalf("came back after %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestO_PU_07_first_reconnects_are_spread_over_a_second(t *testing.T) {
	slices := [10]int{}
	for i := range 1000 {
		var r policyd.Reconnect
		share := (float64(i*7919%1000) + 0.5) / 1000
		wait := r.WaitAfter(errors.New("gone"), 2*time.Minute, time.Time{}, share)
		if wait < 0 || wait >= time.Second {
			t.Fatalf("first wait %s", wait)
		}
		slices[wait/(100*time.Millisecond)]++
	}
	for i, n := range slices {
		if n > 150 {
			t.Errorf("%d of 1000 in slice %d", n, i)
		}
	}
}

func TestO_PU_08_only_a_minute_of_health_forgives(t *testing.T) {
	var r policyd.Reconnect
	wait := func(up time.Duration) time.Duration { return r.WaitAfter(nil, up, time.Time{}, 1) }
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30, 30, 30} {
		if got := wait(10 * time.Millisecond); got != want*time.Second {
			t.Fatalf("wait %d is %s, want %ds", i+1, got, want)
		}
	}
	if got := wait(59 * time.Second); got != 30*time.Second {
		t.Fatalf("after 59s of health: %s", got)
	}
	if got := wait(61 * time.Second); got != time.Second {
		t.Fatalf("after 61s of health: %s", got)
	}
	if got := wait(0); got != 2*time.Second {
		t.Fatalf("after that: %s", got)
	}
	for range 100_000 {
		if got := wait(0); got <= 0 || got > 30*time.Second {
			t.Fatalf("wait %s", got)
		}
	}
}

func TestO_PU_08_stream_that_ends_without_an_error_waits_too(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := newWatched(t, s.options()...)
		c.SetRandom(1)
		c.Touch(ep)
		var ended time.Time
		for i, want := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30, 30, 30} {
			conn := s.next()
			if got := time.Since(ended).Round(time.Millisecond); i > 0 && got != want*time.Second {
				t.Fatalf("stream %d came after %s, want %ds", i+1, got, want)
			}
			conn.apply(t, wholeState("e", 1))
			time.Sleep(10 * time.Millisecond)
			conn.end <- nil
			receive(t, conn.left, "the end of the stream")
			ended = time.Now()
		}
		conn := s.next()
		conn.apply(t, wholeState("e", 1))
		conn.beat(t, 1)
		time.Sleep(61 * time.Second)
		conn.end <- nil
		ended = time.Now()
		s.next()
		if got := time.Since(ended).Round(10 * time.Millisecond); got != time.Second {
			t.Fatalf("after a minute of health the wait is %s, want 1s", got)
		}
	})
}

func TestReconnect_honours_the_wait_that_policyd_asks_for(t *testing.T) {
	full, err := status.New(codes.ResourceExhausted, "too many streams").WithDetails(retryInfo(45 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	endless, _ := status.New(codes.ResourceExhausted, "no").WithDetails(retryInfo(time.Hour))
	for name, c := range map[string]struct {
		err      error
		low, top time.Duration
	}{
		"of a full policyd":     {full.Err(), 45 * time.Second, 46 * time.Second},
		"but not for ever":      {endless.Err(), 5 * time.Minute, 5*time.Minute + time.Second},
		"unless it names none":  {status.Error(codes.ResourceExhausted, "no"), 0, time.Second},
		"a refused token":       {status.Error(codes.Unauthenticated, "no"), 30 * time.Second, 33 * time.Second},
		"a token of other duty": {status.Error(codes.PermissionDenied, "no"), 30 * time.Second, 33 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for share, want := range map[float64]time.Duration{0: c.low, 1: c.top} {
				var r policyd.Reconnect
				if got := r.WaitAfter(c.err, 0, time.Time{}, share); got != want {
					t.Errorf("wait with share %v is %s, want %s", share, got, want)
				}
			}
		})
	}
}

func TestO_PU_13_status_tells_fresh_from_old(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.stop() // not there yet
		log := newLog()
		c := s.client(policyd.WithLogger(log.logger()))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := c.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("ready without any policy: %v", err)
		}
		if st := c.Status(); st.State != policyd.StateConnecting || st.Source != "built-in" || st.LastErr == nil || !st.AsOf.IsZero() {
			t.Fatalf("status %+v", st)
		}

		s.start()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		if err := c.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := c.Status(); st.State != policyd.StateLive || st.Source != s.addr {
			t.Fatalf("status %+v", st)
		}

		s.stop()
		gone := time.Now()
		time.Sleep(5 * time.Minute)
		st := c.Status()
		if st.State != policyd.StateStale || st.Since.Sub(gone) > time.Second || st.AsOf.After(gone) || time.Since(st.AsOf) < 5*time.Minute {
			t.Fatalf("status %+v", st)
		}
		if got := maxAttempts(c, "shop/x"); got != 2 {
			t.Fatalf("maxAttempts %d, want the last good 2", got)
		}
		s.start()
		s.next().apply(t, changes("e", 1, []*policydv1.Entry{tries("shop", 1, 2)}))
		if st := c.Status(); st.State != policyd.StateLive {
			t.Fatalf("status %+v", st)
		}
		for words, want := range map[string]int{
			"WARN policyd unreachable; retrying addr=127.0.0.1:7400 using=built-in": 1,
			"INFO policyd connected": 2,
			"WARN policyd connection lost; keeping the last good policy addr=127": 1,
		} {
			if n := log.count(words); n != want {
				t.Errorf("%d lines of %q, want %d:\n%s", n, words, want, log)
			}
		}
	})
}

func TestO_RL_07_parents_apply_when_a_policy_is_deleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		global, pay, charge := tries("global", 1, 2), tries("shop/pay", 2, 3), tries("shop/pay/charge", 3, 5)
		conn.apply(t, wholeState("e", 3, global, pay, charge))
		seen := []int64{maxAttempts(c, "shop/pay/charge")}
		conn.apply(t, changes("e", 4, []*policydv1.Entry{global, pay}, deletion("policies/shop/pay/charge", 4)))
		seen = append(seen, maxAttempts(c, "shop/pay/charge"))
		conn.apply(t, changes("e", 5, []*policydv1.Entry{global}, deletion("policies/shop/pay", 5)))
		seen = append(seen, maxAttempts(c, "shop/pay/charge"))
		conn.apply(t, wholeState("e", 6))
		seen = append(seen, maxAttempts(c, "shop/pay/charge"))
		if fmt.Sprint(seen) != "[5 3 2 3]" {
			t.Fatalf("maxAttempts went %v, want 5, 3, 2 and the built-in 3", seen)
		}
	})
}

func retryInfo(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}
