// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	policyd "github.com/policyd/policyd/sdk/go"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// within gives an update's receiver time to confirm.
func within(d time.Duration, u *policydv1.Update) *policydv1.Update {
	u.ConfirmWithin = durationpb.New(d)
	return u
}

func TestWatch_confirms_within_the_time_that_policyd_gives(t *testing.T) {
	for _, c := range []struct {
		name        string
		given       time.Duration
		least, most time.Duration
	}{
		{"in the last quarter of it", 400 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond},
		{"at once without any", 0, 0, 0},
		{"at once if it is less than nothing", -time.Hour, 0, 0},
		{"within two seconds whatever is given", time.Hour, 1500 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := pipeServer(t)
				client := s.client()
				conn := s.next()
				conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))

				seen := make(map[time.Duration]bool)
				for revision := int64(2); revision < 30; revision++ {
					e := tries("shop", revision, 1+revision%5)
					begin := time.Now()
					conn.update(t, within(c.given, changes("e", revision, []*policydv1.Entry{e}, e)))
					synctest.Wait()
					if got := maxAttempts(client, "shop/x"); got != 1+revision%5 {
						t.Fatalf("maxAttempts %d: an update is in force at once, however late it is confirmed", got)
					}
					ack := receive(t, conn.acks, "an ack")
					took := time.Since(begin)
					if ack.GetRevision() != revision || took < c.least || took > c.most {
						t.Fatalf("ack %v after %v, want it between %v and %v", ack, took, c.least, c.most)
					}
					seen[took] = true
				}
				if len(seen) < 20 && c.most > 0 {
					t.Fatalf("%d different waits of 28: a fleet would confirm all at once", len(seen))
				}
			})
		})
	}
}

func TestWatch_confirms_what_comes_meanwhile_along_with_it(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1))

		begin := time.Now()
		for revision := int64(2); revision < 200; revision++ {
			e := tries("shop", revision, 3)
			conn.update(t, within(400*time.Millisecond, changes("e", revision, []*policydv1.Entry{e}, e)))
			time.Sleep(100 * time.Millisecond)
		}
		first := receive(t, conn.acks, "an ack")
		if took := time.Since(begin); len(conn.acks) > int(took/(2*time.Second)) {
			t.Fatalf("%d confirmations in %v", 1+len(conn.acks), took)
		}
		// However much comes, nothing waits for more than two seconds.
		if first.GetRevision() < 20 || first.GetRevision() > 23 {
			t.Fatalf("first ack %v, want it after two seconds", first)
		}
		for ack := first; ack.GetRevision() < 199; ack = receive(t, conn.acks, "an ack of the last") {
		}
	})
}

func TestWatch_asks_for_a_snapshot_at_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1))

		begin := time.Now()
		wrong := within(time.Second, changes("e", 2, nil, tries("shop", 2, 5)))
		wrong.Hash++
		if ack := conn.apply(t, wrong); !ack.GetWantSnapshot() || time.Since(begin) > 0 {
			t.Fatalf("ack %v after %v", ack, time.Since(begin))
		}
	})
}

func TestClose_confirms_what_is_due(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1))
		conn.update(t, within(time.Second, wholeState("e", 2)))
		synctest.Wait()
		if err := c.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if ack := receive(t, conn.acks, "an ack"); ack.GetRevision() != 2 {
			t.Fatalf("ack %v", ack)
		}
	})
}

func TestWatch_forgets_what_was_due_on_a_stream_that_broke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1))
		conn.update(t, within(2*time.Second, wholeState("e", 2)))
		synctest.Wait()
		conn.end <- nil
		next := s.next()
		if r := next.hello.GetResume(); r.GetRevision() != 2 {
			t.Fatalf("resume point %v: what is in force counts, confirmed or not", r)
		}
		time.Sleep(time.Minute)
		if len(next.acks) > 0 {
			t.Fatalf("ack %v of another stream", <-next.acks)
		}
	})
}

// slowLog takes its time over a line: the one who logs waits.
type slowLog struct {
	slog.Handler

	words          string
	reached, going chan struct{}
}

func (l slowLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.words) {
		close(l.reached)
		<-l.going
	}
	return l.Handler.Handle(ctx, r)
}

// Whoever confirms on a stream that has ended meanwhile has not seen what came before the end.
func TestConfirm_loses_nothing_that_came_before_the_end_of_the_stream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		slow := slowLog{newLog(), "other data", make(chan struct{}), make(chan struct{})}
		c := s.client(policyd.WithLogger(slog.New(slow)))
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		held := tries("shop", 2, 3)
		conn.update(t, wholeState("f", 2, held))
		receive(t, slow.reached, "the warning of other data")
		newer := tries("shop", 3, 4)
		conn.update(t, changes("f", 3, []*policydv1.Entry{newer}, newer))
		conn.heartbeat(t, 4)
		conn.end <- errors.New("restart")
		synctest.Wait()
		close(slow.going)

		resume := s.next().hello.GetResume()
		if resume.GetEpoch() != "f" || resume.GetRevision() != 4 || resume.GetHash() != stateHash(newer) {
			t.Fatalf("resumes from %v, want revision 4 with the hash %x of revision 3", resume, stateHash(newer))
		}
		if got := maxAttempts(c, "shop/x"); got != 4 {
			t.Fatalf("maxAttempts %d, want the 4 that came before the end", got)
		}
	})
}

func TestConfirm_heartbeats_vouch_for_nothing_while_an_update_is_missing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		known := c.Status().AsOf
		wrong := changes("e", 2, nil, tries("shop", 2, 5))
		wrong.Hash++
		if ack := conn.apply(t, wrong); !ack.GetWantSnapshot() {
			t.Fatalf("ack %v", ack)
		}
		time.Sleep(15 * time.Second)
		conn.heartbeat(t, 2)
		synctest.Wait()
		if st := c.Status(); !st.AsOf.Equal(known) {
			t.Fatalf("vouched for at %s, though revision 2 is missing since %s", st.AsOf, known)
		}
	})
}
