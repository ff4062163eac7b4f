// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// The cache file holds what was in force, so that a process which starts without policyd
// does not start without policies:
//
//	policyd cache 1 <sha256 of the rest, hex>\n
//	<Meta as JSON>\n
//	<policyd.v1.Update>
const (
	cacheMagic   = "policyd cache "
	cacheVersion = 1
	maxCacheSize = 256 << 20
)

// Meta describes the Update that follows it.
type Meta struct {
	// Written is when, on this machine's clock; ClockOffset is how far policyd's clock was
	// ahead of it.
	Written     time.Time     `json:"written"`
	ClockOffset time.Duration `json:"clock_offset"`
	AsOf        time.Time     `json:"as_of"`
	From        string        `json:"from"` // address
	// Whole is false when policyd sent documents that are not in here because they were
	// rejected: then the state is no point to resume from.
	Whole bool `json:"whole"`
	// Left are epochs that were held before; Token is policyd's proof that it sent the Update.
	Left  []string `json:"left,omitempty"`
	Token []byte   `json:"token,omitempty"`
	// Ended are switches that are gone while their effects still fade.
	Ended []cachedSwitch `json:"ended,omitempty"`
}

// cachedSwitch is a KillSwitch in its encoded form; EndedAt is on policyd's clock.
type cachedSwitch struct {
	Document []byte    `json:"document"`
	Revision int64     `json:"revision"`
	EndedAt  time.Time `json:"ended_at"`
}

// Saved is the content of a cache file.
type Saved struct {
	Meta   Meta
	update *policydv1.Update
}

func (c Saved) encode() ([]byte, error) {
	meta, err := json.Marshal(c.Meta)
	if err != nil {
		return nil, fmt.Errorf("encode cache: %w", err)
	}
	body := append(meta, '\n')
	if body, err = (proto.MarshalOptions{}).MarshalAppend(body, c.update); err != nil {
		return nil, fmt.Errorf("encode cache: %w", err)
	}
	if len(body) > maxCacheSize {
		return nil, fmt.Errorf("cache of %d bytes: at most %d", len(body), maxCacheSize)
	}
	return withHeader(body), nil
}

func withHeader(body []byte) []byte {
	sum := sha256.Sum256(body)
	head := fmt.Sprintf("%s%d %s\n", cacheMagic, cacheVersion, hex.EncodeToString(sum[:]))
	return append([]byte(head), body...)
}

// decodeCache reads a cache file. Any input is allowed.
func decodeCache(data []byte) (Saved, error) {
	head, body, ok := bytes.Cut(data, []byte{'\n'})
	rest, isCache := strings.CutPrefix(string(head), cacheMagic)
	version, sum, two := strings.Cut(rest, " ")
	if !ok || !isCache || !two {
		return Saved{}, errors.New("not a cache file, or cut off")
	}
	if n, err := strconv.Atoi(version); err != nil || n != cacheVersion {
		return Saved{}, fmt.Errorf("format version %.10q; this SDK reads %d", version, cacheVersion)
	}
	if have := sha256.Sum256(body); sum != hex.EncodeToString(have[:]) {
		return Saved{}, errors.New("checksum does not fit: damaged or cut off")
	}
	meta, message, ok := bytes.Cut(body, []byte{'\n'})
	if !ok {
		return Saved{}, errors.New("no documents after the description")
	}
	c := Saved{update: &policydv1.Update{}}
	if err := json.Unmarshal(meta, &c.Meta); err != nil {
		return Saved{}, fmt.Errorf("read the description: %w", err)
	}
	if err := proto.Unmarshal(message, c.update); err != nil {
		return Saved{}, fmt.Errorf("read the documents: %w", err)
	}
	return c, nil
}

// File is where one client keeps its state: paths in order of preference, none to keep
// nothing.
type File struct{ Paths []string }

// Load returns the newest readable content. That there is no file is no error.
func (f File) Load() (newest *Saved, err error) {
	for _, path := range f.Paths {
		c, failure := loadCache(path)
		switch {
		case errors.Is(failure, fs.ErrNotExist):
		case failure != nil:
			err = errors.Join(err, failure)
		case newest == nil || c.Meta.Written.After(newest.Meta.Written):
			newest = &c
		}
	}
	return newest, err
}

func loadCache(path string) (Saved, error) {
	// Opening something else than a regular file, a pipe for one, might block.
	if info, err := os.Lstat(path); err != nil {
		return Saved{}, err
	} else if !info.Mode().IsRegular() {
		return Saved{}, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return Saved{}, err
	}
	defer file.Close() //nolint:errcheck // read only
	if err := ownFile(file); err != nil {
		return Saved{}, fmt.Errorf("%s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxCacheSize+1))
	if err != nil {
		return Saved{}, err
	}
	if len(data) > maxCacheSize {
		return Saved{}, fmt.Errorf("%s: larger than %d bytes", path, maxCacheSize)
	}
	c, err := decodeCache(data)
	if err != nil {
		return Saved{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Save replaces the file at the first path that can be written: a crash leaves the whole
// old one or the whole new one.
func (f File) Save(i *Image) error {
	data, err := i.saved().encode()
	if err != nil {
		return err
	}
	var failures []error
	for _, path := range f.Paths {
		err := replaceFile(path, data)
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

func replaceFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".new-*") // mode 0600
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
	return os.Rename(temp.Name(), path)
}

// Sweep removes what crashes left behind of earlier writes.
func (f File) Sweep(now time.Time) {
	for _, path := range f.Paths {
		dir, name := filepath.Split(path)
		files, _ := os.ReadDir(dir) // one that cannot be read has nothing of ours
		for _, f := range files {
			if !strings.HasPrefix(f.Name(), name+".new-") {
				continue
			}
			if info, err := f.Info(); err == nil && now.Sub(info.ModTime()) > time.Hour {
				_ = os.Remove(filepath.Join(dir, f.Name()))
			}
		}
	}
}
