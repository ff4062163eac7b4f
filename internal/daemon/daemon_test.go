// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/daemon"
	"github.com/policyd/policyd/internal/store/etcdembed"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing is that slow unless it is broken.
const patience = 30 * time.Second

func settings(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default()
	cfg.Listen = config.Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}
	cfg.Data.Dir = t.TempDir()
	return cfg
}

// running is a policyd that a test started.
type running struct {
	daemon.Addrs
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, cfg config.Config) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{stop: stop, ended: make(chan error, 1)}
	ready := make(chan daemon.Addrs, 1)
	go func() {
		r.ended <- daemon.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(a daemon.Addrs) { ready <- a })
	}()
	limit, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case r.Addrs = <-ready:
	case err := <-r.ended:
		stop()
		require.FailNow(t, "policyd ended", "%v", err)
	case <-limit.Done():
		stop()
		require.FailNow(t, "policyd is not ready")
	}
	t.Cleanup(func() { stop(); r.wait(t) })
	return r
}

// wait returns once policyd has ended, which it must do without an error.
func (r *running) wait(t *testing.T) {
	t.Helper()
	limit, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	select {
	case err, open := <-r.ended:
		if open {
			require.NoError(t, err)
			close(r.ended)
		}
	case <-limit.Done():
		require.FailNow(t, "policyd does not end")
	}
}

func (r *running) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get returns the status and body of a page; 0 when nobody answers.
func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	require.NoError(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func watch(t *testing.T, conn *grpc.ClientConn, instance string) grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse] {
	t.Helper()
	stream, err := policydv1.NewWatchServiceClient(conn).Watch(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{
		Hello: &policydv1.Hello{Instance: instance, Namespace: "shop"},
	}}))
	return stream
}

// receive returns the first message that is what a test waits for.
func receive(t *testing.T, stream grpc.BidiStreamingClient[policydv1.WatchRequest, policydv1.WatchResponse],
	is func(*policydv1.WatchResponse) bool,
) *policydv1.WatchResponse {
	t.Helper()
	for {
		m, err := stream.Recv()
		require.NoError(t, err)
		if is(m) {
			return m
		}
	}
}

func apply(t *testing.T, conn *grpc.ClientConn, scope string) {
	t.Helper()
	_, err := policydv1.NewAdminServiceClient(conn).ApplyPolicies(t.Context(), &policydv1.ApplyPoliciesRequest{
		Changes: []*policydv1.PolicyChange{{
			Policy:           &policydv1.Policy{Scope: scope, Spec: &policydv1.PolicySpec{MaxAttempts: new(int64(2))}},
			ExpectedRevision: new(int64),
		}},
	})
	require.NoError(t, err)
}

func contains(text string, all ...string) bool {
	for _, part := range all {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func TestRun_serves_and_says_so(t *testing.T) {
	for _, transport := range []string{config.TransportGRPC, config.TransportLean} {
		t.Run(transport, func(t *testing.T) {
			cfg := settings(t)
			cfg.Push.Transport = transport
			r := start(t, cfg)
			conn := r.dial(t)
			apply(t, conn, "shop")
			health, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
			require.NoError(t, err)
			require.Equal(t, healthv1.HealthCheckResponse_SERVING, health.GetStatus())
			for _, path := range []string{"/healthz", "/readyz"} {
				code, _ := get(t, r.HTTP, path)
				require.Equal(t, http.StatusOK, code, path)
			}

			stream := watch(t, conn, "a")
			update := receive(t, stream, func(m *policydv1.WatchResponse) bool { return len(m.GetUpdate().GetEntries()) == 1 })
			require.NoError(t, stream.Send(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{
				Ack: &policydv1.Ack{Epoch: update.GetUpdate().GetEpoch(), Revision: update.GetUpdate().GetRevision()},
			}}))
			require.Eventually(t, func() bool {
				_, metrics := get(t, r.HTTP, "/metrics")
				return contains(metrics,
					`policyd_server_instances{state="live"} 1`,
					`policyd_server_instances{state="stale"} 0`,
					`policyd_server_switches{action="disable-retries",scope_kind="global"} 0`,
					`policyd_server_propagation_seconds_count`,
					"policyd_store_stale 0", "policyd_push_streams 1", "policyd_store_drift_total 0")
			}, patience, 10*time.Millisecond)
		})
	}
}

func TestO_PU_12_a_stop_sends_streams_away_and_ends_without_an_error(t *testing.T) {
	cfg := settings(t)
	r := start(t, cfg)
	conn := r.dial(t)
	apply(t, conn, "shop")
	stream := watch(t, conn, "a")
	receive(t, stream, func(m *policydv1.WatchResponse) bool { return len(m.GetUpdate().GetEntries()) == 1 })
	health, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	serving, err := health.Recv()
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, serving.GetStatus())
	// A request that never ends must not keep the streams from being told.
	slow, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.HTTP)
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("GET /readyz HTTP/1.1\r\n"))
	require.NoError(t, err)

	r.stop()
	serving, err = health.Recv()
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, serving.GetStatus())
	// Until the streams have left, HTTP says why nothing new should come.
	code, body := get(t, r.HTTP, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "stopping")
	code, _ = get(t, r.HTTP, "/healthz")
	require.Equal(t, http.StatusOK, code)
	away := receive(t, stream, func(m *policydv1.WatchResponse) bool { return m.GetGoAway() != nil })
	require.Equal(t, cfg.Push.ReconnectWindow, away.GetGoAway().GetReconnectWithin().AsDuration())
	for err == nil { // heartbeats, until time is up for who does not leave
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err))
	r.wait(t)
}

func TestRun_keeps_what_was_written_over_a_restart(t *testing.T) {
	cfg := settings(t)
	list := func(r *running) *policydv1.ListPoliciesResponse {
		all, err := policydv1.NewAdminServiceClient(r.dial(t)).ListPolicies(t.Context(), &policydv1.ListPoliciesRequest{})
		require.NoError(t, err)
		return all
	}
	first := start(t, cfg)
	apply(t, first.dial(t), "shop")
	before := list(first)
	first.stop()
	first.wait(t)
	require.Equal(t, before.GetRevision(), list(start(t, cfg)).GetRevision())
}

func TestRun_refuses_addresses_that_other_machines_reach(t *testing.T) {
	for _, addr := range []string{
		"0.0.0.0:0", ":0", "[::]:0", "[::ffff:0.0.0.0]:0", "[::ffff:10.0.0.1]:0", "10.0.0.1:0", "192.168.1.1:0",
		"[fe80::1]:0", "policyd.example:0", "localhost.example:0", "127.1:0", "0:0", "2130706433:0", "127.0.0.1", "",
	} {
		for _, listen := range []config.Listen{{GRPC: addr, HTTP: "127.0.0.1:0"}, {GRPC: "127.0.0.1:0", HTTP: addr}} {
			cfg := settings(t)
			cfg.Listen = listen
			err := daemon.Run(t.Context(), cfg, slog.New(slog.DiscardHandler), func(daemon.Addrs) {
				require.Fail(t, "it serves", "%+v", listen)
			})
			require.ErrorContains(t, err, "listen.", "%+v", listen)
		}
	}
}

func TestRun_says_what_is_in_use(t *testing.T) {
	r := start(t, settings(t))
	run := func(change func(*config.Config)) error {
		cfg := settings(t)
		change(&cfg)
		return daemon.Run(t.Context(), cfg, slog.New(slog.DiscardHandler), nil)
	}
	err := run(func(cfg *config.Config) { cfg.Listen.HTTP = r.HTTP })
	require.ErrorContains(t, err, "is another policyd running?")

	dir := t.TempDir()
	member, err := etcdembed.Start(t.Context(), etcdembed.Config{Dir: dir, FastTick: true})
	require.NoError(t, err)
	defer member.Close()
	require.ErrorContains(t, run(func(cfg *config.Config) { cfg.Data.Dir = dir }), "in use by another process")
}

// A cluster that takes connections and says nothing is how lost quorum looks at a start.
func TestRun_is_alive_but_not_ready_before_the_store_was_read(t *testing.T) {
	mute, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := settings(t)
	cfg.Listen.HTTP = free.Addr().String()
	cfg.Etcd.Endpoints = []string{mute.Addr().String()}
	require.NoError(t, free.Close())

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- daemon.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(daemon.Addrs) { panic("it says that it is ready") })
	}()
	require.Eventually(t, func() bool {
		code, _ := get(t, cfg.Listen.HTTP, "/healthz")
		return code == http.StatusOK
	}, patience, 10*time.Millisecond)
	code, body := get(t, cfg.Listen.HTTP, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "has not been read yet")
	_, metrics := get(t, cfg.Listen.HTTP, "/metrics")
	require.Contains(t, metrics, "policyd_store_stale 1")
	stop()
	require.NoError(t, <-ended)
}
