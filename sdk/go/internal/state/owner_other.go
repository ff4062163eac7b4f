// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package state

import (
	"errors"
	"os"
)

// ownFile reports an error unless the file is a regular one; permissions are left to the
// directory.
func ownFile(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	return nil
}
