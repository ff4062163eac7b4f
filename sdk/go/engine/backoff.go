// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"time"
)

// Step returns d(n), the wait before retry n without its randomness: Base, multiplied
// n−1 times and each time rounded down to the nanosecond, at most Max. n below 1 counts as
// 1. For any n the result is neither negative nor above Max.
func (b *BackoffPolicy) Step(n int) time.Duration {
	d, limit := int64(b.Base), int64(b.Max)
	if b.Multiplier <= Million {
		return time.Duration(min(d, limit))
	}
	for ; n > 1 && d < limit; n-- {
		next := scale(d, b.Multiplier, Million)
		if next == d {
			break
		}
		d = next
	}
	return time.Duration(min(d, limit))
}

// Wait returns the wait before retry n: Step(n) with its randomness, which never lifts it
// above Max. previous is the wait before, 0 if there was none; only decorrelated jitter
// reads it. random is drawn from at most once.
func (b *BackoffPolicy) Wait(n int, previous time.Duration, random func() uint64) time.Duration {
	d := int64(b.Step(n))
	switch b.Jitter {
	case JitterFull:
		return time.Duration(uniform(random(), d))
	case JitterEqual:
		return time.Duration(d - d/2 + uniform(random(), d/2))
	case JitterDecorrelated:
		low := int64(min(b.Base, b.Max))
		last := max(int64(previous), low)
		high := int64(math.MaxInt64 - 1)
		if last < high/3 {
			high = 3 * last
		}
		return time.Duration(min(low+uniform(random(), high-low), int64(b.Max)))
	default:
		return time.Duration(d)
	}
}
