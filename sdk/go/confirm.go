// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const (
	// maxRejections bounds what one Ack names.
	maxRejections = 100
	// longestConfirm bounds the time that policyd gives for confirming.
	longestConfirm = 2 * time.Second
)

// random returns a number in [0, 1).
type random func() float64

// share returns a random share of d.
func (r random) share(d time.Duration) time.Duration {
	return time.Duration(r() * float64(d))
}

// confirmation is the newest Ack while it waits for its moment.
type confirmation struct {
	due   *policydv1.Ack // nil: none
	by    time.Time      // when it is sent at the latest, whatever comes meanwhile
	timer *time.Timer    // nil until the first wait
}

// ack confirms what is in force, except for what was rejected: at a random moment within the
// time that the update gives, so that the confirmations of a fleet stay out of the way of the
// update itself.
func (s *session) ack(u *policydv1.Update, wantSnapshot bool) error {
	ack := &policydv1.Ack{Epoch: s.c.remote.Epoch(), Revision: s.c.remote.Revision(), WantSnapshot: wantSnapshot}
	rejected := s.c.remote.Rejections()
	for _, r := range rejected[:min(len(rejected), maxRejections)] {
		ack.Rejected = append(ack.Rejected, &policydv1.Rejection{
			Scope: r.Scope, Revision: r.Revision, Field: r.Field, Reason: r.Reason,
		})
	}
	within := min(u.GetConfirmWithin().AsDuration(), longestConfirm)
	if within <= 0 || wantSnapshot {
		s.mu.Lock()
		s.confirm.due = ack
		err := s.confirmDue()
		s.mu.Unlock()
		if !over(err) {
			return err
		}
		return nil
	}
	s.confirmLater(ack, within*3/4+s.c.random.share(within/4))
	return nil
}

// confirmLater puts off what is due already, so that one Ack does for both.
func (s *session) confirmLater(ack *policydv1.Ack, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, c := time.Now(), &s.confirm
	if c.due == nil {
		c.by = now.Add(longestConfirm)
	}
	c.due = ack
	wait = min(wait, c.by.Sub(now))
	if c.timer != nil {
		c.timer.Reset(wait)
		return
	}
	c.timer = time.AfterFunc(wait, func() {
		s.c.survives("confirm", func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = s.confirmDue() // fails only with the stream, as whoever receives will hear
		})
	})
}

// confirmDue sends what is due. Guarded by mu.
func (s *session) confirmDue() error {
	ack := s.confirm.due
	if ack == nil {
		return nil
	}
	s.confirm.due = nil
	return s.stream.Send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: ack}})
}

// forgetDue is for a stream that has ended: the next one says in its Hello what is held.
func (s *session) forgetDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.confirm.due = nil; s.confirm.timer != nil {
		s.confirm.timer.Stop()
	}
}
