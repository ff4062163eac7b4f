// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"time"
)

// Instant is a moment on a monotonic time line: nanoseconds since an origin that the
// caller picks once, so that steps of the wall clock move nothing. A caller in a process
// takes Instant(time.Since(origin)), the cheapest clock there is.
type Instant int64

// Never is later than every moment.
const Never Instant = math.MaxInt64

// Add returns the moment d later, at most Never.
func (t Instant) Add(d time.Duration) Instant {
	sum := t + Instant(d)
	if d > 0 && sum < t {
		return Never
	}
	return sum
}

// Sub returns the time from u to t, saturating.
func (t Instant) Sub(u Instant) time.Duration {
	d := time.Duration(t - u)
	switch {
	case t > u && d < 0:
		return math.MaxInt64
	case t < u && d > 0:
		return math.MinInt64
	}
	return d
}

// slot returns the number of the stretch of the given width that t lies in.
func (t Instant) slot(width time.Duration) int64 {
	q := int64(t) / int64(width)
	if t < 0 && int64(t)%int64(width) != 0 {
		q--
	}
	return q
}
