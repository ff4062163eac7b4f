// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// A storm of calls against an open breaker is refused to the last moment, and the first call
// at the end is the probe, although most refusals do not look at the clock.
func TestBreaker_under_a_storm_is_open_to_the_moment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, with(b0, set{
			engine.BreakerRatioEnabled: engine.Bool(false), engine.BreakerConsecutiveEnabled: engine.Bool(true),
			engine.BreakerConsecutiveFailures: engine.Int(1), engine.BreakerConsecutiveOpenFor: ms(5000),
		}))
		sent := 0
		call := func(err error) error {
			_, err = policyd.Do(t.Context(), ep, func(context.Context) (int, error) { sent++; return 0, err }, policyd.Using(c))
			return err
		}
		_ = call(errors.New("down"))
		end := time.Now().Add(5 * time.Second)
		for ; time.Now().Before(end.Add(-time.Millisecond)); time.Sleep(time.Millisecond) {
			for range 200 {
				var e *policyd.Error
				if err := call(nil); !errors.As(err, &e) || e.Code != policyd.CodeBreaker || !e.RetryAt.Equal(end) || e.Elapsed != 0 {
					t.Fatalf("%v before the end: %+v", time.Until(end), err)
				}
			}
		}
		time.Sleep(time.Until(end) - time.Nanosecond)
		if err := call(nil); err == nil || sent != 1 {
			t.Fatalf("let through before the end: %v, %d sent", err, sent)
		}
		time.Sleep(time.Nanosecond)
		if err := call(nil); err != nil || sent != 2 {
			t.Fatalf("refused at the end: %v, %d sent", err, sent)
		}
		if s := c.Stats(ep); s.Rejected != 4999*200+1 || s.OK != 1 {
			t.Fatalf("%+v", s)
		}
	})
}

// A kill switch that is taken back lets the next call through, however many were refused.
func TestSwitch_taken_back_in_a_storm_lets_the_next_call_through(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, b0)
		call := func() error {
			_, err := policyd.Do(t.Context(), ep, func(context.Context) (int, error) { return 0, nil }, policyd.Using(c))
			return err
		}
		put(c, b0, killSwitch(engine.ForceOpen, time.Hour))
		for range 1000 {
			if err := call(); err == nil {
				t.Fatal("let through")
			}
		}
		put(c, b0)
		if err := call(); err != nil {
			t.Fatal(err)
		}
	})
}
