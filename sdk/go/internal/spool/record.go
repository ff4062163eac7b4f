// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A record is a file:
//
//	policyd call 1 <sha256 of the rest, hex>\n
//	<bytes of the head>\n
//	<head><body>
const (
	magic        = "policyd call "
	version      = "1"
	maxFirstLine = 128
)

func encode(head, body []byte) []byte {
	size := strconv.Itoa(len(head)) + "\n"
	sum := sha256.New()
	sum.Write([]byte(size))
	sum.Write(head)
	sum.Write(body)
	first := magic + version + " " + hex.EncodeToString(sum.Sum(nil)) + "\n" + size
	data := make([]byte, 0, len(first)+len(head)+len(body))
	return append(append(append(data, first...), head...), body...)
}

// decode reads a file. Any input is allowed.
func decode(data []byte) (head, body []byte, err error) {
	end := bytes.IndexByte(data[:min(len(data), maxFirstLine)], '\n')
	text, ok := strings.CutPrefix(string(data[:max(end, 0)]), magic)
	if !ok {
		return nil, nil, errors.New("not a kept call, or cut off")
	}
	have, sum, _ := strings.Cut(text, " ")
	if have != version {
		return nil, nil, fmt.Errorf("format version %.10q; this SDK reads %s", have, version)
	}
	rest := data[end+1:]
	if is := sha256.Sum256(rest); sum != hex.EncodeToString(is[:]) {
		return nil, nil, errors.New("checksum does not fit: damaged or cut off")
	}
	digits, rest, _ := bytes.Cut(rest, []byte{'\n'})
	size, err := strconv.ParseUint(string(digits), 10, 32)
	if err != nil || size > uint64(len(rest)) || strconv.FormatUint(size, 10) != string(digits) {
		return nil, nil, errors.New("length of the head is not one")
	}
	return rest[:size:size], rest[size:], nil
}
