// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"time"
)

// Policy is an effective policy compiled for the hot path. It is immutable; policies that
// are Equal decide alike. Durations are durations, shares and decimals are
// fixed point in millionths.
type Policy struct {
	Observe     bool
	Criticality Criticality
	MaxAttempts int // sends of one call, the first included; at least 1
	Backoff     BackoffPolicy
	Timeouts    TimeoutPolicy
	RetryOn     RetryOn
	RetryAfter  RetryAfterPolicy
	Idempotency IdempotencyPolicy
	Budget      BudgetPolicy
	Breaker     BreakerPolicy
	Extras      *Extras // nil: all of them are off
}

// Jitter is the randomness of a wait.
type Jitter uint8

// Jitters, in the order of documents.
const (
	JitterNone Jitter = iota
	JitterFull
	JitterEqual
	JitterDecorrelated
)

func (j Jitter) String() string { return jitterWords[j] }

// BackoffPolicy bounds the waits before retries. 0 < Base ≤ Max, Multiplier ≥ Million.
type BackoffPolicy struct {
	Base, Max  time.Duration
	Multiplier int64
	Jitter     Jitter
}

// TimeoutPolicy bounds attempts and calls; 0 means none.
type TimeoutPolicy struct {
	Attempt, Overall time.Duration
}

// NetworkFailure is a kind of failure below the protocol. Kinds combine as a set.
type NetworkFailure uint8

// Kinds of network failures.
const (
	NetworkConnect NetworkFailure = 1 << iota // nothing was sent
	NetworkReset
	NetworkTimeout // an attempt ran into timeouts.attempt, or the network's own time-out
)

// RetryOn holds the outcomes that are worth a retry.
type RetryOn struct {
	http    [8]uint64 // bit status−100
	grpc    uint32    // bit of the code
	Network NetworkFailure
}

// HTTP reports whether a response status may be retried. Any int is allowed.
func (r *RetryOn) HTTP(status int) bool {
	i := uint(status - 100)
	return i < 500 && r.http[i/64]&(1<<(i%64)) != 0
}

// GRPC reports whether a gRPC status code may be retried. Any number is allowed.
func (r *RetryOn) GRPC(code uint32) bool { return code < 32 && r.grpc&(1<<code) != 0 }

// RetryAfterPolicy rules the wait that a server asks for.
type RetryAfterPolicy struct {
	Honor  bool
	Max    time.Duration
	Jitter int64 // added at most, share of the wait
}

// IdempotencyPolicy says which calls are safe to repeat.
type IdempotencyPolicy struct {
	methods uint16
	other   string // further methods, each between spaces
	Key     KeyPolicy
	// OnlyIfNotSent lets other calls repeat when nothing was sent.
	OnlyIfNotSent bool
}

// Repeats reports whether a method is safe to repeat by itself. Methods are
// case-sensitive; empty means GET, as in net/http.
func (p *IdempotencyPolicy) Repeats(method string) bool {
	if bit := methodBit(method); bit != 0 {
		return p.methods&bit != 0
	}
	for rest := p.other; rest != ""; {
		var one string
		one, rest, _ = strings.Cut(rest, " ")
		if one == method {
			return true
		}
	}
	return false
}

func methodBit(method string) uint16 {
	switch method {
	case "GET", "":
		return 1 << 0
	case "HEAD":
		return 1 << 1
	case "OPTIONS":
		return 1 << 2
	case "PUT":
		return 1 << 3
	case "DELETE":
		return 1 << 4
	case "POST":
		return 1 << 5
	case "PATCH":
		return 1 << 6
	case "TRACE":
		return 1 << 7
	case "CONNECT":
		return 1 << 8
	}
	return 0
}

// KeyPolicy rules idempotency keys.
type KeyPolicy struct {
	Enabled    bool // a key makes a call repeatable
	Auto       bool // make a key when the caller gives none
	Quoted     bool // as a structured-field string
	Header     string
	Remembered time.Duration
}

// BudgetPolicy bounds retries: floor(MinRetriesPerSecond × Window + Ratio × calls).
type BudgetPolicy struct {
	Ratio               int64
	Window              time.Duration
	MinRetriesPerSecond int64
	Tokens              TokenPolicy
	SuccessGate         GatePolicy
}

// TokenPolicy is the token bucket beside the ratio; all numbers in millionths of a token.
type TokenPolicy struct {
	Enabled         bool
	Capacity        int64
	RefillPerSecond int64
	SuccessCredit   int64
	RetryCost       int64
}

// GatePolicy stops retries while too few of the last calls succeeded.
type GatePolicy struct {
	Enabled        bool
	Window         int // calls
	MinSuccessRate int64
	MinCalls       int
	MaxAge         time.Duration
}

// BreakerPolicy rules the breaker. Enabled implies that at least one rule is on.
type BreakerPolicy struct {
	Enabled     bool
	Consecutive ConsecutiveRule
	Ratio       RatioRule
	Slow        SlowRule
	HalfOpen    HalfOpenPolicy
	Reopen      ReopenPolicy
	// RecoverOver is the time over which the admitted share rises to 1 after closing.
	RecoverOver time.Duration
}

// ConsecutiveRule trips on failed attempts in a row.
type ConsecutiveRule struct {
	Enabled  bool
	Failures int
	OpenFor  time.Duration
}

// RatioRule trips on the failed share of the attempts in a window.
type RatioRule struct {
	Enabled  bool
	Failures int64 // share
	Window   time.Duration
	MinCalls int
	OpenFor  time.Duration
}

// SlowRule trips on the slow share of the attempts in a window.
type SlowRule struct {
	Enabled    bool
	LongerThan time.Duration
	Ratio      int64 // share
	Window     time.Duration
	MinCalls   int
	OpenFor    time.Duration
}

// HalfOpenPolicy rules the probes. CloseAfter ≤ Probes.
type HalfOpenPolicy struct {
	Probes       int
	CloseAfter   int
	ProbeTimeout time.Duration
}

// ReopenPolicy lets openFor grow while probes fail.
type ReopenPolicy struct {
	Multiplier int64
	Max        time.Duration
	Jitter     int64 // added at most, share of openFor
}
