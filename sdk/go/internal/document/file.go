// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"time"
)

// ParseFile reads a file of policies: JSON as [Parse] does, or else YAML, in which a switch
// must say when it ends, for a file is read at any time. A file without a document is an
// error: most likely it is just being written.
func ParseFile(data []byte, now time.Time) (*File, error) {
	if inner, ok := bytes.CutPrefix(bytes.TrimSpace(data), []byte("{")); ok && bytes.HasPrefix(bytes.TrimSpace(inner), []byte(`"`)) {
		return Parse(data, now)
	}
	file, roots, err := parseYAML(data, now, false)
	if err == nil && roots == 0 {
		return nil, errorAt(data, len(data), "there is no document")
	}
	if err != nil {
		return nil, err
	}
	file.listRevision()
	return file, nil
}
