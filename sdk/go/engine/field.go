// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"time"
)

// Field is one setting of a policy. The zero Field is not a setting.
type Field uint8

// FieldSpec describes a setting: the one table that validation, merge, diff, explain and
// the codecs read.
type FieldSpec struct {
	Path string // lowerCamelCase, as in documents below spec
	Kind Kind
	// Default is the built-in value; nil means the setting has none.
	Default *Value
	// Min and Max bound Int, in the kind's own unit, when Bounded.
	Bounded  bool
	Min, Max int64
	// Words are the values of an enum, or the members a set may have.
	Words []string
	// Own fields are not inherited.
	Own bool
	// Widest and narrowest level where the field may stand.
	From, To Level
	Doc      string
}

// The settings, in the order of documents.
const (
	_ Field = iota
	Description
	Public
	Observe
	MatchHTTPMethod
	MatchHTTPHost
	MatchHTTPPath
	MatchGRPCMethod
	MaxAttempts
	BackoffBase
	BackoffMax
	BackoffMultiplier
	BackoffJitter
	TimeoutsAttempt
	TimeoutsOverall
	RetryOnHTTP
	RetryOnGRPC
	RetryOnNetwork
	RetryAfterHonor
	RetryAfterMax
	RetryAfterJitter
	IdempotencyMethods
	IdempotencyKeyEnabled
	IdempotencyKeyHeader
	IdempotencyKeyAuto
	IdempotencyKeyFormat
	IdempotencyKeyRemembered
	IdempotencyOtherwise
	BudgetRatio
	BudgetWindow
	BudgetMinRetriesPerSecond
	BudgetTokensEnabled
	BudgetTokensCapacity
	BudgetTokensRefillPerSecond
	BudgetTokensSuccessCredit
	BudgetTokensRetryCost
	BudgetSuccessGateEnabled
	BudgetSuccessGateWindow
	BudgetSuccessGateMinSuccessRate
	BudgetSuccessGateMinCalls
	BudgetSuccessGateMaxAge
	BudgetScope
	BreakerEnabled
	BreakerPer
	BreakerConsecutiveEnabled
	BreakerConsecutiveFailures
	BreakerConsecutiveOpenFor
	BreakerRatioEnabled
	BreakerRatioFailures
	BreakerRatioWindow
	BreakerRatioMinCalls
	BreakerRatioOpenFor
	BreakerSlowEnabled
	BreakerSlowLongerThan
	BreakerSlowRatio
	BreakerSlowWindow
	BreakerSlowMinCalls
	BreakerSlowOpenFor
	BreakerHalfOpenProbes
	BreakerHalfOpenCloseAfter
	BreakerHalfOpenProbeTimeout
	BreakerReopenMultiplier
	BreakerReopenMax
	BreakerReopenJitter
	BreakerRecoverOver
	HedgingEnabled
	HedgingAfter
	HedgingMax
	ConcurrencyEnabled
	ConcurrencyLimit
	ConcurrencyQueue
	ConcurrencyWhenFull
	FallbackMode
	FallbackCachedMaxAge
	FallbackStaticStatus
	FallbackStaticContentType
	FallbackStaticBody
	OfflineQueueEnabled
	OfflineQueueMaxItems
	OfflineQueueTTL
	OfflineQueueOrder
	NestedMark
	NestedWhenMarked
	CeilingsMaxAttempts
	CeilingsBudgetRatio
	CeilingsMinRetriesPerSecond
	CeilingsTimeoutsOverall
	RequirementsJitter
	RequirementsSuccessGate
	numFields
)

// NumFields is one more than the greatest Field: the length of an array indexed by Field.
const NumFields = int(numFields)

// Limits on what a document may hold, enforced by policyd and again by SDKs.
const (
	MaxDocumentBytes   = 64 << 10
	MaxListItems       = 500
	MaxTextBytes       = 8 << 10
	MaxPoliciesPerNS   = 10_000
	MaxActiveSwitches  = 1_000
	MaxSwitchDuration  = 24 * time.Hour
	MaxForceClosed     = time.Hour
	DefaultRestoreOver = 2 * time.Minute
)

// Spec returns the description of f. It must not be changed.
func (f Field) Spec() *FieldSpec { return &fieldSpecs[f] }

// Path returns the field's path below spec, for example "backoff.base".
func (f Field) Path() string { return fieldSpecs[f].Path }

func (f Field) String() string { return fieldSpecs[f].Path }

// Fields returns every setting in document order.
func Fields() []Field {
	all := make([]Field, 0, NumFields-1)
	for f := Field(1); f < numFields; f++ {
		all = append(all, f)
	}
	return all
}

// FieldByPath finds a setting by its path.
func FieldByPath(path string) (Field, bool) {
	f, ok := fieldsByPath[path]
	return f, ok
}

// SwitchOf returns the "enabled" field of the nearest block around f, if it has one:
// setting any field of such a block switches the block on.
func (f Field) SwitchOf() (Field, bool) {
	for path := f.Path(); ; {
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return 0, false
		}
		path = path[:i]
		if s, ok := fieldsByPath[path+".enabled"]; ok {
			return s, s != f
		}
	}
}

// Words of the table that several fields share.
//
//nolint:gochecknoglobals // compiled table
var (
	grpcRetryable = []string{"aborted", "deadline-exceeded", "internal", "resource-exhausted", "unavailable", "unknown", "data-loss", "cancelled"}
	networkErrors = []string{"connect", "reset", "timeout"}
	jitterWords   = []string{"none", "full", "equal", "decorrelated"}
)

var fieldSpecs = buildFieldSpecs() //nolint:gochecknoglobals // compiled table

var fieldsByPath = func() map[string]Field { //nolint:gochecknoglobals // compiled table
	m := make(map[string]Field, NumFields)
	for f := Field(1); f < numFields; f++ {
		m[fieldSpecs[f].Path] = f
	}
	return m
}()
