// SPDX-License-Identifier: Apache-2.0

package demo_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/policyd/policyd/internal/demo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a demo whose policyd is not there, and returns its address.
func start(t *testing.T) (addr string, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	addr, done := free(t), make(chan error, 1)
	go func() {
		done <- demo.Run(ctx, demo.Config{
			Listen: addr, Policyd: free(t), CacheDir: t.TempDir(), CallsPerSecond: 20,
			Logger: slog.New(slog.DiscardHandler),
		})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		for err := range done {
			require.NoError(t, err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	require.Eventually(t, func() bool { return demo.Running(t.Context(), addr) }, 10*time.Second, 5*time.Millisecond)
	return addr, done
}

// free is an address on which nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

func curl(t *testing.T, method, target string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+target, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(text)
}

func TestDemo_has_traffic_also_when_policyd_is_gone(t *testing.T) {
	addr, _ := start(t)
	require.Eventually(t, func() bool {
		_, counts := curl(t, http.MethodGet, addr+"/backend")
		return regexp.MustCompile(`^calls [1-9]\d*/s`).MatchString(counts)
	}, 10*time.Second, 50*time.Millisecond)
	_, list := curl(t, http.MethodGet, addr+"/instances")
	require.Len(t, strings.Split(strings.TrimSpace(list), "\n"), 1+20, "a header and 20 instances\n%s", list)
}

func TestDemo_every_line_of_the_usage_works(t *testing.T) {
	addr, ended := start(t)
	_, usage := curl(t, http.MethodGet, addr+"/")
	require.Equal(t, demo.Usage(addr), usage)
	lines := regexp.MustCompile(`(?m)^curl (-X POST )?'?([^' ]+)'? `).FindAllStringSubmatch(usage, -1)
	require.Len(t, lines, 7)
	for _, line := range lines {
		method := http.MethodGet
		if line[1] != "" {
			method = http.MethodPost
		}
		status, body := curl(t, method, line[2])
		require.Equal(t, http.StatusOK, status, "%s\n%s", line[0], body)
	}
	// The last line ends the fleet.
	require.NoError(t, <-ended)
	require.False(t, demo.Running(t.Context(), addr))
}

func TestDemo_says_what_is_wrong_and_changes_nothing(t *testing.T) {
	addr, _ := start(t)
	_, before := curl(t, http.MethodGet, addr+"/backend")
	for query, want := range map[string]string{
		"fail=2&latency=1s": "fail=2: must be from 0 to 1",
		"fail=NaN":          "must be from 0 to 1",
		"latency=1h":        "must be from 0s to 1m",
		"latency=5":         "missing unit",
		"capacity=-1":       "must not be negative",
		"speed=1":           "unknown setting (fail, latency, capacity)",
	} {
		status, body := curl(t, http.MethodPost, addr+"/backend?"+query)
		require.Equal(t, http.StatusBadRequest, status, query)
		require.Contains(t, body, want)
	}
	_, after := curl(t, http.MethodGet, addr+"/backend")
	settings := func(s string) string { _, turned, _ := strings.Cut(s, "fail="); return turned }
	require.Equal(t, settings(before), settings(after))
	status, body := curl(t, http.MethodPost, addr+"/instances/"+url.PathEscape("cart-99")+"/restart")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "see GET /instances")
}
