// SPDX-License-Identifier: Apache-2.0

//go:build unix

package state

import (
	"errors"
	"os"
	"syscall"
)

// ownFile reports an error unless the file is a regular one that only this user can write:
// the directory may be shared, as the temporary one is.
func ownFile(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm()&0o022 != 0 || ok && int64(stat.Uid) != int64(os.Geteuid()) {
		return errors.New("others can write it")
	}
	return nil
}
