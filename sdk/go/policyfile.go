// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/document"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

const maxPolicyFile = 64 << 20

// policyFile is a file of policies that may change at any time: written in place, renamed
// over, or moved by a symbolic link, as a mounted ConfigMap is. Used by one goroutine.
type policyFile struct {
	path    string
	info    fs.FileInfo // of the content last read; nil before
	readAt  time.Time
	sum     [sha256.Size]byte
	refused error  // why the content last read is not in force; nil: it is
	failure string // last one that was logged
}

func (f *policyFile) source() string { return sourceFile + " " + filepath.Base(f.path) }

// unchanged reports whether a look at the file's description is enough. A file that was
// written within the clock's grain of the last reading is read again.
func (f *policyFile) unchanged(info fs.FileInfo) bool {
	const grain = 2 * time.Second
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() &&
		f.info.ModTime().Equal(info.ModTime()) && f.readAt.Sub(info.ModTime()) > grain
}

// read returns the file's content; changed is false, and the content nil, when it is what it
// was at the last call that returned some, or refused it for the same reason.
func (f *policyFile) read(now time.Time) (next *content, changed bool, err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, false, err
	}
	if f.unchanged(info) {
		return nil, false, f.refused
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s: not a regular file", f.path)
	}
	file, err := os.Open(f.path)
	if err != nil {
		return nil, false, err
	}
	defer file.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(file, maxPolicyFile+1))
	if err != nil {
		return nil, false, err
	}
	if len(data) > maxPolicyFile {
		return nil, false, fmt.Errorf("%s: larger than %d bytes", f.path, maxPolicyFile)
	}
	if after, err := file.Stat(); err != nil || after.Size() != int64(len(data)) {
		return nil, false, fmt.Errorf("%s: is being written", f.path) // half of a YAML file may be a valid one
	}
	sum := sha256.Sum256(data)
	same := f.info != nil && sum == f.sum
	f.info, f.readAt, f.sum = info, now, sum
	if same {
		return nil, false, f.refused
	}
	if next, f.refused = parsePolicies(data, now); f.refused != nil {
		f.refused = fmt.Errorf("%s: %w", f.path, f.refused)
		return nil, true, f.refused
	}
	return next, true, nil
}

// parsePolicies reads a content as a whole or not at all.
func parsePolicies(data []byte, now time.Time) (*content, error) {
	file, err := document.ParseFile(data, now)
	if err != nil {
		return nil, err
	}
	next := content{revision: file.Revision, documents: make(map[engine.Scope]*engine.Document, len(file.Documents))}
	for i := range file.Documents {
		d := &file.Documents[i]
		next.documents[d.Scope] = d
	}
	for _, sw := range file.Switches {
		sw.Ends = now.Add(sw.Ends.Sub(now)) // onto the monotonic clock
		next.switches = append(next.switches, sw)
	}
	state.SortSwitches(next.switches)
	return &next, nil
}

// pollFile takes up what changed in the policy file. A file that is away or cannot be read
// leaves everything as it is; each reason is logged once.
func (c *Client) pollFile(now time.Time) {
	next, changed, err := c.file.read(now)
	switch {
	case err != nil:
		if c.file.failure != err.Error() {
			c.file.failure = err.Error()
			c.link.update(func(s *Status) { s.LastErr = err })
			c.cfg.logger.Warn("policy file not taken up; the last good content stays", "error", err)
			if !errors.Is(err, fs.ErrNotExist) {
				c.policyChanged(PolicyEvent{Revision: c.revision(), Err: err})
			}
		}
	case changed:
		c.file.failure = ""
		c.use(*next, c.file.source(), now)
		c.cfg.logger.Info("policy file taken up", "file", c.file.path, "revision", next.revision, "documents", len(next.documents))
	case c.file.failure != "":
		// The content that is in force is back.
		c.file.failure = ""
		c.link.update(func(s *Status) { s.LastErr = nil })
	}
}
