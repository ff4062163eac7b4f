// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
)

const (
	hintUnavailable = "Nothing changes for running applications: they keep the last policy. Writes work again when etcd has a quorum; then repeat."
	hintFull        = "Compact, defragment and disarm the alarm of etcd, or raise its quota. Reads and watches go on."
	hintTooLarge    = "Apply fewer documents at once."
	hintUnknown     = "Read the document before you repeat the command."
)

func invalid(reason, format string, args ...any) error {
	return fault.New(fault.Invalid, reason, format, args...)
}

// translate turns an error of etcd into a fault; doing says what was being done. No type of
// etcd leaves this package.
func translate(err error, doing string) error {
	wrap := func(kind fault.Kind, reason, message, hint string) error {
		return &fault.Error{Kind: kind, Reason: reason, Message: doing + ": " + message, Hint: hint, Err: err}
	}
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return wrap(fault.Exhausted, "store_full", "the store is full", hintFull)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps),
		codeOf(err) == codes.ResourceExhausted && !errors.Is(err, rpctypes.ErrTooManyRequests):
		return wrap(fault.Exhausted, "batch_too_large", "the batch is too large for the store", hintTooLarge)
	case authError(err):
		return wrap(fault.Unavailable, "store_denied", "the store does not let policyd in", "Check the etcd user and the roles of policyd.")
	case errors.Is(err, context.Canceled), codeOf(err) == codes.Canceled:
		return wrap(fault.Canceled, "canceled", "canceled", "")
	case unavailable(err):
		return wrap(fault.Unavailable, "store_unavailable", "the store cannot be reached or has no quorum", hintUnavailable)
	}
	return wrap(fault.Internal, "store", "the store answers with an error", "")
}

func authError(err error) bool {
	for _, known := range []error{
		rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserNotFound,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	code := codeOf(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

func unavailable(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	code := codeOf(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// codeOf knows the errors of etcd's client, which are no statuses of gRPC.
func codeOf(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}

// refused reports whether etcd said no, so that nothing can have been written. For any
// other error of a write the outcome is open. A store that fills up with a write carries it
// out and says that it is full all the same.
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return false
	}
	for _, known := range []error{
		rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps, rpctypes.ErrTooManyRequests,
		rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey, rpctypes.ErrNoLeader, rpctypes.ErrCorrupt,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return authError(err) || codeOf(err) == codes.ResourceExhausted
}
