// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// relayed is a relay process.
type relayed struct {
	*process
	w                *world
	grpc, http, data string
	upstream         string
}

// relay starts a relay of upstream and waits until it has something to serve.
func (w *world) relay(data, upstream string) *relayed {
	w.t.Helper()
	r := &relayed{w: w, grpc: freeAddr(w.t), http: freeAddr(w.t), data: data, upstream: upstream}
	r.start()
	return r
}

func (r *relayed) start() {
	r.w.t.Helper()
	r.process = start(r.w.t, "relay", "policyd", "relay", "--upstream", r.upstream, "--grpc-addr", r.grpc, "--http-addr", r.http, "--data-dir", r.data)
	r.w.eventually("the relay serves", func() bool { return r.metric("policyd_relay_revision") > 0 && r.metric("policyd_push_streams") >= 0 })
}

func (r *relayed) metric(name string) float64 {
	r.w.t.Helper()
	_, body := r.w.fetch(http.MethodGet, "http://"+r.http+"/metrics")
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		return -1
	}
	n, err := strconv.ParseFloat(found[1], 64)
	require.NoError(r.w.t, err)
	return n
}

func (r *relayed) ready() (int, string) {
	return r.w.fetch(http.MethodGet, "http://"+r.http+"/readyz")
}

// newCell starts policyd and a fleet that has only relays' addresses.
func newCell(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, grpc: freeAddr(t), http: freeAddr(t), demo: freeAddr(t), data: filepath.Join(dir, "data"), cache: filepath.Join(dir, "cache")}
	w.startPolicyd()
	w.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	return w
}

func (w *world) startFleet(addrs string) {
	w.t.Helper()
	start(w.t, "demo-fleet", "policyd", "demo-fleet", "--listen", w.demo, "--policyd", addrs, "--cache-dir", w.cache)
	w.eventually("every instance is live", func() bool { return strings.Count(w.get("/instances"), " live ") == 20 })
	w.backend("fail=0.3&latency=5ms")
	w.eventually("the backend sees retries", func() bool { return w.counts().RetriesPerSecond > 0 })
}

func TestRelay_a_cell_obeys_outlives_policyd_and_the_relay(t *testing.T) {
	w := newCell(t)
	r := w.relay(filepath.Join(t.TempDir(), "relay"), w.grpc)
	w.startFleet(r.grpc)
	require.InDelta(t, 20, r.metric("policyd_push_streams"), 0)

	w.ctl(0, "switch", "disable-retries", "shop", "--id", "off", "--for", "12s", "--restore-over", "1s", "--reason", "test", "--confirm=shop", "--yes", "--no-wait")
	w.eventually("the backend counts no retries", w.quiet)

	// policyd dies; the cell stays connected, is told the truth, and the switch ends.
	w.policyd.kill()
	w.eventually("the relay knows that it is cut off", func() bool { code, _ := r.ready(); return code == http.StatusServiceUnavailable })
	_, why := r.ready()
	require.Contains(t, why, "cut off since")
	require.InDelta(t, 20, r.metric("policyd_push_streams"), 0)
	w.eventually("retries are back", func() bool { return w.counts().RetriesPerSecond > 0 })
	require.InDelta(t, 20, r.metric("policyd_push_streams"), 0, "no stream broke")

	// The relay dies too and comes back alone: it serves from its disk.
	r.kill()
	w.eventually("instances notice", func() bool { return strings.Count(w.get("/instances"), " stale ") == 20 })
	before := w.counts().Calls
	w.eventually("traffic goes on", func() bool { return w.counts().Calls > before+100 })
	r.start()
	w.eventually("everybody is back", func() bool { return r.metric("policyd_push_streams") == 20 })
	require.InDelta(t, 0, r.metric("policyd_relay_updates_total"), 0)

	// And policyd comes back.
	w.startPolicyd()
	w.eventually("the relay is connected again", func() bool { code, _ := r.ready(); return code == http.StatusOK })
	w.ctl(0, "switch", "disable-retries", "shop", "--id", "again", "--for", "10m", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	w.eventually("the backend counts no retries", w.quiet)
	require.InDelta(t, 0, r.metric("policyd_relay_snapshots_total"), 0, "it resumed from its disk")
}

func TestRelay_two_levels_pass_a_switch_and_instances_fail_over(t *testing.T) {
	w := newCell(t)
	upper := w.relay(filepath.Join(t.TempDir(), "upper"), w.grpc)
	a := w.relay(filepath.Join(t.TempDir(), "a"), upper.grpc)
	b := w.relay(filepath.Join(t.TempDir(), "b"), upper.grpc+","+w.grpc)
	w.startFleet(a.grpc + "," + b.grpc)
	out := w.ctl(0, "switch", "disable-retries", "shop", "--id", "off", "--for", "10m", "--restore-over", "2s", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	require.Contains(t, out, "20/20", "the instances two levels below are counted")
	require.Equal(t, 20, strings.Count(w.ctl(0, "fleet"), " live "))
	require.Contains(t, w.ctl(0, "status"), "3 relays")
	w.eventually("the backend counts no retries", w.quiet)

	a.kill()
	w.eventually("all streams come over", func() bool { return b.metric("policyd_push_streams") == 20 })
	require.Equal(t, 20, strings.Count(w.get("/instances"), " live "))
	require.Contains(t, w.ctl(0, "status"), "no answer from "+a.grpc)
	code, _, _ := w.ctlCode("wait", "--switch", "off", "--for", "all", "--timeout", "1s")
	require.Equal(t, 9, code, "nobody knows what is connected there")
	upper.kill()
	w.eventually("the lower relay finds policyd", func() bool { code, _ := b.ready(); return code == http.StatusOK })
	code, _, _ = w.ctlCode("switch", "revert", "off", "--yes")
	require.Equal(t, 9, code, "done; what was behind the dead relays is not known")
	w.eventually("retries are back", func() bool { return w.counts().RetriesPerSecond > 0 })

	b.signal(syscall.SIGTERM)
	require.NoError(t, <-b.done)
}

func TestRelay_a_restored_store_reaches_the_cell(t *testing.T) {
	w := newCell(t)
	r := w.relay(filepath.Join(t.TempDir(), "relay"), w.grpc)
	w.startFleet(r.grpc)
	path := filepath.Join(t.TempDir(), "doc.yaml")
	for i := range 5 {
		doc := fmt.Sprintf("apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop}\nspec: {description: edit %d}\n", i)
		require.NoError(t, os.WriteFile(path, []byte(doc), 0o600))
		w.ctl(0, "apply", "-f", path, "--yes", "--no-wait")
	}
	w.policyd.kill()
	require.NoError(t, os.RemoveAll(w.data))
	w.startPolicyd() // with other data, and lower revisions
	w.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	w.ctl(0, "switch", "disable-retries", "global", "--id", "off", "--for", "10m", "--incident", "INC-1", "--reason", "test", "--confirm=global", "--yes", "--no-wait")
	w.eventually("the switch of the new data is in force in the cell", w.quiet)
	require.Equal(t, 20, strings.Count(w.get("/instances"), " live "))
}

func TestRelay_takes_no_writes_and_answers_for_its_cell(t *testing.T) {
	w := newCell(t)
	r := w.relay(filepath.Join(t.TempDir(), "relay"), w.grpc)
	w.startFleet(r.grpc)
	at := *w
	at.grpc = r.grpc
	code, _, stderr := at.ctlCode("switch", "disable-retries", "shop", "--for", "10m", "--reason", "test", "--confirm=shop", "--yes")
	require.NotZero(t, code)
	require.Contains(t, stderr, "relay")
	require.Contains(t, stderr, w.grpc, "the upstream is named")
	require.Equal(t, 20, strings.Count(at.ctl(0, "fleet"), " live "))
	require.Equal(t, w.ctl(0, "export", "-o", "json"), at.ctl(0, "export", "-o", "json"))

	for name, args := range map[string][]string{
		"no upstream":                  {"relay"},
		"itself":                       {"relay", "--upstream", r.grpc + "," + "127.0.0.1:1", "--grpc-addr", "127.0.0.1:1"},
		"an address that others reach": {"relay", "--upstream", w.grpc, "--grpc-addr", "0.0.0.0:0"},
	} {
		p := start(t, "refused", "policyd", append(args, "--data-dir", t.TempDir(), "--http-addr", "127.0.0.1:0")...)
		require.Error(t, <-p.done, name)
	}
}

func TestRelay_of_one_replica_counts_at_every_replica(t *testing.T) {
	etcd := startEtcd(t)
	a, b := replica(t, etcd), replica(t, etcd)
	a.ctl(0, "apply", "-f", "../internal/demo/policies.yaml", "--yes", "--no-wait")
	r := a.relay(filepath.Join(t.TempDir(), "relay"), a.grpc)
	b.demo, b.cache = freeAddr(t), filepath.Join(t.TempDir(), "cache")
	b.startFleet(r.grpc)
	b.eventually("the other replica sees them", func() bool { return strings.Count(b.ctl(0, "fleet"), " live ") == 20 })
	out := b.ctl(0, "switch", "disable-retries", "shop", "--for", "5m", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	require.Contains(t, out, "20/20")
	require.Contains(t, b.ctl(0, "status"), "2 replicas, 1 relay")

	path := filepath.Join(t.TempDir(), "doc.yaml")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop}\nspec: {maxAttempts: 4}\n"), 0o600))
	require.Contains(t, b.ctl(0, "apply", "-f", path, "--yes"), "20")
}
