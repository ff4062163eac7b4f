// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"bytes"
	"cmp"
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

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// The cache file holds what was in force, so that a process which starts without policyd
// does not start without policies:
//
//	policyd cache 1 <sha256 of the rest, hex>\n
//	<cacheMeta as JSON>\n
//	<policyd.v1.Update>
const (
	cacheMagic   = "policyd cache "
	cacheVersion = 1
	maxCacheSize = 256 << 20
)

// cacheMeta describes the Update that follows it.
type cacheMeta struct {
	// Written is when, on this machine's clock; ClockOffset is how far policyd's clock was
	// ahead of it.
	Written     time.Time     `json:"written"`
	ClockOffset time.Duration `json:"clock_offset"`
	AsOf        time.Time     `json:"as_of"`
	From        string        `json:"from"` // address
	// Whole is false when policyd sent documents that are not in here because they were
	// rejected: then the state is no point to resume from.
	Whole bool `json:"whole"`
	// Ended are switches that are gone while their effects still fade.
	Ended []cachedSwitch `json:"ended,omitempty"`
}

// cachedSwitch is a KillSwitch in its encoded form; EndedAt is on policyd's clock.
type cachedSwitch struct {
	Document []byte    `json:"document"`
	Revision int64     `json:"revision"`
	EndedAt  time.Time `json:"ended_at"`
}

// cached is the decoded content of a cache file.
type cached struct {
	meta   cacheMeta
	update *policydv1.Update
}

func (c cached) encode() ([]byte, error) {
	meta, err := json.Marshal(c.meta)
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
	sum := sha256.Sum256(body)
	head := fmt.Sprintf("%s%d %s\n", cacheMagic, cacheVersion, hex.EncodeToString(sum[:]))
	return append([]byte(head), body...), nil
}

// decodeCache reads a cache file. Any input is allowed.
func decodeCache(data []byte) (cached, error) {
	head, body, ok := bytes.Cut(data, []byte{'\n'})
	rest, isCache := strings.CutPrefix(string(head), cacheMagic)
	version, sum, two := strings.Cut(rest, " ")
	if !ok || !isCache || !two {
		return cached{}, errors.New("not a cache file, or cut off")
	}
	if n, err := strconv.Atoi(version); err != nil || n != cacheVersion {
		return cached{}, fmt.Errorf("format version %.10q; this SDK reads %d", version, cacheVersion)
	}
	if have := sha256.Sum256(body); sum != hex.EncodeToString(have[:]) {
		return cached{}, errors.New("checksum does not fit: damaged or cut off")
	}
	meta, message, ok := bytes.Cut(body, []byte{'\n'})
	if !ok {
		return cached{}, errors.New("no documents after the description")
	}
	c := cached{update: &policydv1.Update{}}
	if err := json.Unmarshal(meta, &c.meta); err != nil {
		return cached{}, fmt.Errorf("read the description: %w", err)
	}
	if err := proto.Unmarshal(message, c.update); err != nil {
		return cached{}, fmt.Errorf("read the documents: %w", err)
	}
	return c, nil
}

// cacheFile is where one client keeps its state: paths in order of preference, none when the
// cache is off.
type cacheFile struct{ paths []string }

// newCacheFile names the file after the instance's place and targets, so that clients which
// see different documents do not share one.
func newCacheFile(c *config) cacheFile {
	var dirs []string
	switch {
	case c.cacheDir == nil:
		if dir, err := os.UserCacheDir(); err == nil {
			dirs = append(dirs, filepath.Join(dir, "policyd"))
		}
		dirs = append(dirs, filepath.Join(os.TempDir(), "policyd-"+strconv.Itoa(os.Getuid())))
	case *c.cacheDir != "":
		dirs = append(dirs, *c.cacheDir)
	}
	h := sha256.New()
	for _, s := range append([]string{c.namespace, c.service}, scopeNames(c.targets)...) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	name := cmp.Or(c.namespace, string(engine.Global))
	if c.service != "" {
		name += "-" + c.service
	}
	name = fmt.Sprintf("%s-%x.cache", name, h.Sum(nil)[:6])
	for i, dir := range dirs {
		dirs[i] = filepath.Join(dir, name)
	}
	return cacheFile{dirs}
}

// load returns the newest readable content. That there is no file is no error.
func (f cacheFile) load() (newest *cached, err error) {
	for _, path := range f.paths {
		c, failure := loadCache(path)
		switch {
		case errors.Is(failure, fs.ErrNotExist):
		case failure != nil:
			err = errors.Join(err, failure)
		case newest == nil || c.meta.Written.After(newest.meta.Written):
			newest = &c
		}
	}
	return newest, err
}

func loadCache(path string) (cached, error) {
	// Opening something else than a regular file, a pipe for one, might block.
	if info, err := os.Lstat(path); err != nil {
		return cached{}, err
	} else if !info.Mode().IsRegular() {
		return cached{}, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return cached{}, err
	}
	defer file.Close() //nolint:errcheck // read only
	if err := ownFile(file); err != nil {
		return cached{}, fmt.Errorf("%s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxCacheSize+1))
	if err != nil {
		return cached{}, err
	}
	if len(data) > maxCacheSize {
		return cached{}, fmt.Errorf("%s: larger than %d bytes", path, maxCacheSize)
	}
	c, err := decodeCache(data)
	if err != nil {
		return cached{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// save replaces the file at the first path that can be written: a crash leaves the whole
// old one or the whole new one.
func (f cacheFile) save(c cached) error {
	data, err := c.encode()
	if err != nil {
		return err
	}
	var failures []error
	for _, path := range f.paths {
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

// sweep removes what crashes left behind of earlier writes.
func (f cacheFile) sweep(now time.Time) {
	for _, path := range f.paths {
		left, _ := filepath.Glob(path + ".new-*") // the pattern is well formed
		for _, temp := range left {
			if info, err := os.Lstat(temp); err == nil && now.Sub(info.ModTime()) > time.Hour {
				_ = os.Remove(temp)
			}
		}
	}
}
