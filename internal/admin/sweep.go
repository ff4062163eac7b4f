// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/policyd/policyd/internal/policy"
)

// The sweeper's compare-and-swap is its election: every replica tries, exactly one wins,
// so each end is recorded once. SDKs end switches on their own and do not wait for it.

// sweeper is who the record names when a switch runs out.
func sweeper() policy.Actor { return policy.Actor{Name: "policyd", Via: "expiry"} }

const (
	// Longest sleep: changes made through other replicas are seen at the next look.
	sweepEvery = 5 * time.Second
	// Pause after another replica was faster, until the view shows it.
	sweepAfterConflict = time.Second
	sweepBackoffMax    = 30 * time.Second
)

// RunSweeper records the ends of switches and removes them once what they took away is
// back. It returns when ctx is done.
func (s *Service) RunSweeper(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-timer.C:
		}
		wait, err := s.sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
		default:
			if failures == 0 {
				s.log.WarnContext(ctx, "ended switches wait for the store", "error", err)
			}
			wait = sweepBackoff(failures)
			failures++
		}
		timer.Reset(wait)
	}
}

func sweepBackoff(failures int) time.Duration {
	d := min(time.Second<<min(failures, 10), sweepBackoffMax)
	return d/2 + rand.N(d/2)
}

// sweep does what is due and returns how long nothing will be. An error means that the
// store refused; what is due stays due.
func (s *Service) sweep(ctx context.Context) (time.Duration, error) {
	view, now := s.store.View(), wallClock()
	wait := sweepEvery
	for _, sw := range view.Switches {
		if left := dueAt(sw).Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		next, err := s.advance(ctx, sw, now)
		var moved *policy.ConflictError
		switch {
		case errors.As(err, &moved):
			wait = min(wait, sweepAfterConflict)
		case err != nil:
			return 0, err
		default:
			wait = min(wait, max(next.Sub(now), 0))
		}
	}
	return wait, nil
}

// dueAt returns when sw moves on to its next phase.
func dueAt(sw *policy.Switch) time.Time {
	if sw.Phase == policy.PhaseActive {
		return sw.Ends
	}
	return sw.EndedAt.Add(sw.Restore)
}

// advance moves a switch that is due on by one phase and returns when the next one is due.
func (s *Service) advance(ctx context.Context, sw *policy.Switch, now time.Time) (time.Time, error) {
	next := *sw
	put := policy.SwitchPut{Switch: &next, Expected: policy.Revision(sw.Revision)}
	if sw.Phase == policy.PhaseActive {
		next.Phase, next.EndedAt = policy.PhaseRestoring, sw.Ends
		next.UpdatedBy, next.UpdatedAt = sweeper(), now
		entry := switchEntry("switch.expired", Caller{Actor: sweeper()}, now, change{sw, &next})
		if _, err := s.commit(ctx, policy.Transaction{PutSwitches: []policy.SwitchPut{put}, Entry: entry}); err != nil {
			return time.Time{}, err
		}
		s.log.InfoContext(ctx, "switch expired", "switch", sw.ID, "scope", string(sw.Scope))
		return dueAt(&next), nil
	}
	next.Phase = policy.PhaseReverted
	if sw.UpdatedBy == sweeper() {
		next.Phase = policy.PhaseExpired
	}
	if _, err := s.commit(ctx, policy.Transaction{End: []policy.SwitchPut{put}}); err != nil {
		return time.Time{}, err
	}
	return now.Add(sweepEvery), nil
}
