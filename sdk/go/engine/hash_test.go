// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestEntryHash_vectors(t *testing.T) {
	type entry struct {
		Key      string
		Revision int64
		Hash     string
	}
	var vectors struct {
		Entries []entry
		States  []struct {
			Name    string
			Entries []entry
			Hash    string
		}
		Instances []struct {
			Switch, Instance, Hash string
			Bucket                 int
			Delay                  time.Duration
		}
	}
	readVectors(t, "hash.json", &vectors)
	for _, e := range vectors.Entries {
		if got := fmt.Sprintf("%016x", engine.EntryHash(e.Key, e.Revision)); got != e.Hash {
			t.Errorf("%s at %d: %s, want %s", e.Key, e.Revision, got, e.Hash)
		}
	}
	for _, s := range vectors.States {
		var sum uint64
		for _, e := range s.Entries {
			sum += engine.EntryHash(e.Key, e.Revision)
		}
		if got := fmt.Sprintf("%016x", sum); got != s.Hash {
			t.Errorf("%s: %s, want %s", s.Name, got, s.Hash)
		}
	}
	for _, i := range vectors.Instances {
		// The bucket is the greatest percentage that leaves the instance out.
		sw := engine.Switch{ID: i.Switch, Action: engine.DisableRetries, Scope: "global", Ends: start}
		for percent := range 101 {
			sw.Percent = percent
			if got := sw.Selects("shop", engine.Standard, i.Instance); got != (percent > i.Bucket) {
				t.Errorf("%s on %s: %d %% take it: %v", i.Switch, i.Instance, percent, got)
			}
		}
		// With half a restore of Million nanoseconds the ramp begins at the delay itself.
		sw.Restore = 2 * engine.Million
		at := func(after time.Duration) int64 { return engine.Share(&sw, i.Instance, start.Add(after)) }
		if at(i.Delay) != 0 || at(i.Delay+1) != 1 || at(i.Delay+engine.Million) != engine.Million {
			t.Errorf("%s on %s does not begin after %d", i.Switch, i.Instance, i.Delay)
		}
	}
}

func TestSwitch_percent_spreads_over_instances(t *testing.T) {
	const instances = 100_000
	sw := engine.Switch{ID: "ks-1", Action: engine.DisableRetries, Scope: "global"}
	for _, percent := range []int{1, 10, 50, 99, 100} {
		sw.Percent = percent
		taken := 0
		for i := range instances {
			if sw.Selects("shop", engine.Standard, fmt.Sprintf("checkout-%d", i)) {
				taken++
			}
		}
		if want := instances * percent / 100; taken < want-1000 || taken > want+1000 { // over 6 σ
			t.Errorf("%d %% take %d of %d", percent, taken, instances)
		}
	}
}
