// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code says why a call ended as it did. Codes are stable, few, and equal to the metric
// label and to the codes of the TypeScript SDK.
type Code string

// Codes of an [Error] and of an [Outcome].
const (
	CodeAttempts    Code = "attempts_exhausted"   // the last allowed attempt failed
	CodeBudget      Code = "budget_exhausted"     // the retry budget is spent
	CodeGate        Code = "success_gate_closed"  // too few of the last calls succeeded
	CodeBreaker     Code = "breaker_open"         // the breaker is open, or forced open
	CodeSwitch      Code = "retries_disabled"     // a kill switch turned retries off
	CodeDeadline    Code = "deadline_exceeded"    // the next attempt would come too late
	CodeNotSafe     Code = "not_idempotent"       // a repeat could act twice
	CodeBody        Code = "body_not_replayable"  // the request body cannot be sent again
	CodeRetryAfter  Code = "retry_after_too_long" // the server asks for more than the limit
	CodeConcurrency Code = "concurrency_limited"  // too many calls at once
	CodeKeyConflict Code = "idempotency_conflict" // the key was used with another body

	// Of package policyqueue.
	CodeQueued       Code = "queued"        // not done yet: kept on disk, to be sent later
	CodeQueueFull    Code = "queue_full"    // not kept: too much waits already
	CodeQueueExpired Code = "queue_expired" // kept, and dropped at its ttl
)

// Sentinels for errors.Is, one for each code that callers commonly branch on.
var (
	ErrBreakerOpen error = codeError(CodeBreaker)
	ErrBudget      error = codeError(CodeBudget)
	ErrAttempts    error = codeError(CodeAttempts)
	ErrDeadline    error = codeError(CodeDeadline)
	ErrSwitch      error = codeError(CodeSwitch)
	ErrConcurrency error = codeError(CodeConcurrency)
	ErrQueued      error = codeError(CodeQueued)
	ErrQueueFull   error = codeError(CodeQueueFull)
)

type codeError Code

func (c codeError) Error() string { return "policyd: " + string(c) }

// Error says which policy stopped a call, why, and when trying again makes sense. It is
// returned only where the policy changed the outcome; any other error of a call passes
// through as it is.
type Error struct {
	Endpoint string
	Code     Code
	Attempts int           // sends; 0 when the call was refused
	Elapsed  time.Duration // from the start of the call, waits included
	RetryAt  time.Time     // zero when unknown
	Revision int64         // of the policies in force
	Scope    string        // whose policy decided: "shop/payments", or "built-in"
	Host     string        // whose breaker is open, under breaker.per: host
	Switch   *Switch       // set when a kill switch decided
	Err      error         // last upstream error, if any
	QueueID  string        // of a call that was kept

	why why
}

// Error returns one line: the endpoint, the code with its reason, and the last failure.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("policyd: ")
	if e.Endpoint != "" {
		b.WriteString(e.Endpoint)
		b.WriteString(": ")
	}
	b.WriteString(string(e.Code))
	e.reason(&b)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

func (e *Error) reason(b *strings.Builder) {
	detail := e.why.detail(e.Code)
	switch e.Code {
	case CodeAttempts:
		fmt.Fprintf(b, " after %s in %s", plural(e.Attempts, "attempt"), short(e.Elapsed))
	case CodeDeadline:
		fmt.Fprintf(b, " after %s in %s", plural(e.Attempts, "attempt"), short(e.Elapsed))
		if detail != "" {
			fmt.Fprintf(b, " (%s)", detail)
		}
	case CodeBreaker:
		e.bySwitch(b)
		if e.Host != "" {
			fmt.Fprintf(b, " for %s", e.Host)
		}
		if !e.RetryAt.IsZero() && e.why.policy != nil && e.Switch == nil {
			fmt.Fprintf(b, ", next probe in %s", short(max(e.why.wait, 0)))
		}
		if detail != "" {
			fmt.Fprintf(b, " (%s)", detail)
		}
	case CodeSwitch:
		e.bySwitch(b)
	case CodeQueued, CodeQueueExpired:
		b.WriteString(" as " + e.QueueID)
	case CodeBudget, CodeGate:
		if detail != "" {
			fmt.Fprintf(b, " (%s)", detail)
		}
		if e.Switch != nil {
			b.WriteString(", tightened")
			e.bySwitch(b)
		}
	default:
		if detail != "" {
			b.WriteString(": ")
			b.WriteString(detail)
		}
	}
}

// bySwitch names the switch, its incident and its end.
func (e *Error) bySwitch(b *strings.Builder) {
	if e.Switch == nil {
		return
	}
	b.WriteString(" by ")
	b.WriteString(e.Switch.ID)
	var about []string
	if e.Switch.Incident != "" {
		about = append(about, e.Switch.Incident)
	}
	if end := e.Switch.ExpiresAt; !end.IsZero() {
		about = append(about, "until "+end.UTC().Format("15:04")+"Z")
	}
	if len(about) > 0 {
		fmt.Fprintf(b, " (%s)", strings.Join(about, ", "))
	}
}

// Unwrap returns the last upstream error.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of e's code. An error with the code
// deadline_exceeded is a context.DeadlineExceeded as well.
func (e *Error) Is(target error) bool {
	if c, ok := target.(codeError); ok {
		return Code(c) == e.Code
	}
	return e.Code == CodeDeadline && target == context.DeadlineExceeded
}

// Timeout makes e a net.Error that says so: true for deadline_exceeded.
func (e *Error) Timeout() bool { return e.Code == CodeDeadline }

// Temporary completes net.Error. It is true when trying again later may help.
func (e *Error) Temporary() bool {
	switch e.Code {
	case CodeNotSafe, CodeBody, CodeKeyConflict, CodeQueued, CodeQueueExpired:
		return false
	default:
		return true
	}
}

// goneError ends a call whose caller cancelled it, or whose deadline passed, after an
// attempt had failed. It unwraps to the context's error and to that failure.
type goneError struct {
	endpoint string
	attempts int
	ctx      error // context.Canceled or context.DeadlineExceeded
	cause    error // the caller's cause, if it gave another one
	last     error
}

func (e *goneError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "policyd: %s: %v", e.endpoint, e.ctx)
	if e.cause != nil {
		fmt.Fprintf(&b, " (%v)", e.cause)
	}
	fmt.Fprintf(&b, " after %s: %v", plural(e.attempts, "attempt"), e.last)
	return b.String()
}

func (e *goneError) Unwrap() []error {
	if e.cause != nil {
		return []error{e.ctx, e.cause, e.last}
	}
	return []error{e.ctx, e.last}
}

func (e *goneError) Timeout() bool { return errors.Is(e.ctx, context.DeadlineExceeded) }

// Temporary completes net.Error.
func (e *goneError) Temporary() bool { return e.Timeout() }

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// short writes a duration for people: 12s, 1.2s, 340ms.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(time.Microsecond).String()
	}
}
