// SPDX-License-Identifier: Apache-2.0

// Package policies_test shows what each document of this folder guards against: real HTTP
// over loopback, or over connections in memory where time has to pass, which is virtual.
package policies_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// read returns a document of this folder.
func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

// load puts a document of this folder in force for a client.
func load(t testing.TB, file string) *policytest.Fake {
	t.Helper()
	return policytest.New(t, read(t, file))
}

// edit puts a document in force with one setting changed, to show a part of it alone.
func edit(t testing.TB, f *policytest.Fake, file, from, to string) {
	t.Helper()
	text := read(t, file)
	require.Equal(t, 1, strings.Count(text, from), "%s holds %q once", file, from)
	f.Apply(strings.Replace(text, from, to, 1))
}

// loopback serves h on 127.0.0.1. It is made outside of a bubble and used within one: its
// connections end with each answer, so that no read in progress keeps virtual time from
// passing.
func loopback(t *testing.T, h http.HandlerFunc) http.RoundTripper {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	addr := server.Listener.Addr().String()
	var dialer net.Dialer
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, addr)
	}}
}

// inMemory serves h with net/http over connections in memory, within a bubble.
func inMemory(t *testing.T, h http.HandlerFunc) *http.Transport {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	transport := &http.Transport{DialContext: l.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
	return transport
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { close(l.done); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// call makes a request and returns its status, or the error.
func call(ctx context.Context, client *http.Client, method, url string) (int, error) {
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// fixedRetries is what the reports began with: so many retries at once, after a time-out of
// each attempt, whatever fails. It returns the number of sends.
func fixedRetries(ctx context.Context, retries int, timeout time.Duration, send func(context.Context) error) (sends int, err error) {
	for sends = 1; ; sends++ {
		attempt, cancel := context.WithTimeout(ctx, timeout)
		err = send(attempt)
		cancel()
		if err == nil || sends > retries {
			return sends, err
		}
	}
}

// counted counts requests that are sent, before the network.
type counted struct {
	base http.RoundTripper
	n    atomic.Int64
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.base.RoundTrip(r)
}

// transport puts base under the policies of f.
func transport(f *policytest.Fake, base http.RoundTripper) *http.Client {
	return &http.Client{Transport: f.Client().Transport(base)}
}

// files are the documents of this folder.
func files(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

func TestExamples_are_valid_together_and_without_errors_of_lint(t *testing.T) {
	set, explained := policy.Set{}, map[engine.Scope]string{}
	var scopes []engine.Scope
	for _, file := range files(t) {
		text := read(t, file)
		require.True(t, strings.HasPrefix(text, "# Guards against: "), "%s says what it guards against", file)
		objects, err := document.Decode(file, []byte(text))
		require.NoError(t, err)
		for _, o := range objects {
			require.NotNil(t, o.Policy, file)
			require.NotContains(t, set, o.Policy.Scope)
			set[o.Policy.Scope], explained[o.Policy.Scope] = o.Policy, text
			scopes = append(scopes, o.Policy.Scope)
		}
	}
	require.Empty(t, policy.ValidateSet(nil, set, scopes))
	for _, scope := range scopes {
		for _, f := range lint.Check(set, scope, lint.Facts{}) {
			require.Equal(t, lint.LevelWarning, f.Level, "%s: %s %s", scope, f.Code, f.Message)
			require.Contains(t, explained[scope], f.Code, "%s: the comment says why %q is meant", scope, f.Message)
		}
	}
}

func TestExamples_stand_in_the_README_each_with_its_test(t *testing.T) {
	readme := read(t, "README.md")
	var tests []byte
	sources, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, s := range sources {
		tests = append(tests, read(t, s)...)
	}
	for _, file := range files(t) {
		require.True(t, strings.Contains(readme, "]("+file+")"), "README.md links %s", file)
		require.True(t, bytes.Contains(tests, []byte(`"`+file+`"`)), "a test loads %s", file)
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		require.True(t, bytes.Contains(tests, []byte("func "+m[1]+"(")), "%s exists", m[1])
	}
}
