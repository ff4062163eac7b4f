// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

func TestError_texts(t *testing.T) {
	upstream := errors.New("503 Service Unavailable")
	sw := &policyd.Switch{ID: "ks-7f3a", Incident: "INC-2481", ExpiresAt: time.Date(2026, 5, 1, 14, 34, 0, 0, time.UTC)}
	for _, c := range []struct {
		err  policyd.Error
		want string
	}{
		{
			policyd.Error{Endpoint: "shop/payments/charges.create", Code: policyd.CodeAttempts, Attempts: 3, Elapsed: 1210 * time.Millisecond, Err: upstream},
			"policyd: shop/payments/charges.create: attempts_exhausted after 3 attempts in 1.2s: 503 Service Unavailable",
		},
		{
			policyd.Error{Endpoint: "a/b/c", Code: policyd.CodeAttempts, Attempts: 1, Elapsed: 1500 * time.Microsecond},
			"policyd: a/b/c: attempts_exhausted after 1 attempt in 2ms",
		},
		{
			policyd.Error{Endpoint: "a/b/c", Code: policyd.CodeSwitch, Switch: sw, Err: upstream},
			"policyd: a/b/c: retries_disabled by ks-7f3a (INC-2481, until 14:34Z): 503 Service Unavailable",
		},
		{
			policyd.Error{Endpoint: "a/b/c", Code: policyd.CodeBreaker, Switch: &policyd.Switch{ID: "ks-1"}},
			"policyd: a/b/c: breaker_open by ks-1",
		},
		{policyd.Error{Endpoint: "a/b/c", Code: policyd.CodeConcurrency}, "policyd: a/b/c: concurrency_limited"},
		{policyd.Error{Code: policyd.CodeBudget, Switch: sw}, "policyd: budget_exhausted, tightened by ks-7f3a (INC-2481, until 14:34Z)"},
		{policyd.Error{}, "policyd: "},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestError_is_its_sentinel_alone(t *testing.T) {
	sentinels := map[policyd.Code]error{
		policyd.CodeBreaker: policyd.ErrBreakerOpen, policyd.CodeBudget: policyd.ErrBudget, policyd.CodeAttempts: policyd.ErrAttempts,
		policyd.CodeDeadline: policyd.ErrDeadline, policyd.CodeSwitch: policyd.ErrSwitch, policyd.CodeConcurrency: policyd.ErrConcurrency,
	}
	for code := range sentinels {
		wrapped := fmt.Errorf("call: %w", &policyd.Error{Code: code, Err: errBoom})
		for other, sentinel := range sentinels {
			if errors.Is(wrapped, sentinel) != (other == code) {
				t.Errorf("%s is %v: %t", code, sentinel, other != code)
			}
		}
		if !errors.Is(wrapped, errBoom) {
			t.Errorf("%s hides the upstream error", code)
		}
		var timeout net.Error
		if !errors.As(wrapped, &timeout) || timeout.Timeout() != (code == policyd.CodeDeadline) {
			t.Errorf("%s: timeout %v", code, timeout)
		}
		if errors.Is(wrapped, context.DeadlineExceeded) != (code == policyd.CodeDeadline) {
			t.Errorf("%s: deadline", code)
		}
	}
	if sentinels[policyd.CodeBreaker].Error() != "policyd: breaker_open" {
		t.Error(sentinels[policyd.CodeBreaker])
	}
	if errors.Is(errBoom, policyd.ErrBreakerOpen) {
		t.Error("any error is a sentinel")
	}
}

func TestVerdicts_leave_nil_and_texts_alone(t *testing.T) {
	for name, judge := range map[string]func(error) error{
		"Permanent": policyd.Permanent, "Retryable": policyd.Retryable, "NotSent": policyd.NotSent,
		"RetryAfter": func(err error) error { return policyd.RetryAfter(err, -time.Second) },
	} {
		if judge(nil) != nil {
			t.Errorf("%s(nil) is an error", name)
		}
		if err := judge(errBoom); err.Error() != "boom" || !errors.Is(err, errBoom) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
