// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"time"
)

// sketch estimates a high quantile of how long attempts take: a histogram whose buckets are
// a sixteenth of a power of two wide, so the estimate is at most 1/16 too high. It keeps the
// last attempts rather than the last minutes: whenever it holds sketchFull of them, all
// counts are halved. Its size is fixed and it needs no randomness.
type sketch struct {
	counts [sketchBuckets]uint16
	total  uint32
}

const (
	sketchUnit    = 10 // bits below a bucket of the finest width: 1.024 µs
	sketchBits    = 4
	sketchBuckets = 29 << sketchBits // up to 2^42 ns, over an hour
	sketchFull    = 1024
	// sketchLeast attempts must be known before the estimate is of use.
	sketchLeast = 20
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0)) >> sketchUnit
	shift := max(0, bits.Len64(v)-sketchBits-1)
	return min(shift<<sketchBits+int(v>>shift), sketchBuckets-1)
}

// bucketEnd returns the least duration above a bucket.
func bucketEnd(i int) time.Duration {
	shift := max(0, i>>sketchBits-1)
	v := uint64(i-shift<<sketchBits) + 1
	return time.Duration(v << shift << sketchUnit)
}

func (s *sketch) add(d time.Duration) {
	s.counts[bucketOf(d)]++
	if s.total++; s.total < sketchFull {
		return
	}
	s.total = 0
	for i := range s.counts {
		s.counts[i] /= 2
		s.total += uint32(s.counts[i])
	}
}

// p95 returns the end of the bucket that holds the 95th percentile: the ⌈0.95 n⌉th of n
// attempts. ok is false while too few are known.
func (s *sketch) p95() (d time.Duration, ok bool) {
	if s.total < sketchLeast {
		return 0, false
	}
	rank := (s.total*95 + 99) / 100
	for i, n := range s.counts {
		if rank <= uint32(n) {
			return bucketEnd(i), true
		}
		rank -= uint32(n)
	}
	return 0, false
}
