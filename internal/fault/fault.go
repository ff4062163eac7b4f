// SPDX-License-Identifier: Apache-2.0

// Package fault classifies failures by what a caller can do about them. Each transport
// owns one table from kinds to its own codes.
package fault

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// Kind is what a caller can act on.
type Kind int

// Kinds of failure. The zero value is Internal, so that forgetting to classify is safe.
const (
	Internal        Kind = iota
	Invalid              // the input breaks a rule; changing it helps
	NotFound             // the thing does not exist
	Conflict             // the revision moved; reading again helps
	Denied               // the principal may not do this
	Unauthenticated      // no valid principal
	Refused              // a guard-rail; a confirmation or a narrower request helps
	Exhausted            // a limit or quota is reached
	Unavailable          // the store or a peer cannot be reached; waiting helps
	Canceled             // the caller went away
)

// Kinds returns every kind, for tables that must be complete.
func Kinds() []Kind {
	return []Kind{Internal, Invalid, NotFound, Conflict, Denied, Unauthenticated, Refused, Exhausted, Unavailable, Canceled}
}

func (k Kind) String() string {
	return [...]string{
		"internal", "invalid", "not-found", "conflict", "denied", "unauthenticated", "refused", "exhausted", "unavailable", "canceled",
	}[k]
}

// Error is a classified failure. Message is for people and holds no secret; Err is the
// cause, for logs.
type Error struct {
	Kind    Kind
	Message string
	// Reason is stable and for machines, for example "revision_moved".
	Reason string
	// Hint says what to do next.
	Hint string
	// Violations are the rules that a document breaks, in document order.
	Violations []Violation
	Err        error
}

// Violation is one rule that a document breaks.
type Violation struct {
	Scope string
	Path  string // for example "spec.budget.ratio"
	Value string
	Rule  string
	Fix   string
}

func (e *Error) Error() string {
	if e.Err != nil && e.Err.Error() != e.Message {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// New returns a failure of kind k with a machine reason and a message for people.
func New(k Kind, reason, format string, args ...any) *Error {
	return &Error{Kind: k, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Wrap classifies err. It returns nil when err is nil.
func Wrap(err error, k Kind, reason, message string) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: k, Reason: reason, Message: message, Err: err}
}

// WithHint adds what to do next and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// KindOf returns the kind of the outermost classified failure in err's chain. Context
// errors without one are Canceled or Unavailable.
func KindOf(err error) Kind {
	var f *Error
	switch {
	case errors.As(err, &f):
		return f.Kind
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Unavailable
	}
	return Internal
}

// Bug reports a programmer's error: it panics in tests and is Internal in production.
func Bug(format string, args ...any) error {
	err := New(Internal, "bug", format, args...)
	if testing.Testing() {
		panic(err)
	}
	return err
}
