// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func details(t *testing.T, err error) (*policydv1.ErrorDetail, *errdetails.ErrorInfo) {
	t.Helper()
	var detail *policydv1.ErrorDetail
	var info *errdetails.ErrorInfo
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *policydv1.ErrorDetail:
			detail = d
		case *errdetails.ErrorInfo:
			info = d
		}
	}
	require.NotNil(t, detail)
	require.NotNil(t, info)
	return detail, info
}

func TestStatus_every_kind_has_a_code_of_its_own(t *testing.T) {
	want := map[fault.Kind]codes.Code{
		fault.Internal:        codes.Internal,
		fault.Invalid:         codes.InvalidArgument,
		fault.NotFound:        codes.NotFound,
		fault.Conflict:        codes.Aborted,
		fault.Denied:          codes.PermissionDenied,
		fault.Unauthenticated: codes.Unauthenticated,
		fault.Refused:         codes.FailedPrecondition,
		fault.Exhausted:       codes.ResourceExhausted,
		fault.Unavailable:     codes.Unavailable,
		fault.Canceled:        codes.Canceled,
	}
	seen := map[codes.Code]bool{}
	for _, kind := range fault.Kinds() {
		err := statusOf(fmt.Errorf("apply: %w", fault.New(kind, "some_reason", "what happened").WithHint("do this")), "req-1")
		code := status.Code(err)
		require.Equal(t, want[kind], code, "%s", kind)
		require.False(t, seen[code], "%s shares a code", kind)
		seen[code] = true
		detail, info := details(t, err)
		require.Equal(t, kind.String(), detail.GetKind())
		require.Equal(t, "some_reason", detail.GetReason())
		require.Equal(t, "req-1", detail.GetRequestId())
		require.Equal(t, "SOME_REASON", info.GetReason())
		require.Equal(t, "policyd", info.GetDomain())
	}
	require.Len(t, want, len(fault.Kinds()), "a new kind needs a row")
}

func TestStatus_hides_the_cause_of_internal_errors(t *testing.T) {
	for name, err := range map[string]error{
		"unclassified": errors.New("password is hunter2"),
		"classified":   fault.Wrap(errors.New("password is hunter2"), fault.Internal, "decode", "password is hunter2"),
		"wrapped":      fault.Wrap(errors.New("password is hunter2"), fault.Unavailable, "no_quorum", "the store does not answer"),
	} {
		t.Run(name, func(t *testing.T) {
			seen := statusOf(err, "req-7")
			require.NotContains(t, fmt.Sprint(status.Convert(seen).Proto()), "hunter2")
			if status.Code(seen) == codes.Internal {
				require.Equal(t, "internal error, request req-7", status.Convert(seen).Message())
			}
		})
	}
}

func TestStatus_context_errors(t *testing.T) {
	require.Equal(t, codes.Canceled, status.Code(statusOf(fmt.Errorf("x: %w", context.Canceled), "")))
	require.Equal(t, codes.Unavailable, status.Code(statusOf(fmt.Errorf("x: %w", context.DeadlineExceeded), "")))
}

func TestStatus_carries_violations_within_bounds(t *testing.T) {
	f := fault.New(fault.Invalid, "policy_invalid", "many")
	for i := range 1000 {
		f.Violations = append(f.Violations, fault.Violation{Scope: "shop", Path: fmt.Sprint("p", i), Value: "v", Rule: "r", Fix: "f"})
	}
	detail, _ := details(t, statusOf(f, ""))
	require.Len(t, detail.GetViolations(), maxViolations)
	v := detail.GetViolations()[0]
	require.Equal(t, []string{"shop", "p0", "v", "r", "f"}, []string{v.GetScope(), v.GetPath(), v.GetValue(), v.GetRule(), v.GetFix()})
}

func TestStatus_conflict_says_who_when_and_what_is_there(t *testing.T) {
	when := time.Date(2026, 5, 4, 14, 0, 0, 0, time.UTC)
	err := &policy.ConflictError{
		Scope: "shop", Expected: 1831, Current: 1844, By: policy.Actor{Name: "sam"}, At: when, Policy: &policy.Policy{Scope: "shop"},
		Err: fault.New(fault.Conflict, "revision_moved", "shop moved"),
	}
	detail, _ := details(t, statusOf(err, ""))
	c := detail.GetConflict()
	require.EqualValues(t, 1831, c.GetExpectedRevision())
	require.EqualValues(t, 1844, c.GetCurrentRevision())
	require.Equal(t, "sam", c.GetBy().GetName())
	require.Equal(t, when, c.GetAt().AsTime())
	require.Equal(t, "shop", c.GetCurrent().GetScope())
}

func TestTables_are_complete(t *testing.T) {
	require.Len(t, changeKinds, len(policydv1.ChangeKind_name)-1)
}
