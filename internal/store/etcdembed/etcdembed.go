// SPDX-License-Identifier: Apache-2.0

// Package etcdembed runs one etcd member inside the process. It opens no socket: the only
// way in is Client. A data directory belongs to one process at a time.
package etcdembed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/policyd/policyd/internal/fault"
)

// Defaults of Config.
const (
	DefaultQuota        = 2 << 30
	DefaultRetention    = time.Hour
	DefaultStartTimeout = 30 * time.Second

	// maxRequest holds a batch of 100 large documents together with its audit record.
	maxRequest = 10 << 20

	lockName   = "policyd.lock"
	firstName  = "policyd.first-start"
	memberName = "member"
)

// Config of an embedded member. Dir is required.
type Config struct {
	// Dir holds the data; it is made when it does not exist.
	Dir string
	// Logger gets what etcd has to say from warnings up; nil: nothing.
	Logger *slog.Logger
	// Quota bounds the size of the data in bytes; 0: DefaultQuota.
	Quota int64
	// Retention is how long old revisions are kept; 0: DefaultRetention.
	Retention time.Duration
	// StartTimeout bounds Start; 0: DefaultStartTimeout.
	StartTimeout time.Duration
	// FastTick shortens heartbeats and elections tenfold, so that a test is ready at once.
	FastTick bool
}

// Server is a running member. Its methods are safe for concurrent use.
type Server struct {
	dir    string
	etcd   *embed.Etcd
	client *clientv3.Client
	lock   *fileutil.LockedFile

	stop    sync.Once
	stopErr error
}

// Start runs a member on cfg.Dir and returns once it accepts writes. What cannot work, such
// as a directory that another process uses, is Unavailable or Invalid and says why.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, fault.New(fault.Invalid, "data_dir", "the data directory is not set")
	}
	lock, err := claim(cfg.Dir)
	if err != nil {
		return nil, err
	}
	etcd, err := boot(ctx, cfg, lock)
	if err != nil {
		return nil, err
	}
	return &Server{dir: cfg.Dir, etcd: etcd, client: v3client.New(etcd.Server), lock: lock}, nil
}

// Client returns the one client of the member, which calls it without a socket. It is
// closed with the Server.
func (s *Server) Client() *clientv3.Client { return s.client }

// Failed delivers an error if the member stops by itself.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Full reports whether writes are refused because the quota is used up.
func (s *Server) Full(ctx context.Context) (bool, error) {
	alarms, err := s.noSpace(ctx)
	return len(alarms) > 0, err
}

func (s *Server) noSpace(ctx context.Context) ([]*etcdserverpb.AlarmMember, error) {
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the alarms of the store: %w", err)
	}
	return slices.DeleteFunc(alarms.Alarms, func(a *etcdserverpb.AlarmMember) bool {
		return a.GetAlarm() != etcdserverpb.AlarmType_NOSPACE
	}), nil
}

// Reclaim frees the space of old revisions and lifts the alarm of a full store: it compacts
// up to now, defragments and disarms. Watches behind are cut and must read again.
func (s *Server) Reclaim(ctx context.Context) error {
	at, err := s.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read the revision of the store: %w", err)
	}
	_, err = s.client.Compact(ctx, at.Header.Revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact the store: %w", err)
	}
	if err := s.etcd.Server.Defragment(); err != nil {
		return fmt.Errorf("defragment the store: %w", err)
	}
	alarms, err := s.noSpace(ctx)
	if err != nil {
		return err
	}
	for _, alarm := range alarms {
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("lift the alarm of the store: %w", err)
		}
	}
	return nil
}

// Close stops the member and gives the directory back. It may be called many times.
func (s *Server) Close() error {
	s.stop.Do(func() {
		clientErr := s.client.Close()
		if errors.Is(clientErr, context.Canceled) {
			clientErr = nil
		}
		s.etcd.Close()
		s.stopErr = errors.Join(clientErr, s.lock.Close())
	})
	return s.stopErr
}

// claim makes the directory and takes the lock that keeps a second process out. etcd itself
// would wait for the other process without end.
func claim(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "data_dir", "make the data directory")
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case errors.Is(err, fileutil.ErrLocked):
		return nil, fault.New(fault.Unavailable, "data_dir_in_use", "the data directory %s is in use by another process", dir).
			WithHint("Stop the other policyd or choose another --data-dir.")
	case err != nil:
		return nil, fault.Wrap(err, fault.Unavailable, "data_dir", "the data directory "+dir+" is not writable")
	}
	return lock, nil
}

// boot starts the member. etcd panics on data that it cannot read, and may hang on a broken
// disk: both become errors. A member that comes up too late is stopped again, and the
// lock is given back only then.
func boot(ctx context.Context, cfg Config, lock *fileutil.LockedFile) (*embed.Etcd, error) {
	timeout := cfg.StartTimeout
	if timeout <= 0 {
		timeout = DefaultStartTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	type outcome struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan outcome)
	go func() {
		etcd, err := startMember(ctx, cfg)
		select {
		case started <- outcome{etcd, err}:
			if err != nil {
				_ = lock.Close()
			}
		case <-ctx.Done():
			if etcd != nil {
				etcd.Close()
			}
			_ = lock.Close()
		}
	}()
	select {
	case got := <-started:
		if got.err != nil {
			return nil, fault.Wrap(got.err, fault.Unavailable, "store_start", "start the store in "+cfg.Dir)
		}
		return got.etcd, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), fault.Unavailable, "store_start",
			fmt.Sprintf("the store in %s was not ready after %s", cfg.Dir, timeout))
	}
}

func startMember(ctx context.Context, cfg Config) (etcd *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			etcd, err = nil, fmt.Errorf("etcd cannot use the data: %v", r)
		}
	}()
	if err := beginFirst(cfg.Dir); err != nil {
		return nil, err
	}
	etcd, err = embed.StartEtcd(settings(cfg))
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		if err = endFirst(cfg.Dir); err == nil {
			return etcd, nil
		}
	case err = <-etcd.Err():
	case <-etcd.Server.StopNotify():
		err = errors.New("etcd stopped while it started")
	case <-ctx.Done():
		err = ctx.Err()
	}
	etcd.Close()
	return nil, err
}

// beginFirst marks the directory while its first start is under way. A first start that was
// interrupted leaves a member that never becomes ready; nobody has used it yet, so the next
// start begins anew.
func beginFirst(dir string) error {
	member, mark := filepath.Join(dir, memberName), filepath.Join(dir, firstName)
	if fileutil.Exist(mark) {
		if err := os.RemoveAll(member); err != nil {
			return fmt.Errorf("remove what an interrupted first start left: %w", err)
		}
	}
	if fileutil.Exist(member) {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	return syncDir(dir)
}

// endFirst takes the mark away, for good: were it to come back after a power cut, the next
// start would remove the data.
func endFirst(dir string) error {
	err := os.Remove(filepath.Join(dir, firstName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
