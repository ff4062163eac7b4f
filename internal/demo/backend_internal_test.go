// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/document"
)

// at makes a backend that always answers, at a clock that the test moves.
func at(s settings) (*backend, func(time.Duration)) {
	now := time.Date(2026, 5, 4, 14, 0, 0, 0, time.UTC)
	b := newBackend()
	b.settings, b.now = s, func() time.Time { return now }
	return b, func(d time.Duration) { now = now.Add(d) }
}

func TestBackend_tells_retries_from_calls_by_the_id(t *testing.T) {
	b, pass := at(settings{})
	for _, id := range []string{"a", "b", "a", "a", "", ""} {
		b.arrive(id)
	}
	pass(time.Second)
	c := b.counts()
	require.Equal(t, []int{4, 2, 0}, []int{c.CallsPerSecond, c.RetriesPerSecond, c.FailedPerSecond}, "without an id it is a call")
	pass(time.Second)
	c = b.counts()
	require.Zero(t, c.CallsPerSecond, "only the last full second counts")
	require.Equal(t, []int{4, 2}, []int{c.Calls, c.Retries})
}

func TestBackend_remembers_an_id_as_long_as_a_call_may_last(t *testing.T) {
	b, pass := at(settings{})
	b.arrive("a")
	pass((counted + 1) * time.Second)
	b.arrive("a")
	require.Equal(t, 1, b.counts().Retries)
	for range 3 {
		pass((counted + 1) * time.Second)
		b.arrive("other")
	}
	require.LessOrEqual(t, len(b.ids)+len(b.oldIDs), 2, "old ids are forgotten")
}

func TestBackend_answers_no_more_than_its_capacity(t *testing.T) {
	b, pass := at(settings{Capacity: 3, Latency: time.Second})
	for i := range 5 {
		fails, wait := b.arrive("")
		require.Equal(t, i >= 3, fails)
		require.Equal(t, i < 3, wait == time.Second, "what is too much is refused at once")
	}
	pass(time.Second)
	fails, _ := b.arrive("")
	require.False(t, fails, "the next second has room again")
}

func TestBackend_fails_its_share(t *testing.T) {
	for share, want := range map[float64]int{0: 0, 1: 100} {
		b, _ := at(settings{Fail: share})
		for range 100 {
			b.arrive("")
		}
		require.Equal(t, want, b.counts().Failed)
	}
}

func TestPolicies_of_the_demo_are_valid(t *testing.T) {
	objects, err := document.Decode("policies.yaml", policies)
	require.NoError(t, err)
	require.Greater(t, len(objects), 3)
}
