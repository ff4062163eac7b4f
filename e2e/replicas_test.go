// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// startEtcd starts a member that other processes reach and returns its address.
func startEtcd(t *testing.T) string {
	t.Helper()
	client := url.URL{Scheme: "http", Host: freeAddr(t)}
	peer := url.URL{Scheme: "http", Host: freeAddr(t)}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 10, 100
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return client.Host
}

// replica starts a policyd of the cluster and returns a world that talks to it.
func replica(t *testing.T, etcd string) *world {
	t.Helper()
	w := &world{t: t, grpc: freeAddr(t), http: freeAddr(t)}
	w.policyd = start(t, "policyd", "policyd", "serve", "--grpc-addr", w.grpc, "--http-addr", w.http, "--etcd-endpoints", etcd)
	w.eventually("a replica is ready", func() bool {
		code, _ := w.fetch(http.MethodGet, "http://"+w.http+"/readyz")
		return code == http.StatusOK
	})
	return w
}

func TestReplicas_answer_for_the_whole_fleet_and_drain_without_a_stale_instance(t *testing.T) {
	etcd := startEtcd(t)
	a, b := replica(t, etcd), replica(t, etcd)
	a.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	a.demo = freeAddr(t)
	b.demo = a.demo
	start(t, "demo-fleet", "policyd", "demo-fleet", "--listen", a.demo, "--policyd", a.grpc+","+b.grpc, "--cache-dir", filepath.Join(t.TempDir(), "cache"))
	streams := func(w *world) string {
		_, metrics := w.fetch(http.MethodGet, "http://"+w.http+"/metrics")
		_, rest, _ := strings.Cut(metrics, "\npolicyd_push_streams ")
		n, _, _ := strings.Cut(rest, "\n")
		return n
	}
	live := func(w *world) int { return strings.Count(w.ctl(0, "fleet"), " live ") }
	for _, w := range []*world{a, b} {
		w.eventually("a replica sees all instances", func() bool { return live(w) == 20 })
	}
	require.NotEqual(t, "0", streams(a), "the fleet is spread")
	require.NotEqual(t, "0", streams(b))

	out := a.ctl(0, "switch", "disable-retries", "shop", "--for", "5m", "--incident", "INC-1", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all", "--id", "x")
	require.Contains(t, out, "20/20")
	b.ctl(0, "wait", "--switch", "x", "--for", "all", "--timeout", "30s")

	a.policyd.signal(syscall.SIGTERM)
	for ended := false; !ended; {
		select {
		case <-a.policyd.done:
			ended = true
		default:
		}
		out := b.ctl(0, "fleet")
		require.NotContains(t, out, " stale ", "while a replica drains")
		require.Contains(t, out, "mobile-bff-6")
	}
	b.eventually("all streams came over", func() bool { return streams(b) == "20" })
	require.Equal(t, 20, live(b))
}

func TestReplicas_one_that_died_without_a_word_is_named_until_it_is_forgotten(t *testing.T) {
	etcd := startEtcd(t)
	a, b := replica(t, etcd), replica(t, etcd)
	a.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	a.eventually("they know each other", func() bool { return strings.Contains(a.ctl(0, "status"), "2 replicas") })
	b.policyd.kill()
	require.Contains(t, a.ctl(0, "status"), "no answer from "+b.grpc)
	code, out, _ := a.ctlCode("wait", "--revision", "2", "--timeout", "100ms")
	require.Equal(t, 9, code, "nobody knows what is connected there\n%s", out)
	a.eventually("its announcement ends", func() bool { return !strings.Contains(a.ctl(0, "status"), "replicas") })
}
