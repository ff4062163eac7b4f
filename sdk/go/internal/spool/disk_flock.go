// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package spool

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// acquire locks a file until it is closed, or the process ends in whatever way.
func acquire(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another queue has it open")
		}
		return nil, errors.Join(fmt.Errorf("lock: %w", err), file.Close())
	}
	return file, nil
}

// ownDir reports an error unless the directory is one that only this user can write.
func ownDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm()&0o022 != 0 || ok && int64(stat.Uid) != int64(os.Geteuid()) {
		return errors.New("others can write it")
	}
	return nil
}

// syncDir makes the names in a directory outlive a crash of the machine.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
