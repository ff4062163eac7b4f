// SPDX-License-Identifier: Apache-2.0

package lean_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/push/lean"
)

// player starts another client, to play one scene against an address.
type player func(ctx context.Context, addr, scene string) *exec.Cmd

// TestInterop_grpc_js plays the scenes of testdata/grpcjs/client.mjs.
func TestInterop_grpc_js(t *testing.T) {
	const dir = "testdata/grpcjs"
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat(dir + "/node_modules/@grpc/grpc-js")
	}
	if err != nil {
		t.Skipf("NOT PROVEN: interop with grpc-js needs Node and `npm ci` in internal/push/lean/%s, which `make test` runs: %v", dir, err)
	}
	interop(t, func(ctx context.Context, addr, scene string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, node, "client.mjs", addr, scene)
		cmd.Dir = dir
		return cmd
	})
}

// TestInterop_c_core plays the scenes of testdata/ccore/client.py, with a client on the C core,
// which stands behind gRPC of C++, Python, Ruby, PHP and others.
func TestInterop_c_core(t *testing.T) {
	python := ""
	var err error
	for _, python = range []string{"/usr/bin/python3", "python3"} {
		var out []byte
		if out, err = exec.CommandContext(t.Context(), python, "-c", "import grpc").CombinedOutput(); err == nil {
			break
		}
		err = fmt.Errorf("%w: %s", err, out)
	}
	if err != nil {
		t.Skipf("NOT PROVEN: interop with gRPC's C core needs Python with grpcio, the package python3-grpcio that `make test` installs where it may: %v", err)
	}
	interop(t, func(ctx context.Context, addr, scene string) *exec.Cmd {
		return exec.CommandContext(ctx, python, "testdata/ccore/client.py", addr, scene)
	}, "slow")
}

// interop plays the scenes that every client has, and more.
func interop(t *testing.T, with player, more ...string) {
	t.Helper()
	play := func(t *testing.T, b *bench, scene string) (*exec.Cmd, *syncBuffer) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		t.Cleanup(cancel)
		cmd, out := with(ctx, b.addr, scene), &syncBuffer{}
		cmd.Stderr = out
		return cmd, out
	}
	b := start(t, lean.Limits{MinPing: 500 * time.Millisecond})
	for _, scene := range append([]string{
		"talk", "large", "status", "headers", "deadline", "cancel", "end", "parallel", "keepalive", "handover", "mixed", "unknown",
	}, more...) {
		t.Run(scene, func(t *testing.T) {
			cmd, out := play(t, b, scene)
			require.NoError(t, cmd.Run(), "%s", out)
		})
	}
	t.Run("goaway", func(t *testing.T) {
		b := start(t, lean.Limits{})
		cmd, out := play(t, b, "goaway")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		said, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(said).ReadString('\n')
		require.NoError(t, err, "%s", out)
		require.Equal(t, "open\n", line)
		done := make(chan struct{})
		go func() { b.lean.Shutdown(context.Background()); close(done) }()
		_, err = io.WriteString(in, "told\n")
		require.NoError(t, err)
		require.NoError(t, cmd.Wait(), "%s", out)
		<-done
	})
	eventually(t, "nothing is left", func() bool { return goroutines() == 0 })
}

// TestInterop_net_http speaks gRPC through the standard library's client of HTTP/2, which is
// what connect-go uses.
func TestInterop_net_http(t *testing.T) {
	b := start(t, lean.Limits{})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	call := func(t *testing.T, ctx context.Context, path string) (*http.Response, io.WriteCloser) {
		r, w := io.Pipe()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.addr+path, r)
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/grpc+proto")
		req.Header.Set("Te", "trailers")
		if at, ok := ctx.Deadline(); ok {
			req.Header.Set("Grpc-Timeout", fmt.Sprintf("%dm", time.Until(at).Milliseconds()))
		}
		go func() { _, _ = w.Write(message("headers")) }()
		resp, err := client.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp, w
	}
	hear := func(r io.Reader) (string, error) {
		head := make([]byte, 5)
		if _, err := io.ReadFull(r, head); err != nil {
			return "", err
		}
		b := make([]byte, int(head[1])<<24|int(head[2])<<16|int(head[3])<<8|int(head[4]))
		_, err := io.ReadFull(r, b)
		return string(b), err
	}
	t.Run("both directions, large and small, and the status", func(t *testing.T) {
		resp, w := call(t, t.Context(), method)
		require.Equal(t, "1", resp.Header.Get("Before"))
		for i := range 100 {
			_, err := w.Write(message(fmt.Sprint("echo ", i)))
			require.NoError(t, err)
			m, err := hear(resp.Body)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), m)
		}
		_, err := w.Write(message("big 20000000"))
		require.NoError(t, err)
		m, err := hear(resp.Body)
		require.NoError(t, err)
		require.Len(t, m, 20_000_000)
		_, err = w.Write(message("size" + strings.Repeat(" ", 1_000_000-4)))
		require.NoError(t, err)
		m, err = hear(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "1000000", m)
		_, err = w.Write(message("fail 5"))
		require.NoError(t, err)
		_, err = hear(resp.Body)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "5", resp.Trailer.Get("Grpc-Status"))
		require.Equal(t, "s%C3%BC%C3%9F %25 so%0Ait is", resp.Trailer.Get("Grpc-Message"))
		require.Equal(t, "2", resp.Trailer.Get("After"))
	})
	t.Run("a half-closed stream ends with OK", func(t *testing.T) {
		resp, w := call(t, t.Context(), method)
		require.NoError(t, w.Close())
		_, err := hear(resp.Body)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "0", resp.Trailer.Get("Grpc-Status"))
	})
	t.Run("a deadline that only the server keeps", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		resp, w := call(t, ctx, method)
		_, err := w.Write(message("wait"))
		require.NoError(t, err)
		_, err = hear(resp.Body)
		if errors.Is(err, io.EOF) {
			require.Equal(t, "4", resp.Trailer.Get("Grpc-Status"))
		} else {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
	t.Run("a canceled request leaves the connection alone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		resp, body := call(t, ctx, method)
		cancel()
		require.NoError(t, body.Close()) // this client looks at its context between two reads of it
		_, err := hear(resp.Body)
		require.Error(t, err)
		again, w := call(t, t.Context(), method)
		_, err = w.Write(message("echo x"))
		require.NoError(t, err)
		m, err := hear(again.Body)
		require.NoError(t, err)
		require.Equal(t, "x", m)
	})
}
