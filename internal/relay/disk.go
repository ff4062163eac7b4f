// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/policyd/policyd/sdk/go/engine"
)

// The file holds what the upstream sent last, so that a relay which starts without one
// serves its cell all the same:
//
//	policyd relay 1 <sha256 of the rest, hex>\n
//	<meta as JSON>\n
//	<entries of a policyd.v1.Update, deletions included>
const (
	fileName    = "relay.state"
	fileMagic   = "policyd relay "
	fileVersion = 1
	maxFileSize = 512 << 20
)

// meta describes the entries that follow it.
type meta struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"revision"`
	// Since: deletions after it are among the entries.
	Since int64 `json:"deletions_known_since"`
	// AsOf is when the upstream last said that this is the newest, on policyd's clock.
	AsOf time.Time `json:"as_of"`
	// Written is when, on this machine's clock; Ahead is how far policyd's clock was ahead.
	Written time.Time     `json:"written"`
	Ahead   time.Duration `json:"clock_ahead"`
	From    string        `json:"from"` // address
	Home    string        `json:"home"` // names the relay
	// Token is policyd's proof that it served the revision.
	Token []byte `json:"token,omitempty"`
	// Left are the epochs before this one, with the times they ended on this machine's clock.
	Left map[string]time.Time `json:"left_epochs,omitempty"`
}

// image is a state as it was at one moment, cheap to take and immutable.
type image struct {
	meta    meta
	entries []sent
}

func (s *state) image() image {
	i := image{
		meta:    meta{Epoch: s.epoch, Revision: s.revision, Since: s.since, Token: s.token},
		entries: make([]sent, 0, len(s.entries)+len(s.deleted)),
	}
	for _, e := range s.entries {
		i.entries = append(i.entries, e.sent)
	}
	for key, t := range s.deleted {
		i.entries = append(i.entries, sent{key: key, revision: t.revision})
	}
	for epoch, ended := range s.left {
		if i.meta.Left == nil {
			i.meta.Left = make(map[string]time.Time)
		}
		i.meta.Left[epoch] = ended.Round(0)
	}
	return i
}

// Fields of Entry that hold a document.
const (
	fieldPolicy     protowire.Number = 3
	fieldKillSwitch protowire.Number = 4
)

func (i image) encode() ([]byte, error) {
	body, err := json.Marshal(i.meta)
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	body = append(body, '\n')
	for _, e := range i.entries {
		field := fieldPolicy
		if strings.HasPrefix(e.key, switchPrefix) {
			field = fieldKillSwitch
		}
		body = appendEntry(body, e, field)
	}
	if len(body) > maxFileSize {
		return nil, fmt.Errorf("state of %d bytes: at most %d", len(body), maxFileSize)
	}
	return withSum(body), nil
}

func withSum(body []byte) []byte {
	sum := sha256.Sum256(body)
	head := fmt.Sprintf("%s%d %s\n", fileMagic, fileVersion, hex.EncodeToString(sum[:]))
	return append([]byte(head), body...)
}

// decodeFile reads a file. Any input is allowed.
func decodeFile(data []byte, now time.Time) (*state, meta, error) {
	head, body, ok := bytes.Cut(data, []byte{'\n'})
	rest, ours := strings.CutPrefix(string(head), fileMagic)
	version, sum, two := strings.Cut(rest, " ")
	if !ok || !ours || !two {
		return nil, meta{}, errors.New("not a relay's state, or cut off")
	}
	if n, err := strconv.Atoi(version); err != nil || n != fileVersion {
		return nil, meta{}, fmt.Errorf("format version %.10q; this relay reads %d", version, fileVersion)
	}
	if have := sha256.Sum256(body); sum != hex.EncodeToString(have[:]) {
		return nil, meta{}, errors.New("checksum does not fit: damaged or cut off")
	}
	text, documents, ok := bytes.Cut(body, []byte{'\n'})
	var m meta
	if !ok {
		return nil, meta{}, errors.New("no documents after the description")
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, meta{}, fmt.Errorf("read the description: %w", err)
	}
	u, err := readUpdate(documents)
	if err != nil {
		return nil, meta{}, err
	}
	if m.Epoch == "" || m.Revision <= 0 || len(u.entries) > maxEntries+maxDeletions {
		return nil, meta{}, errors.New("the description does not fit")
	}
	s := &state{epoch: m.Epoch, revision: m.Revision, since: m.Since, token: bounded(m.Token), agreed: true, left: m.Left, entries: make(map[string]entry)}
	for _, e := range u.entries {
		if e.revision > m.Revision {
			return nil, meta{}, errors.New("a document is newer than the state")
		}
		s.put(e.key, e, now)
	}
	for key, e := range s.entries {
		s.hash += engine.EntryHash(key, e.revision)
	}
	return s, m, nil
}

// load reads the state in dir; nil without an error: there is none.
func load(dir string, now time.Time) (*state, meta, error) {
	path := filepath.Join(dir, fileName)
	// Opening something else than a regular file, a pipe for one, might block.
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, meta{}, nil
	}
	if err != nil {
		return nil, meta{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileSize+1<<10 {
		return nil, meta{}, fmt.Errorf("%s: no regular file of at most %d bytes", path, maxFileSize)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, meta{}, err
	}
	defer file.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1<<10))
	if err != nil {
		return nil, meta{}, err
	}
	s, m, err := decodeFile(data, now)
	if err != nil {
		return nil, meta{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, m, nil
}

// save replaces the file in dir: a crash leaves the whole old one or the whole new one.
func (i image) save(dir string) (err error) {
	data, err := i.encode()
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, fileName+".new-*") // mode 0600
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
	return os.Rename(temp.Name(), filepath.Join(dir, fileName))
}

// prepare makes dir and removes what crashes left of earlier writes.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(dir, fileName+".new-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		_ = os.Remove(path) // what stays takes some room
	}
	return nil
}
