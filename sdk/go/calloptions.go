// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// CallOption changes how one call is treated. Later options win over earlier ones, and
// options of the call itself win over those that [WithCall] put into its context.
type CallOption func(*callConfig)

// callConfig is immutable once it is in a context.
type callConfig struct {
	client *Client
	key    string
	repeat repeat
	oneTry bool
	// concurrent: fn may run several times at once
	concurrent bool
	marked     bool         // on behalf of a marked attempt
	resend     *seam.Resend // the call is that of a kept one; nil: it is not
}

// repeat is what the application said about repeating a call.
type repeat uint8

const (
	repeatByRule repeat = iota // as the method rule of the policy says
	repeatYes
	repeatNo
)

// Using takes policies, budgets and breakers from c instead of [Default]. Transports that
// [Client.Transport] made keep their own client.
func Using(c *Client) CallOption {
	return func(cfg *callConfig) { cfg.client = c }
}

// Idempotent says whether the call may be repeated, and overrides the method rule of the
// policy. With false the call is repeated only if it was certainly not sent, as the
// policy's idempotency.otherwise says.
func Idempotent(yes bool) CallOption {
	return func(cfg *callConfig) {
		cfg.repeat = repeatNo
		if yes {
			cfg.repeat = repeatYes
		}
	}
}

// IdempotencyKey names the operation, so that the server can tell a repeat from a new
// one; every attempt carries the same key. HTTP calls send it in the header of the policy
// (Idempotency-Key unless set); a header that the caller set itself is kept. Giving a key
// makes the call repeatable. An empty key is no key.
func IdempotencyKey(key string) CallOption {
	return func(cfg *callConfig) { cfg.key = key }
}

// WithoutRetry makes one attempt. Breakers still apply.
func WithoutRetry() CallOption {
	return func(cfg *callConfig) { cfg.oneTry = true }
}

// Concurrent says that the fn of [Do] may run several times at once, so that a policy may
// hedge: start it again while it is slow, and cancel the context of the one that is not
// needed. Without it fn never runs beside itself, whatever the policy says. HTTP calls need
// no such word.
func Concurrent() CallOption {
	return func(cfg *callConfig) { cfg.concurrent = true }
}

// WithCall returns a context whose calls, HTTP and [Do] alike, are treated as opts say.
// Options already in ctx stay unless opts change them.
func WithCall(ctx context.Context, opts ...CallOption) context.Context {
	m := &mark{}
	if outer := markOf(ctx); outer != nil {
		*m = *outer
	}
	m.Context = ctx
	m.config = withOptions(m.config, opts)
	return m
}

// withOptions returns a copy of cfg, nil for none, that opts have changed.
func withOptions(cfg *callConfig, opts []CallOption) *callConfig {
	next := callConfig{}
	if cfg != nil {
		next = *cfg
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&next)
		}
	}
	return &next
}

// Attempt is one send of a call.
type Attempt struct {
	Number, Max    int    // Number counts from 1; Max is the policy's at the time
	IdempotencyKey string // empty when the call has none
	Hedge          bool   // sent beside a slow earlier attempt
}

// AttemptFrom tells which attempt of which call a context belongs to. ok is false outside
// of a call.
func AttemptFrom(ctx context.Context) (a Attempt, ok bool) {
	if m := markOf(ctx); m != nil && m.of != nil {
		return m.attempt(), true
	}
	return Attempt{}, false
}

// verdict is what an application says about an error of its own.
type verdict uint8

const (
	verdictNone verdict = iota
	verdictPermanent
	verdictRetryable
	verdictNotSent
)

// judgedError carries what the application says about err. The text is err's.
type judgedError struct {
	err     error
	verdict verdict
	after   time.Duration
	asked   bool // after is set
}

func (e *judgedError) Error() string { return e.err.Error() }
func (e *judgedError) Unwrap() error { return e.err }

// Permanent marks an error of fn that no attempt can cure: it is never retried. nil stays nil.
func Permanent(err error) error { return judge(err, judgedError{verdict: verdictPermanent}) }

// Retryable marks an error of fn that a later attempt may cure. It is needed only for
// errors that are not net, HTTP or gRPC errors. nil stays nil.
func Retryable(err error) error { return judge(err, judgedError{verdict: verdictRetryable}) }

// RetryAfter marks an error of fn as retryable, but not before d has passed: what a server
// that sheds load asked for. A negative d counts as 0. nil stays nil.
func RetryAfter(err error, d time.Duration) error {
	return judge(err, judgedError{verdict: verdictRetryable, after: max(d, 0), asked: true})
}

// NotSent marks an error of fn that came before anything was sent, so that even a call
// that is not idempotent may be repeated. nil stays nil.
func NotSent(err error) error { return judge(err, judgedError{verdict: verdictNotSent}) }

func judge(err error, j judgedError) error {
	if err == nil {
		return nil
	}
	// A verdict on top of another one keeps the wait that the server asked for.
	var inner *judgedError
	if !j.asked && errors.As(err, &inner) && inner.asked {
		j.after, j.asked = inner.after, true
	}
	j.err = err
	return &j
}
