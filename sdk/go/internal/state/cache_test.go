// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/internal/state"
)

func held(tb testing.TB, now time.Time) *state.State {
	tb.Helper()
	var s state.State
	if _, err := s.Apply(snapshot("e", 9, now, policyAt("shop", 7, 2), switchAt("ks-1", 9, now.Add(time.Hour))), now); err != nil {
		tb.Fatal(err)
	}
	return &s
}

func TestFile_keeps_what_was_in_force(t *testing.T) {
	now := time.Now()
	s := held(t, now)
	file := state.File{Paths: []string{filepath.Join(t.TempDir(), "deep", "shop.cache")}}
	if err := file.Save(s.Image(now)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file.Paths[0]); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v; want 0600", info.Mode(), err)
	}
	saved, err := file.Load()
	if err != nil {
		t.Fatal(err)
	}
	again, dropped := saved.Restore(now.Add(10 * time.Minute))
	if dropped != 0 || again.Complete() != 9 || again.Documents()["shop"].Revision != 7 {
		t.Fatalf("dropped %d, complete %d, documents %v", dropped, again.Complete(), again.Documents())
	}
	if a, b := again.Resume(), s.Resume(); a.GetHash() != b.GetHash() || a.GetRevision() != b.GetRevision() {
		t.Fatalf("resume point %v, want %v", a, b)
	}
	if left, _ := os.ReadDir(filepath.Dir(file.Paths[0])); len(left) != 1 {
		t.Fatalf("files left over: %v", left)
	}
}

func TestRestore_lets_switches_end_when_they_would_have(t *testing.T) {
	for name, c := range map[string]struct {
		ahead   time.Duration // of policyd's clock
		passed  time.Duration // on this machine's clock
		deleted bool
		left    time.Duration // until the end; negative: since
	}{
		"while the process was down":           {passed: 20 * time.Minute, left: 40 * time.Minute},
		"with a clock that differs":            {ahead: -5 * time.Hour, passed: 20 * time.Minute, left: 40 * time.Minute},
		"though the clock was set back":        {passed: -3 * time.Hour, left: time.Hour},
		"a deleted one goes on fading":         {passed: time.Minute, deleted: true, left: -time.Minute},
		"a deleted one, clocks that differ":    {ahead: 2 * time.Hour, passed: time.Minute, deleted: true, left: -time.Minute},
		"one that ended meanwhile is not new":  {passed: 61 * time.Minute, left: -time.Minute},
		"fading goes on if the clock was back": {passed: -time.Hour, deleted: true, left: 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			server := now.Add(c.ahead)
			var s state.State
			mustApply(t, &s, snapshot("e", 1, server, switchAt("ks-1", 1, server.Add(time.Hour))), now)
			if c.deleted {
				mustApply(t, &s, snapshot("e", 2, server), now)
			}
			later := now.Add(c.passed)
			data := state.Encode(t, &s, now)
			saved, err := state.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			again, dropped := saved.Restore(later)
			all := again.Switches(later)
			if dropped != 0 || len(all) != 1 {
				t.Fatalf("dropped %d, switches %+v", dropped, all)
			}
			if left := all[0].Ends.Sub(later); (left - c.left).Abs() > time.Millisecond {
				t.Fatalf("ends in %s, want %s", left, c.left)
			}
		})
	}
}

func TestRestore_with_a_rejected_document_asks_for_everything(t *testing.T) {
	now := time.Now()
	s := held(t, now)
	bad := policyAt("shop", 10, 1000)
	mustApply(t, s, snapshot("e", 10, now, bad), now)
	again, dropped := state.RoundTrip(t, s, now)
	if dropped != 0 || attempts(t, &again, "shop") != 2 {
		t.Fatalf("dropped %d, maxAttempts %d; want the document in force", dropped, attempts(t, &again, "shop"))
	}
	if again.Resume() != nil {
		t.Fatal("resumes, so that a newer SDK would never get the document")
	}
}

func TestO_RL_06_damaged_cache_is_ignored_and_replaced(t *testing.T) {
	now := time.Now()
	good := state.Encode(t, held(t, now), now)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-3] ^= 1
	for name, data := range map[string][]byte{
		"empty":                 {},
		"half of it":            good[:len(good)/2],
		"all but one byte":      good[:len(good)-1],
		"a flipped bit":         flipped,
		"a megabyte of zeros":   make([]byte, 1<<20),
		"half a JSON":           []byte(`{"policies": [`),
		"a newer format":        bytes.Replace(good, []byte("cache 1 "), []byte("cache 2 "), 1),
		"only the first line":   good[:bytes.IndexByte(good, '\n')+1],
		"a description missing": state.WithHeader([]byte("x")),
		"a description broken":  state.WithHeader([]byte("{\n")),
		"documents broken":      state.WithHeader([]byte("{}\n\xff\xff")),
	} {
		t.Run(name, func(t *testing.T) {
			file := state.File{Paths: []string{filepath.Join(t.TempDir(), "shop.cache")}}
			if err := os.WriteFile(file.Paths[0], data, 0o600); err != nil {
				t.Fatal(err)
			}
			if saved, err := file.Load(); err == nil || saved != nil {
				t.Fatalf("content %v, error %v; want an error alone", saved, err)
			}
			if err := file.Save(held(t, now).Image(now)); err != nil {
				t.Fatal(err)
			}
			if saved, err := file.Load(); err != nil || saved == nil {
				t.Fatalf("after the next write: %v", err)
			}
		})
	}
	t.Run("a file that is not there is no error", func(t *testing.T) {
		file := state.File{Paths: []string{filepath.Join(t.TempDir(), "shop.cache")}}
		if saved, err := file.Load(); err != nil || saved != nil {
			t.Fatalf("content %v, error %v", saved, err)
		}
	})
}

func TestLoad_refuses_a_file_that_others_can_write(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are the directory's")
	}
	now := time.Now()
	dir := t.TempDir()
	file := state.File{Paths: []string{filepath.Join(dir, "shop.cache")}}
	if err := file.Save(held(t, now).Image(now)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file.Paths[0], 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Load(); err == nil || !strings.Contains(err.Error(), "others can write it") {
		t.Fatalf("error %v", err)
	}
	link := state.File{Paths: []string{filepath.Join(dir, "link.cache")}}
	if err := os.Symlink(file.Paths[0], link.Paths[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := link.Load(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Fatalf("error %v", err)
	}
}

func TestFile_falls_back_to_the_second_directory(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	blocked := filepath.Join(dir, "blocked")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := state.File{Paths: []string{filepath.Join(blocked, "a.cache"), filepath.Join(dir, "tmp", "a.cache")}}
	if err := file.Save(held(t, now).Image(now)); err != nil {
		t.Fatal(err)
	}
	if saved, _ := file.Load(); saved == nil {
		t.Fatal("nothing to load")
	}
}

func TestSweep_removes_what_crashes_left_behind(t *testing.T) {
	dir := t.TempDir()
	file := state.File{Paths: []string{filepath.Join(dir, "shop.cache")}}
	now := time.Now()
	for name, old := range map[string]bool{"shop.cache.new-1": true, "shop.cache.new-2": false, "other.new-3": true} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if at := now.Add(-2 * time.Hour); old {
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	file.Sweep(now)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 2 {
		t.Fatalf("left: %v; want the young one and the stranger's", left)
	}
}

func FuzzDecodeCache(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	good := state.Encode(f, held(f, now), now)
	body := good[bytes.IndexByte(good, '\n')+1:]
	f.Add(body, true)
	f.Add(good, false)
	f.Add([]byte("{\"ended\":[{\"document\":\"CgJrcw==\"}]}\n"), true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed {
			data = state.WithHeader(data)
		}
		saved, err := state.Decode(data)
		if err != nil {
			return
		}
		s, _ := saved.Restore(now)
		s.Documents()
		s.Switches(now)
		state.RoundTrip(t, &s, now)
	})
}
