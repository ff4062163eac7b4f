// SPDX-License-Identifier: Apache-2.0

// Package quantile estimates a high quantile of times in little memory.
package quantile

import (
	"math/bits"
	"time"
)

// Sketch estimates the 95th percentile of how long attempts take: a histogram whose buckets are
// a sixteenth of a power of two wide, so the estimate is at most 1/16 too high. It keeps the
// last attempts rather than the last minutes: whenever it holds full of them, all
// counts are halved. Its size is fixed and it needs no randomness. Not safe for concurrent use.
type Sketch struct {
	counts [buckets]uint16
	total  uint32
}

const (
	unit    = 10 // bits below a bucket of the finest width: 1.024 µs
	fine    = 4
	buckets = 29 << fine // up to 2^42 ns, over an hour
	full    = 1024
	// least attempts must be known before the estimate is of use.
	least = 20
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0)) >> unit
	shift := max(0, bits.Len64(v)-fine-1)
	return min(shift<<fine+int(v>>shift), buckets-1)
}

// bucketEnd returns the least duration above a bucket.
func bucketEnd(i int) time.Duration {
	shift := max(0, i>>fine-1)
	v := uint64(i-shift<<fine) + 1
	return time.Duration(v << shift << unit)
}

// Add takes another time.
func (s *Sketch) Add(d time.Duration) {
	s.counts[bucketOf(d)]++
	if s.total++; s.total < full {
		return
	}
	s.total = 0
	for i := range s.counts {
		s.counts[i] /= 2
		s.total += uint32(s.counts[i])
	}
}

// P95 returns the end of the bucket that holds the 95th percentile: the ⌈0.95 n⌉th of n
// attempts. ok is false while too few are known.
func (s *Sketch) P95() (d time.Duration, ok bool) {
	if s.total < least {
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
