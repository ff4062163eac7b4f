// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of the wait between two streams.
const (
	firstWait    = time.Second
	longestWait  = 30 * time.Second
	healthy      = 60 * time.Second // a stream that lasted this long forgives what was before
	refusedWait  = 30 * time.Second // after a refused token
	longestAsked = 5 * time.Minute  // of a wait that policyd asks for
)

// random returns a number in [0, 1).
type random func() float64

// share returns a random share of d.
func (r random) share(d time.Duration) time.Duration {
	return time.Duration(r() * float64(d))
}

// reconnect decides how long to wait before the next stream. The zero value is a client
// that has not failed yet.
type reconnect struct{ failures int }

// ended is how a stream, or the attempt to open one, came to its end.
type ended struct {
	err error
	// up is how long the stream served updates; 0 if it never did.
	up time.Duration
	// comeBack is the random time within its window at which policyd, with a GoAway, asked for
	// the next stream; zero otherwise.
	comeBack time.Time
}

// after returns the wait that follows the end of a stream: a random share of a limit that
// doubles from 1 s to 30 s with each end in a row, so that a fleet spreads out.
func (r *reconnect) after(e ended, rnd random) time.Duration {
	if e.up >= healthy {
		r.failures = 0
		if !e.comeBack.IsZero() {
			return 0 // the window spreads the fleet
		}
	}
	limit := r.limit()
	r.failures++
	wait := rnd.share(limit)
	switch status.Code(e.err) {
	case codes.ResourceExhausted:
		return wait + min(askedWait(e.err), longestAsked)
	case codes.Unauthenticated, codes.PermissionDenied:
		return refusedWait + rnd.share(refusedWait/10)
	default:
		return wait
	}
}

// limit is the upper end of the next wait.
func (r *reconnect) limit() time.Duration {
	if r.failures >= 5 {
		return longestWait
	}
	return firstWait << r.failures
}

// askedWait is the delay of a RetryInfo in the details of a status.
func askedWait(err error) time.Duration {
	s, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return max(0, info.GetRetryDelay().AsDuration())
		}
	}
	return 0
}
