// SPDX-License-Identifier: Apache-2.0

// Package spool keeps records in a directory, one file each, so that they outlive a crash at
// any moment: a record is there whole once Put has returned, or not at all. One process at a
// time owns a directory.
package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	lockName    = "lock"
	suffix      = ".call"
	tempPattern = ".new-*"
	damaged     = ".damaged"
	block       = 4096 // what a file takes at least
)

// ErrFull says that a record does not fit in the bound of the directory.
var ErrFull = errors.New("the directory holds as much as it may")

// ErrDamaged says that a record is not what was written.
var ErrDamaged = errors.New("kept call is damaged")

var errClosed = errors.New("spool is closed")

// Config bounds a Spool, in bytes.
type Config struct {
	Dir       string
	MaxRecord int64 // head and body of one record
	MaxBytes  int64 // all records, each taking whole blocks of the disk
}

// Spool is a directory of records. Safe for concurrent use.
type Spool struct {
	cfg  Config
	lock *os.File

	mu     sync.Mutex
	bytes  int64            // guarded by mu; of records, those being written included
	last   uint64           // guarded by mu; the newest record
	sizes  map[uint64]int64 // guarded by mu
	closed bool             // guarded by mu
}

// Open takes a directory, makes it if need be, and returns the numbers of its records,
// oldest first. A record that is damaged is put aside under another name and told in unread,
// as is one that cannot be read now, which stays; none keeps the others from being served.
func Open(cfg Config) (s *Spool, records []uint64, unread error, err error) {
	if err := makeDir(filepath.Clean(cfg.Dir)); err != nil {
		return nil, nil, nil, err
	}
	if err := ownDir(cfg.Dir); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", cfg.Dir, err)
	}
	s = &Spool{cfg: cfg, sizes: map[uint64]int64{}}
	if s.lock, err = acquire(filepath.Join(cfg.Dir, lockName)); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", cfg.Dir, err)
	}
	records, unread, err = s.scan()
	if err != nil {
		return nil, nil, nil, errors.Join(err, s.Close())
	}
	return s, records, unread, nil
}

// makeDir makes a directory whose name outlives a crash of the machine, as its records do.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) { // by somebody else meanwhile
			return nil
		}
		return err
	}
	return syncDir(parent)
}

// scan checks every file.
func (s *Spool) scan() (records []uint64, unread, err error) {
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		name := f.Name()
		if strings.HasPrefix(name, strings.TrimSuffix(tempPattern, "*")) {
			_ = os.Remove(filepath.Join(s.cfg.Dir, name)) // of a write that was cut off
			continue
		}
		n, ok := number(strings.TrimSuffix(name, damaged))
		if !ok {
			continue
		}
		s.last = max(s.last, n) // that of one put aside does not come again either
		if strings.HasSuffix(name, damaged) {
			continue
		}
		if _, _, err := s.Get(n); err != nil {
			if errors.Is(err, ErrDamaged) {
				err = s.setAside(n, err)
			}
			unread = errors.Join(unread, err)
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, nil, err
		}
		s.sizes[n] = blocks(info.Size())
		s.bytes += s.sizes[n]
		records = append(records, n)
	}
	slices.Sort(records)
	return records, unread, nil
}

func number(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	return n, err == nil && fileName(n) == name
}

func fileName(n uint64) string { return fmt.Sprintf("%016x%s", n, suffix) }

func (s *Spool) path(n uint64) string { return filepath.Join(s.cfg.Dir, fileName(n)) }

func blocks(size int64) int64 { return (size + block - 1) / block * block }

// setAside renames a record that cannot be read, and says why it could not.
func (s *Spool) setAside(n uint64, why error) error {
	return errors.Join(why, os.Rename(s.path(n), s.path(n)+damaged))
}

// Number reserves the place of the next record: numbers grow.
func (s *Spool) Number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// Put writes a record under a reserved number. Once it has returned nil, the record outlives
// a crash of the process and of the machine.
func (s *Spool) Put(n uint64, head, body []byte) error {
	if int64(len(head)+len(body)) > s.cfg.MaxRecord {
		return fmt.Errorf("record of %d bytes: at most %d", len(head)+len(body), s.cfg.MaxRecord)
	}
	data := encode(head, body)
	size := blocks(int64(len(data)))
	if err := s.reserve(size); err != nil {
		return err
	}
	if err := s.write(n, data); err != nil {
		s.mu.Lock()
		s.bytes -= size
		s.mu.Unlock()
		return err
	}
	s.mu.Lock()
	s.sizes[n] = size
	s.mu.Unlock()
	return nil
}

func (s *Spool) reserve(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.bytes+size > s.cfg.MaxBytes:
		return fmt.Errorf("%w: %d bytes", ErrFull, s.cfg.MaxBytes)
	}
	s.bytes += size
	return nil
}

func (s *Spool) write(n uint64, data []byte) (err error) {
	temp, err := os.CreateTemp(s.cfg.Dir, tempPattern) // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	if _, err := temp.Write(data); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Sync(); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), s.path(n)); err != nil {
		return err
	}
	if err := syncDir(s.cfg.Dir); err != nil {
		_ = os.Remove(s.path(n))
		return err
	}
	return nil
}

// maxRead is the longest file that is read: one that was written under a larger MaxRecord is
// whole all the same.
func (s *Spool) maxRead() int64 { return max(s.cfg.MaxRecord+2*maxFirstLine, s.cfg.MaxBytes) }

// Get reads a record.
func (s *Spool) Get(n uint64) (head, body []byte, err error) {
	path := s.path(n)
	// Opening something else than a regular file, a pipe for one, might block.
	info, err := os.Lstat(path)
	switch limit := s.maxRead(); {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%w: %s: not a regular file", ErrDamaged, path)
	case info.Size() > limit:
		return nil, nil, fmt.Errorf("%s: %d bytes, at most %d are read", path, info.Size(), limit)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(file, s.maxRead()))
	if err != nil {
		return nil, nil, err
	}
	if head, body, err = decode(data); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return head, body, nil
}

// Remove takes a record out. That it is gone already is no error. After a crash of the
// machine it may be back.
func (s *Spool) Remove(n uint64) error {
	if err := os.Remove(s.path(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.forget(n)
	return nil
}

// SetAside takes a record out that cannot be used, for people to look at.
func (s *Spool) SetAside(n uint64, why error) error {
	s.forget(n)
	return s.setAside(n, why)
}

func (s *Spool) forget(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= s.sizes[n]
	delete(s.sizes, n)
}

// Close gives the directory up; the records stay.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.lock.Close()
}
