// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/policy"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// codeOf is the one table from kinds of failure to gRPC codes.
func codeOf(kind fault.Kind) codes.Code {
	switch kind {
	case fault.Internal:
		return codes.Internal
	case fault.Invalid:
		return codes.InvalidArgument
	case fault.NotFound:
		return codes.NotFound
	case fault.Conflict:
		return codes.Aborted
	case fault.Denied:
		return codes.PermissionDenied
	case fault.Unauthenticated:
		return codes.Unauthenticated
	case fault.Refused:
		return codes.FailedPrecondition
	case fault.Exhausted:
		return codes.ResourceExhausted
	case fault.Unavailable:
		return codes.Unavailable
	case fault.Canceled:
		return codes.Canceled
	}
	return codes.Internal
}

const (
	errorDomain = "policyd"
	// Status details travel in trailers, so that their size is kept in bounds.
	maxViolations = 100
)

// isStatus reports whether err is a status already: another service on the same server, or
// gRPC itself, made it for the caller. One that is wrapped is not meant for the caller.
func isStatus(err error) bool {
	_, ok := err.(interface{ GRPCStatus() *status.Status })
	return ok
}

// statusOf turns a failure into what the caller sees. The cause of an internal error stays
// here.
func statusOf(err error, requestID string) error {
	kind := fault.KindOf(err)
	detail := &policydv1.ErrorDetail{Kind: kind.String(), RequestId: requestID}
	message := messageOf(err, kind, requestID)
	var f *fault.Error
	if errors.As(err, &f) {
		detail.Reason, detail.Hint = f.Reason, f.Hint
		for _, v := range f.Violations[:min(len(f.Violations), maxViolations)] {
			detail.Violations = append(detail.Violations, &policydv1.Violation{
				Scope: v.Scope, Path: v.Path, Value: v.Value, Rule: v.Rule, Fix: v.Fix,
			})
		}
	}
	if kind == fault.Internal {
		detail.Hint, detail.Violations = "", nil
	}
	var moved *policy.ConflictError
	if errors.As(err, &moved) {
		detail.Conflict = conflictProto(moved)
	}
	st := status.New(codeOf(kind), message)
	info := &errdetails.ErrorInfo{
		Reason: strings.ToUpper(detail.GetReason()), Domain: errorDomain,
		Metadata: map[string]string{"kind": detail.GetKind(), "request_id": requestID},
	}
	// Fails only for messages that cannot be encoded; then the bare status has to do.
	if full, err := st.WithDetails(detail, info); err == nil {
		st = full
	}
	return st.Err()
}

// messageOf returns what people may read: the message of a fault without its cause.
func messageOf(err error, kind fault.Kind, requestID string) string {
	var f *fault.Error
	switch {
	case kind == fault.Internal:
		return "internal error, request " + requestID
	case kind == fault.Canceled:
		return "the request was canceled"
	case errors.As(err, &f) && kind == fault.Invalid:
		// The cause of an invalid input is about the input.
		return strings.ToValidUTF8(f.Error(), "")
	case errors.As(err, &f):
		return strings.ToValidUTF8(f.Message, "")
	}
	return "the deadline passed before the store answered"
}
