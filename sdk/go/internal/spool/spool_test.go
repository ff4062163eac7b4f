// SPDX-License-Identifier: Apache-2.0

package spool_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/policyd/policyd/sdk/go/internal/spool"
)

func config(dir string) spool.Config {
	return spool.Config{Dir: dir, MaxRecord: 10_000, MaxBytes: 1 << 20}
}

func open(t *testing.T, cfg spool.Config) (s *spool.Spool, records []uint64, unread error) {
	t.Helper()
	s, records, unread, err := spool.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, records, unread
}

func put(t *testing.T, s *spool.Spool, head, body string) uint64 {
	t.Helper()
	n := s.Number()
	if err := s.Put(n, []byte(head), []byte(body)); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSpool_keeps_records_in_order_for_the_next_process(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "queue")
	s, records, unread := open(t, config(dir))
	if len(records) > 0 || unread != nil {
		t.Fatalf("a new directory holds %v, %v", records, unread)
	}
	var numbers []uint64
	for i := range 20 {
		numbers = append(numbers, put(t, s, fmt.Sprint("head ", i), fmt.Sprint("body\n\x00 ", i)))
	}
	if err := s.Remove(numbers[3]); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(numbers[3]); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(99, nil, nil); err == nil {
		t.Error("a closed spool takes a record")
	}

	s, records, unread = open(t, config(dir))
	if want := slices.Delete(slices.Clone(numbers), 3, 4); unread != nil || !slices.Equal(records, want) {
		t.Fatalf("records %v, %v, want %v", records, unread, want)
	}
	head, body, err := s.Get(numbers[7])
	if err != nil || string(head) != "head 7" || string(body) != "body\n\x00 7" {
		t.Errorf("%q, %q, %v", head, body, err)
	}
	if n := s.Number(); n <= numbers[19] {
		t.Errorf("number %d comes again", n)
	}
}

func TestSpool_belongs_to_one_process_and_one_user(t *testing.T) {
	dir := t.TempDir()
	s, _, _ := open(t, config(dir))
	if _, _, _, err := spool.Open(config(dir)); err == nil || !strings.Contains(err.Error(), "another queue has it open") {
		t.Errorf("error %v", err)
	}
	put(t, s, "a", "b")
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := spool.Open(config(dir)); err == nil || !strings.Contains(err.Error(), "others can write it") {
		t.Errorf("error %v", err)
	}
}

func TestSpool_puts_a_damaged_record_aside_and_serves_the_rest(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"cut off":              func(data []byte) []byte { return data[:len(data)-1] },
		"empty":                func([]byte) []byte { return nil },
		"a flipped bit":        func(data []byte) []byte { data[len(data)-2] ^= 4; return data },
		"longer":               func(data []byte) []byte { return append(data, 'x') },
		"of another kind":      func([]byte) []byte { return []byte("hello\n") },
		"without line":         func(data []byte) []byte { return []byte(strings.Repeat("policyd call 1 ", 50)) },
		"of a newer version":   func(data []byte) []byte { return []byte(strings.Replace(string(data), "call 1", "call 2", 1)) },
		"with another head":    func(data []byte) []byte { return []byte(strings.Replace(string(data), "\n4\n", "\n3\n", 1)) },
		"with a head too long": func(data []byte) []byte { return []byte(strings.Replace(string(data), "\n4\n", "\n9999\n", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, _, _ := open(t, config(dir))
			put(t, s, "head", "before")
			bad := put(t, s, "head", "body")
			put(t, s, "head", "after")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, fmt.Sprintf("%016x.call", bad))
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			s, records, unread := open(t, config(dir))
			if !errors.Is(unread, spool.ErrDamaged) || !slices.Equal(records, []uint64{bad - 1, bad + 1}) {
				t.Fatalf("records %v, unread %v", records, unread)
			}
			if _, err := os.Stat(path + ".damaged"); err != nil {
				t.Error(err)
			}
			if n := s.Number(); n != bad+2 {
				t.Errorf("next number %d", n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, _, unread := open(t, config(dir)); unread != nil {
				t.Errorf("told twice: %v", unread)
			}
		})
	}
}

func TestSpool_sweeps_what_a_crash_left_and_leaves_what_is_not_its_own(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new-123", "readme.txt", "1.call", "000000000000000G.call", "000000000000000A.call"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "0000000000000005.call"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, records, unread := open(t, config(dir))
	if len(records) > 0 || !errors.Is(unread, spool.ErrDamaged) || !strings.Contains(unread.Error(), "not a regular file") {
		t.Errorf("records %v, unread %v", records, unread)
	}
	var left []string
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		left = append(left, f.Name())
	}
	if want := []string{"0000000000000005.call.damaged", "000000000000000A.call", "000000000000000G.call", "1.call", "lock", "readme.txt"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

func TestSpool_holds_its_bounds_also_after_a_restart(t *testing.T) {
	cfg := spool.Config{Dir: t.TempDir(), MaxRecord: 5000, MaxBytes: 4 * 4096}
	s, _, _ := open(t, cfg)
	if err := s.Put(s.Number(), make([]byte, 1), make([]byte, 5000)); err == nil || errors.Is(err, spool.ErrFull) {
		t.Errorf("a record that is too long: %v", err)
	}
	a := put(t, s, "a", strings.Repeat("x", 4096)) // two blocks
	put(t, s, "b", "")
	put(t, s, "c", "")
	if err := s.Put(s.Number(), []byte("d"), nil); !errors.Is(err, spool.ErrFull) {
		t.Errorf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _, _ = open(t, cfg)
	if err := s.Put(s.Number(), []byte("d"), nil); !errors.Is(err, spool.ErrFull) {
		t.Errorf("after a restart: %v", err)
	}
	if err := s.Remove(a); err != nil {
		t.Fatal(err)
	}
	put(t, s, "d", "")
	put(t, s, "e", "")
	if err := s.Put(s.Number(), []byte("f"), nil); !errors.Is(err, spool.ErrFull) {
		t.Errorf("error %v", err)
	}
}

func TestSpool_leaves_a_record_longer_than_it_reads(t *testing.T) {
	cfg := spool.Config{Dir: t.TempDir(), MaxRecord: 20_000, MaxBytes: 1 << 20}
	s, _, _ := open(t, cfg)
	long := put(t, s, "head", strings.Repeat("x", 19_000))
	middle := put(t, s, "head", strings.Repeat("x", 8_000))
	put(t, s, "a", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s, records, unread := open(t, spool.Config{Dir: cfg.Dir, MaxRecord: 100, MaxBytes: 10_000})
	if want := []uint64{middle, middle + 1}; !slices.Equal(records, want) {
		t.Errorf("records %v, want %v", records, want)
	}
	if unread == nil || errors.Is(unread, spool.ErrDamaged) {
		t.Errorf("unread %v", unread)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	_, records, unread = open(t, cfg)
	if want := []uint64{long, middle, middle + 1}; unread != nil || !slices.Equal(records, want) {
		t.Errorf("records %v, %v, want %v", records, unread, want)
	}
}

func TestSpool_keeps_each_record_that_it_put_aside(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		s, _, _ := open(t, config(dir))
		if err := os.Truncate(filepath.Join(dir, fmt.Sprintf("%016x.call", put(t, s, "head", "body"))), 10); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, _, _ := open(t, config(dir))
	aside, err := filepath.Glob(filepath.Join(dir, "*.damaged"))
	if err != nil || len(aside) != 3 {
		t.Errorf("aside %v, %v", aside, err)
	}
	if n := s.Number(); n != 4 {
		t.Errorf("next number %d", n)
	}
}

func TestSpool_under_many_writers(t *testing.T) {
	s, _, _ := open(t, config(t.TempDir()))
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range 20 {
				n := s.Number()
				want := fmt.Sprint(g, "-", i)
				if err := s.Put(n, []byte(want), []byte(want)); err != nil {
					t.Error(err)
				}
				if head, body, err := s.Get(n); err != nil || string(head) != want || string(body) != want {
					t.Errorf("%s, %s, %v", head, body, err)
				}
				if err := s.Remove(n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}
