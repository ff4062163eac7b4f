// SPDX-License-Identifier: Apache-2.0

// Package e2e_test drives the real programs: policyd, policyctl and a fleet of SDKs under
// real traffic, killed and restarted.
package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bin holds the programs under test.
var bin string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "policyd-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	build := exec.Command("go", "build", "-o", dir, "../cmd/policyd", "../cmd/policyctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	return m.Run()
}

// world is one policyd with its data, and a demo fleet that asks it.
type world struct {
	t                *testing.T
	grpc, http, demo string
	data, cache      string
	policyd          *process
}

// newWorld starts policyd, writes the demo's policies and starts the fleet.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, grpc: freeAddr(t), http: freeAddr(t), demo: freeAddr(t), data: filepath.Join(dir, "data"), cache: filepath.Join(dir, "cache")}
	w.startPolicyd()
	w.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	start(t, "demo-fleet", "policyd", "demo-fleet", "--listen", w.demo, "--policyd", w.grpc, "--cache-dir", w.cache)
	w.eventually("every instance is live", func() bool { return strings.Count(w.get("/instances"), " live ") == 20 })
	w.backend("fail=0.3&latency=5ms")
	w.eventually("the backend sees retries", func() bool { return w.counts().RetriesPerSecond > 0 })
	return w
}

func (w *world) startPolicyd() {
	w.t.Helper()
	w.policyd = start(w.t, "policyd", "policyd", "serve", "--grpc-addr", w.grpc, "--http-addr", w.http, "--data-dir", w.data)
	w.eventually("policyd is ready", func() bool {
		code, _ := w.fetch(http.MethodGet, "http://"+w.http+"/readyz")
		return code == http.StatusOK
	})
}

// ctl runs policyctl and requires its exit code; it returns standard output.
func (w *world) ctl(wantCode int, args ...string) string {
	w.t.Helper()
	code, stdout, stderr := w.ctlCode(args...)
	require.Equal(w.t, wantCode, code, "policyctl %s\n%s%s", strings.Join(args, " "), stdout, stderr)
	return stdout
}

func (w *world) ctlCode(args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), filepath.Join(bin, "policyctl"), args...)
	cmd.Env = append(os.Environ(), "POLICYCTL_ADDR="+w.grpc, "NO_COLOR=1")
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // exec returns it bare
		return exit.ExitCode(), out.String(), errOut.String()
	}
	require.NoError(w.t, err)
	return 0, out.String(), errOut.String()
}

type counts struct {
	CallsPerSecond, RetriesPerSecond, FailedPerSecond int
	Calls, Retries, Failed                            int
}

func (w *world) counts() counts {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.demo+"/backend", nil)
	require.NoError(w.t, err)
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	var c counts
	require.NoError(w.t, json.NewDecoder(resp.Body).Decode(&c))
	return c
}

func (w *world) backend(query string) {
	w.t.Helper()
	code, body := w.fetch(http.MethodPost, "http://"+w.demo+"/backend?"+query)
	require.Equal(w.t, http.StatusOK, code, body)
}

func (w *world) get(path string) string {
	w.t.Helper()
	_, body := w.fetch(http.MethodGet, "http://"+w.demo+path)
	return body
}

func (w *world) fetch(method, url string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, nil)
	require.NoError(w.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return resp.StatusCode, string(body)
}

// eventually waits until what holds, for a minute at most: how long it may take is not what
// these tests are about.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s\n%s\n%s", what, w.get("/backend"), w.get("/instances"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

type process struct {
	cmd  *exec.Cmd
	done chan error
}

func start(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	// Not bound to the test's context: the cleanup ends it and reports how it ended.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, program), args...)
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(15 * time.Second):
			t.Errorf("%s did not end within 15s of SIGTERM", name)
			p.signal(syscall.SIGKILL)
			<-p.done
		}
		_ = log.Close()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", name, content)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as a crash would.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
