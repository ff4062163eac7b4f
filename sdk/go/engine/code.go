// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

const statusClass5xx = "5xx"

// retryableStatus reports whether a document may list status: server errors, and the
// client errors that a later attempt can cure.
func retryableStatus(status int) bool {
	return status == 408 || status == 425 || status == 429 || status >= 500 && status <= 599
}

// grpcCodes are the names of the gRPC status codes, indexed by code.
var grpcCodes = []string{ //nolint:gochecknoglobals // compiled table
	"ok", "cancelled", "unknown", "invalid-argument", "deadline-exceeded", "not-found", "already-exists",
	"permission-denied", "resource-exhausted", "failed-precondition", "aborted", "out-of-range",
	"unimplemented", "internal", "unavailable", "data-loss", "unauthenticated",
}

// GRPCCode returns the number of a gRPC status code from its name in documents, for
// example "resource-exhausted".
func GRPCCode(name string) (uint32, bool) {
	i := slices.Index(grpcCodes, name)
	return uint32(max(i, 0)), i >= 0
}
