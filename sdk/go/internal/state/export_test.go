// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"
	"time"
)

// RoundTrip writes a state as a cache file and reads it back.
func RoundTrip(tb testing.TB, s *State, now time.Time) (State, int) {
	tb.Helper()
	data, err := s.Image(now).saved().encode()
	if err != nil {
		tb.Fatal(err)
	}
	saved, err := decodeCache(data)
	if err != nil {
		tb.Fatal(err)
	}
	return saved.Restore(now)
}

// Encode returns a state as the content of a cache file.
func Encode(tb testing.TB, s *State, now time.Time) []byte {
	tb.Helper()
	data, err := s.Image(now).saved().encode()
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// Decode reads the content of a cache file.
func Decode(data []byte) (*Saved, error) {
	saved, err := decodeCache(data)
	return &saved, err
}

// WithHeader gives a body a header that fits it.
func WithHeader(body []byte) []byte { return withHeader(body) }
