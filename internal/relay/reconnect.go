// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of the wait between two streams: those of the SDKs.
const (
	firstWait    = time.Second
	longestWait  = 30 * time.Second
	healthy      = 60 * time.Second // a stream that lasted this long forgives what was before
	refusedWait  = 30 * time.Second // after a refused token
	longestAsked = 5 * time.Minute  // of a wait that the upstream asks for
)

// reconnect decides how long to wait before the next stream. The zero value has not failed.
type reconnect struct{ failures int }

// ended is how a stream came to its end.
type ended struct {
	err error
	// up is how long the stream served updates; 0 if it never did.
	up time.Duration
	// comeBack is when a GoAway wants the next stream; zero without one.
	comeBack time.Time
}

// after returns the wait that follows the end of a stream: a random share, in [0,1), of a
// limit that doubles from 1 s to 30 s with each end in a row.
func (r *reconnect) after(e ended, share float64) time.Duration {
	if e.up >= healthy {
		r.failures = 0
		if !e.comeBack.IsZero() {
			return 0
		}
	}
	limit := min(firstWait<<min(r.failures, 5), longestWait)
	r.failures++
	wait := time.Duration(share * float64(limit))
	switch status.Code(e.err) {
	case codes.ResourceExhausted:
		return wait + min(askedWait(e.err), longestAsked)
	case codes.Unauthenticated, codes.PermissionDenied, codes.FailedPrecondition:
		return refusedWait + time.Duration(share*float64(refusedWait/10))
	default:
		return wait
	}
}

func askedWait(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return max(0, info.GetRetryDelay().AsDuration())
		}
	}
	return 0
}

// sleep waits for d and reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
