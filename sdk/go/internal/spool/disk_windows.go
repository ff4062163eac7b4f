// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"os"
	"syscall"
)

// acquire opens a file that nobody else can open until it is closed, or the process ends in
// whatever way.
func acquire(path string) (*os.File, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	const shareNothing = 0
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, shareNothing, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		const sharingViolation syscall.Errno = 32
		if errors.Is(err, sharingViolation) {
			err = errors.New("another queue has it open")
		}
		return nil, err
	}
	return os.NewFile(uintptr(h), path), nil
}

// ownDir leaves permissions to the directory.
func ownDir(string) error { return nil }

// syncDir does nothing: directories cannot be synced.
func syncDir(string) error { return nil }
