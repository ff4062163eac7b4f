// SPDX-License-Identifier: Apache-2.0

package engine

// Class is what an attempt says about the health of a service.
type Class uint8

// Classes of outcomes.
const (
	// Success: the service did what it was asked.
	Success Class = iota
	// Failure: the service failed, was not reached, or took too long.
	Failure
	// Refused: the service answered that the request is at fault, for example with 404. In
	// a window it counts like a success; it is no proof while half-open.
	Refused
	// Neutral: the caller gave up; nothing is known.
	Neutral
)

// OutcomeKind says how an attempt ended.
type OutcomeKind uint8

// Kinds of outcomes.
const (
	OutcomeOK        OutcomeKind = iota
	OutcomeHTTP                  // with the response status in Code
	OutcomeGRPC                  // with the gRPC status code in Code
	OutcomeNetwork               // below the protocol, as Network says
	OutcomeError                 // with an error that nothing is known of: a failure, not retried
	OutcomeRetryable             // with an error that the application wants retried
	OutcomePermanent             // with an error that the application says no retry can cure
	OutcomeCancelled             // by the caller, not by a timeout of the policy
	OutcomePanic                 // the function panicked
)

// Outcome is how an attempt ended. The zero Outcome is a success.
type Outcome struct {
	Kind    OutcomeKind
	Code    int
	Network NetworkFailure
	// NotSent: certainly nothing reached the service. Implied by NetworkConnect.
	NotSent bool
	// BodyLost: the body of the request cannot be sent again.
	BodyLost bool
	// Server is the wait that the service asks for.
	Server ServerWait
}

const (
	statusConflict      = 409
	statusUnprocessable = 422
)

// grpcFailures are the codes that tell of a service in trouble, whatever is retried.
const grpcFailures uint32 = 1<<2 | 1<<4 | 1<<8 | 1<<13 | 1<<14 | 1<<15

// classify returns what the outcome says about the service, and whether the policy wants
// such an outcome retried. What is retried counts as a failure, except that the service
// still works on a call with the same key (409).
func (o *Outcome) classify(p *Policy, keyed bool) (class Class, retryable bool) {
	switch o.Kind {
	case OutcomeOK:
		return Success, false
	case OutcomeHTTP:
		retryable = p.RetryOn.HTTP(o.Code)
		switch {
		case retryable || o.Code >= 500:
			return Failure, retryable
		case o.Code < 400:
			return Success, false
		}
		return Refused, keyed && o.Code == statusConflict
	case OutcomeGRPC:
		code := uint32(max(o.Code, 0))
		retryable = p.RetryOn.GRPC(code)
		switch {
		case code == 0:
			return Success, false
		case retryable || code < 32 && grpcFailures&(1<<code) != 0:
			return Failure, retryable
		}
		return Refused, false
	case OutcomeNetwork:
		return Failure, p.RetryOn.Network&o.Network != 0
	case OutcomeRetryable:
		return Failure, true
	case OutcomePermanent:
		return Refused, false
	case OutcomeCancelled:
		return Neutral, false
	default:
		return Failure, false
	}
}

// notSent reports whether nothing reached the service.
func (o *Outcome) notSent() bool {
	return o.NotSent || o.Kind == OutcomeNetwork && o.Network == NetworkConnect
}

// Code says why a call went no further. Codes are stable and equal in every SDK; "" stands
// for none.
type Code string

// Codes of decisions.
const (
	CodeConcurrency Code = "concurrency_limited"
	CodeBreaker     Code = "breaker_open"
	CodeAttempts    Code = "attempts_exhausted"
	CodeDisabled    Code = "retries_disabled"
	CodeNotSafe     Code = "not_idempotent"
	CodeBody        Code = "body_not_replayable"
	CodeGate        Code = "success_gate_closed"
	CodeBudget      Code = "budget_exhausted"
	CodeRetryAfter  Code = "retry_after_too_long"
	CodeDeadline    Code = "deadline_exceeded"
	CodeConflict    Code = "idempotency_conflict"
)

// reason is the index of a code in Codes.
type reason uint8

const (
	byConcurrency reason = iota
	byBreaker
	byAttempts
	bySwitch
	bySafety
	byBody
	byGate
	byBudget
	byServer
	byDeadline
	byConflict
	none

	numReasons = int(none)
)

// Codes lists every code in the order in which a retry that is not made is blamed.
func Codes() []Code { return append([]Code(nil), codes[:none]...) }

//nolint:gochecknoglobals // a table
var codes = [numReasons + 1]Code{
	CodeConcurrency, CodeBreaker, CodeAttempts, CodeDisabled, CodeNotSafe, CodeBody, CodeGate, CodeBudget,
	CodeRetryAfter, CodeDeadline, CodeConflict,
}

func (r reason) code() Code { return codes[r] }
