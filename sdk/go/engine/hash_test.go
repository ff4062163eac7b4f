// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"testing"
)

func TestEntryHash_vectors(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "spec", "vectors", "hash.json"))
	if err != nil {
		t.Fatal(err)
	}
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
			Bucket, Delay          uint64
		}
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, e := range vectors.Entries {
		if got := fmt.Sprintf("%016x", EntryHash(e.Key, e.Revision)); got != e.Hash {
			t.Errorf("%s at %d: %s, want %s", e.Key, e.Revision, got, e.Hash)
		}
	}
	for _, s := range vectors.States {
		var sum uint64
		for _, e := range s.Entries {
			sum += EntryHash(e.Key, e.Revision)
		}
		if got := fmt.Sprintf("%016x", sum); got != s.Hash {
			t.Errorf("%s: %s, want %s", s.Name, got, s.Hash)
		}
	}
	for _, i := range vectors.Instances {
		h := instanceHash(i.Switch, i.Instance)
		delay, _ := bits.Mul64(h, Million)
		if got := fmt.Sprintf("%016x", h); got != i.Hash || h%100 != i.Bucket || delay != i.Delay {
			t.Errorf("%s on %s: %s, bucket %d, delay %d; want %v", i.Switch, i.Instance, got, h%100, delay, i)
		}
	}
}

func TestInstanceHash_spreads_over_buckets(t *testing.T) {
	const instances = 100_000
	var buckets [100]int
	for i := range instances {
		buckets[instanceHash("ks-1", fmt.Sprintf("checkout-%d", i))%100]++
	}
	for b, n := range buckets {
		if n < 800 || n > 1200 { // 1000 expected, 6 σ are 190
			t.Errorf("bucket %d has %d of %d instances", b, n, instances)
		}
	}
}
