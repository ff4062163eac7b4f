// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/bits"
)

// scale returns n × num ÷ den, rounded down, at most MaxInt64. None may be negative, and
// den may not be 0.
func scale(n, num, den int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(den))
	return int64(min(q, math.MaxInt64))
}

// scaleUp is scale, rounded up.
func scaleUp(n, num, den int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	q, rem := bits.Div64(hi, lo, uint64(den))
	if rem > 0 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// shareOf returns the share, in millionths, of n, rounded down.
func shareOf(n, share int64) int64 { return scale(n, share, Million) }

// uniform maps a random number to [0, n], both included: floor(r × (n+1) ÷ 2⁶⁴).
func uniform(r uint64, n int64) int64 {
	if n <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(r, uint64(n)+1)
	return int64(hi)
}

// chance reports whether a random number falls into a share in millionths.
func chance(r uint64, share int64) bool { return uniform(r, Million-1) < share }
