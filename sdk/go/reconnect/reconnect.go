// SPDX-License-Identifier: Apache-2.0

// Package reconnect decides how long an instance or a relay waits before its next stream. There
// is no compatibility promise outside this repository.
package reconnect

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
	refusedWait  = 30 * time.Second // after a refusal
	longestAsked = 5 * time.Minute  // of a wait that policyd asks for
)

// Wait decides how long to wait before the next stream. The zero value is a client that has
// not failed yet.
type Wait struct{ failures int }

// Ended is how a stream, or the attempt to open one, came to its end.
type Ended struct {
	Err error
	// Refused: the other side will not serve this one, and the next try will not change that.
	Refused bool
	// Up is how long the stream served updates; 0 if it never did.
	Up time.Duration
	// ComeBack is the random time within its window at which policyd, with a GoAway, asked for
	// the next stream; zero otherwise.
	ComeBack time.Time
}

// After returns the wait that follows the end of a stream: a random share, in [0, 1), of a limit
// that doubles from 1 s to 30 s with each end in a row, so that a fleet spreads out.
func (w *Wait) After(e Ended, random func() float64) time.Duration {
	if e.Up >= healthy {
		w.failures = 0
		if !e.ComeBack.IsZero() {
			return 0 // the window spreads the fleet
		}
	}
	limit := w.limit()
	w.failures++
	wait := time.Duration(random() * float64(limit))
	switch {
	case e.Refused:
		return refusedWait + time.Duration(random()*float64(refusedWait/10))
	case status.Code(e.Err) == codes.ResourceExhausted:
		return wait + min(askedWait(e.Err), longestAsked)
	default:
		return wait
	}
}

// limit is the upper end of the next wait.
func (w *Wait) limit() time.Duration {
	if w.failures >= 5 {
		return longestWait
	}
	return firstWait << w.failures
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
