// SPDX-License-Identifier: Apache-2.0

package etcdembed_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/store/etcdembed"
)

// startIn names the directory in which this binary shall start a member, and nothing else.
const startIn = "POLICYD_TEST_START_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(startIn); dir != "" {
		_, err := etcdembed.Start(context.Background(), etcdembed.Config{Dir: dir, FastTick: true})
		fmt.Println(err)
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, cfg etcdembed.Config) *etcdembed.Server {
	t.Helper()
	cfg.FastTick = true
	s, err := etcdembed.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestServer_keeps_data_over_a_restart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "the", "way")
	s := start(t, etcdembed.Config{Dir: dir})
	put, err := s.Client().Put(t.Context(), "k", "v")
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), "the data are nobody else's business")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "a second Close does nothing")

	s = start(t, etcdembed.Config{Dir: dir})
	got, err := s.Client().Get(t.Context(), "k")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.Equal(t, put.Header.Revision, got.Kvs[0].ModRevision)
	require.Equal(t, put.Header.ClusterId, got.Header.ClusterId)
}

func TestServer_opens_no_socket(t *testing.T) {
	start(t, etcdembed.Config{Dir: t.TempDir()})
	for _, port := range []string{"2379", "2380"} {
		// A listener of ours on the ports of etcd shows that nobody else has them.
		var listen net.ListenConfig
		l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:"+port)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", os.Getpid()))
	if err != nil {
		t.Skip("no /proc here")
	}
	own := ownSockets(t)
	for line := range strings.Lines(string(sockets)) {
		fields := strings.Fields(line)
		if len(fields) > 9 && fields[3] == "0A" { // listening
			require.NotContains(t, own, "socket:["+fields[9]+"]", "the process listens on %s", fields[1])
		}
	}
}

func ownSockets(t *testing.T) map[string]bool {
	t.Helper()
	own := make(map[string]bool)
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			own[target] = true
		}
	}
	return own
}

func TestServers_with_other_data_have_other_cluster_ids(t *testing.T) {
	ids := make(map[uint64]bool)
	for range 2 {
		got, err := start(t, etcdembed.Config{Dir: t.TempDir()}).Client().Get(t.Context(), "k")
		require.NoError(t, err)
		ids[got.Header.ClusterId] = true
	}
	require.Len(t, ids, 2)
}

func TestStart_refuses_what_cannot_work(t *testing.T) {
	t.Run("no directory", func(t *testing.T) {
		_, err := etcdembed.Start(t.Context(), etcdembed.Config{})
		require.Equal(t, fault.Invalid, fault.KindOf(err))
	})
	t.Run("a directory in use", func(t *testing.T) {
		dir := t.TempDir()
		first := start(t, etcdembed.Config{Dir: dir})
		_, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir})
		require.ErrorContains(t, err, "in use by another process")
		require.ErrorContains(t, err, dir)
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		require.NotEmpty(t, f.Hint)
		require.NoError(t, first.Close())
		start(t, etcdembed.Config{Dir: dir})
	})
	t.Run("a file in place of the directory", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		_, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: file})
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		require.ErrorContains(t, err, file)
	})
	t.Run("a directory that is not writable", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "dir")
		require.NoError(t, os.Mkdir(dir, 0o500))
		if os.Geteuid() == 0 {
			// root writes everywhere; a directory in place of the lock has the same effect.
			require.NoError(t, os.Mkdir(filepath.Join(dir, "policyd.lock"), 0o700))
		}
		_, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir})
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		require.ErrorContains(t, err, "not writable")
	})
	t.Run("data that etcd cannot read", func(t *testing.T) {
		dir := t.TempDir()
		s := start(t, etcdembed.Config{Dir: dir})
		_, err := s.Client().Put(t.Context(), "k", "v")
		require.NoError(t, err)
		require.NoError(t, s.Close())
		wals, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
		require.NoError(t, err)
		require.NotEmpty(t, wals)
		require.NoError(t, os.WriteFile(wals[0], bytes.Repeat([]byte("garbage!"), 1000), 0o600))

		// In processes of their own: etcd leaves things open when it fails to start.
		for range 2 {
			self, err := os.Executable()
			require.NoError(t, err)
			child := exec.CommandContext(t.Context(), self)
			child.Env = append(os.Environ(), startIn+"="+dir)
			said, err := child.CombinedOutput()
			require.NoError(t, err, "%s", said)
			require.Contains(t, string(said), "start the store in "+dir)
			require.NotContains(t, string(said), "goroutine", "an error, not a panic")
		}
	})
	t.Run("no time", func(t *testing.T) {
		dir := t.TempDir()
		_, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir, StartTimeout: time.Nanosecond})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "not ready after 1ns")
		require.Eventually(t, func() bool { // once the late member has stopped
			s, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir, FastTick: true})
			return err == nil && s.Close() == nil
		}, 20*time.Second, 50*time.Millisecond)
	})
}

func TestStart_begins_anew_after_an_interrupted_first_start(t *testing.T) {
	dir := t.TempDir()
	s := start(t, etcdembed.Config{Dir: dir})
	_, err := s.Client().Put(t.Context(), "k", "v")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	mark := filepath.Join(dir, "policyd.first-start")
	require.NoFileExists(t, mark, "data in use are never taken for a first start")

	// What a crash in the middle of the first start leaves: a mark, and files of no use.
	require.NoError(t, os.WriteFile(mark, nil, 0o600))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	s = start(t, etcdembed.Config{Dir: dir})
	got, err := s.Client().Get(t.Context(), "k")
	require.NoError(t, err)
	require.Empty(t, got.Kvs)
	require.NoFileExists(t, mark)
}

// lines is a writer that may be read meanwhile.
type lines struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.String()
}

func TestServer_logs_warnings_through_slog(t *testing.T) {
	var out lines
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, etcdembed.Config{Dir: t.TempDir(), Logger: log, Quota: 1 << 20})
	// The quota is used up: etcd warns that it raises an alarm.
	_, err := s.Client().Put(t.Context(), "k", strings.Repeat("x", 1<<20))
	require.Error(t, err)
	require.Contains(t, out.String(), `"component":"etcd"`)
	// etcd's warnings are information here, and its information is not heard at all.
	require.Contains(t, out.String(), `"level":"INFO"`)
	require.NotContains(t, out.String(), "established raft logger")
	require.NotContains(t, out.String(), `"level":"ERROR"`)
}

func TestServer_reclaims_a_full_store(t *testing.T) {
	s := start(t, etcdembed.Config{Dir: t.TempDir(), Quota: 4 << 20})
	var full error
	for i := 0; full == nil; i++ {
		require.Less(t, i, 100)
		_, full = s.Client().Put(t.Context(), "k", strings.Repeat("x", 200<<10))
	}
	_, err := s.Client().Put(t.Context(), "small", "x")
	require.Error(t, err, "the alarm stays on")
	isFull, err := s.Full(t.Context())
	require.NoError(t, err)
	require.True(t, isFull)
	require.NoError(t, s.Reclaim(t.Context()))
	isFull, err = s.Full(t.Context())
	require.NoError(t, err)
	require.False(t, isFull)
	_, err = s.Client().Put(t.Context(), "small", "x")
	require.NoError(t, err)
	got, err := s.Client().Get(t.Context(), "k", clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
	require.NoError(t, s.Reclaim(t.Context()))
	require.NoError(t, s.Reclaim(t.Context()), "nothing to do is no error")
}
