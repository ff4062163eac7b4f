// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const (
	members    = 3
	replicas   = 3
	fleets     = 4
	perFleet   = 50
	instances  = fleets * perFleet
	quotaBytes = 24 << 20
)

// world is three members of etcd, three replicas of policyd and a fleet, with a link between
// every two of them that talk.
type world struct {
	t   *testing.T
	dir string // logs, data

	etcds    []*process
	peers    []*link // to member i, from members
	direct   []string
	lives    atomic.Int32 // of the data
	names    atomic.Int32 // of the cluster
	policyds []*process
	grpc     []string
	http     []string
	stores   [][]*link // from policyd p to member i
	fleet    []*process
	watches  [][]*link // from fleet f to policyd p
	// of policyd p
	transports []string

	admin  []policydv1.AdminServiceClient
	etcd   *clientv3.Client // past the links
	record *record
	says   *says

	mu     sync.Mutex
	ask    []*gob.Encoder // to fleet f; guarded by mu
	follow func()         // ends the present reading of the store
}

// targets of the groups of instances.
func targets() [][]string {
	return [][]string{
		{"shop"},
		{"pay"},
		{"ads"},
		{"shop", "pay", "ads"},
		{"global"},
		{"shop/s1"},
		{"pay/s1/e1", "ads/s2"},
		{"shop/s2/e2"},
	}
}

func watched() []string {
	return []string{"shop/s1/e1", "pay/s1/e1", "ads/s2/e1", "shop/s2/e2", "shop/s3/e1", "pay/s2/e3", "ads/s1/e2"}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "policyd-chaos-") //nolint:usetesting // stays when the test fails
	require.NoError(t, err)
	w := &world{t: t, dir: dir, record: newRecord(targets()), says: newSays(), ask: make([]*gob.Encoder, fleets), transports: transports(*transport, *seed)}
	host := func(n int) string { return fmt.Sprintf("127.78.%d.%d", os.Getpid()%250, n) }
	link := func(n int, name, target string, byPeer bool) *link {
		l, err := newLink(name, host(n)+":0", target, byPeer)
		require.NoError(t, err)
		t.Cleanup(l.close)
		return l
	}
	addr := func(n int) string {
		a, err := freeAddr(host(n))
		require.NoError(t, err)
		return a
	}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})

	var listen []string
	for i := range members {
		listen = append(listen, addr(1+i))
		w.direct = append(w.direct, addr(1+i))
		w.peers = append(w.peers, link(10+i, fmt.Sprintf("peer %d", i), listen[i], true))
	}
	w.lives.Store(1)
	for i := range members {
		w.etcds = append(w.etcds, &process{name: w.member(i), log: w.log(w.member(i)), make: func() *exec.Cmd {
			return exec.Command(filepath.Join(etcdBin, "server"), "--name", w.member(i), "--data-dir", w.data(i),
				"--listen-peer-urls", "http://"+listen[i], "--initial-advertise-peer-urls", "http://"+w.peers[i].addr(),
				"--listen-client-urls", "http://"+w.direct[i], "--advertise-client-urls", "http://"+w.direct[i],
				"--initial-cluster", w.initial(), "--initial-cluster-token", w.token(),
				"--quota-backend-bytes", strconv.Itoa(quotaBytes), "--snapshot-count", "500",
				// What is killed here are processes, never the machine: the page cache stays.
				"--unsafe-no-fsync", "--log-level", "warn")
		}})
	}
	for p := range replicas {
		w.grpc, w.http = append(w.grpc, addr(20+p)), append(w.http, addr(24+p)) // on one host they might be one port
		var endpoints []string
		w.stores = append(w.stores, nil)
		for i := range members {
			l := link(30+10*p+i, fmt.Sprintf("policyd %d to member %d", p, i), w.direct[i], false)
			w.stores[p] = append(w.stores[p], l)
			endpoints = append(endpoints, "http://"+l.addr())
		}
		name := fmt.Sprintf("policyd-%d", p)
		w.policyds = append(w.policyds, &process{name: name, log: w.log(name), make: func() *exec.Cmd {
			return exec.Command(filepath.Join(bin, "policyd"), "serve", "--grpc-addr", w.grpc[p], "--http-addr", w.http[p],
				"--etcd-endpoints", strings.Join(endpoints, ","), "--outbox-max", "1000000", "--reconnect-window", "2s",
				"--watch-transport", w.transports[p])
		}})
		conn, err := grpc.NewClient(w.grpc[p], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second,
			}))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		w.admin = append(w.admin, policydv1.NewAdminServiceClient(conn))
	}
	for f := range fleets {
		var addrs []string
		w.watches = append(w.watches, nil)
		for p := range replicas {
			l := link(60+10*f+p, fmt.Sprintf("fleet %d to policyd %d", f, p), w.grpc[p], false)
			w.watches[f] = append(w.watches[f], l)
			addrs = append(addrs, l.addr())
		}
		name := fmt.Sprintf("fleet-%d", f)
		w.fleet = append(w.fleet, &process{
			name: name, log: w.log(name),
			make: func() *exec.Cmd {
				cmd := exec.Command(fleetBin)
				cmd.Env = append(os.Environ(), fleetVariable+"=1", "GORACE=halt_on_error=1")
				return cmd
			},
			pipes: func(in io.WriteCloser, out io.Reader) {
				w.serveFleet(f, fleetConfig{
					First: f * perFleet, Count: perFleet, Addrs: strings.Join(addrs, ","), Targets: targets(),
					Cache: filepath.Join(dir, "cache"), Watched: watched(),
				}, in, out)
			},
		})
	}
	return w
}

// transports are those of the replicas: as asked for, or by the seed, and then never all alike.
func transports(asked string, seed uint64) []string {
	all := []string{"grpc", "lean", "grpc"}
	switch rng := rand.New(rand.NewPCG(seed, 77)); {
	case asked != "":
		all = []string{asked, asked, asked}
	default:
		all[2] = all[rng.IntN(2)]
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

func (w *world) log(name string) string { return filepath.Join(w.dir, name+".log") }
func (w *world) member(i int) string    { return fmt.Sprintf("m%d", i) }
func (w *world) token() string          { return fmt.Sprintf("cluster-%d", w.names.Load()) }
func (w *world) data(i int) string      { return w.dataOf(i, w.lives.Load()) }
func (w *world) dataOf(i int, n int32) string {
	return filepath.Join(w.dir, fmt.Sprintf("m%d-%d.etcd", i, n))
}

func (w *world) initial() string {
	var all []string
	for i := range members {
		all = append(all, w.member(i)+"=http://"+w.peers[i].addr())
	}
	return strings.Join(all, ",")
}

// serveFleet talks to one life of a fleet process.
func (w *world) serveFleet(f int, cfg fleetConfig, in io.WriteCloser, out io.Reader) {
	ask := gob.NewEncoder(in)
	_ = ask.Encode(cfg) // one that died at once is seen at the end of its output
	w.mu.Lock()
	w.ask[f] = ask
	w.mu.Unlock()
	events := gob.NewDecoder(out)
	for {
		var e event
		if events.Decode(&e) != nil {
			return // killed
		}
		w.says.add(e)
	}
}

// question asks a fleet process; answers come as events.
func (w *world) question(f int, q question) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ask[f] != nil {
		_ = w.ask[f].Encode(q)
	}
}

// begin starts everything and waits until every instance is connected.
func (w *world) begin() {
	w.t.Helper()
	w.t.Cleanup(w.end)
	for _, p := range w.etcds {
		require.NoError(w.t, p.start())
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: w.direct, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	require.NoError(w.t, err)
	w.etcd = client
	w.t.Cleanup(func() { client.Close() })
	w.await("etcd has a leader", w.quorum)
	w.read()
	for _, p := range w.policyds {
		require.NoError(w.t, p.start())
	}
	w.await("every policyd is ready", func() bool { return w.ready(0) && w.ready(1) && w.ready(2) })
	for _, p := range w.fleet {
		require.NoError(w.t, p.start())
	}
	w.await("every instance has what the store has", func() bool { return len(w.lagging()) == 0 })
}

// read follows the store in the background, in a life of its own.
func (w *world) read() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	lives := len(w.record.lives)
	go func() {
		defer close(done)
		if err := w.record.follow(ctx, w.etcd); err != nil && ctx.Err() == nil {
			w.t.Errorf("the store could not be read along: %v", err)
		}
	}()
	w.follow = func() { cancel(); <-done }
	w.await("the store is read", func() bool {
		w.record.mu.Lock()
		defer w.record.mu.Unlock()
		return len(w.record.lives) > lives
	})
}

// end stops what is left, asking first.
func (w *world) end() {
	var all sync.WaitGroup
	for _, p := range append(append([]*process{}, w.fleet...), w.policyds...) {
		all.Go(func() {
			if !p.finish(15*time.Second) && !strings.HasPrefix(p.name, "fleet") {
				w.t.Errorf("%s: %s did not within 15s", ruleShutdown, p.name)
			}
		})
	}
	all.Wait()
	if w.follow != nil {
		w.follow()
	}
	for _, p := range w.etcds {
		p.kill()
	}
}

// await waits for an event, for a minute at most: how long it may take is judged elsewhere.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s; logs are in %s\n%s", what, w.dir, w.describe())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// quorum reports whether etcd answers.
func (w *world) quorum() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := w.etcd.Get(ctx, prefix+"meta/epoch")
	return err == nil
}

// sync waits until everything in the store is in the record.
func (w *world) sync() {
	w.t.Helper()
	var at int64
	w.await("etcd answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		got, err := w.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend),
			clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err == nil && len(got.Kvs) > 0 {
			at = got.Kvs[0].GetModRevision()
		}
		return err == nil
	})
	w.await("the record has everything", func() bool {
		w.record.mu.Lock()
		defer w.record.mu.Unlock()
		return w.record.lives[len(w.record.lives)-1].seen >= at
	})
}

var quick = &http.Client{Timeout: time.Second}

func (w *world) ready(p int) bool {
	resp, err := quick.Get("http://" + w.http[p] + "/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// up reports whether a policyd serves, however old its view is.
func (w *world) up(p int) bool {
	resp, err := quick.Get("http://" + w.http[p] + "/healthz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// metric reads one figure of a policyd.
func (w *world) metric(p int, name string) (float64, error) {
	resp, err := quick.Get("http://" + w.http[p] + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, errors.New("no metric " + name)
}

// lagging returns the instances that have not confirmed what the store holds: keys and
// revisions, as the hash says.
func (w *world) lagging() []int {
	goals := w.record.goals()
	w.says.mu.Lock()
	defer w.says.mu.Unlock()
	var behind []int
	for i, e := range w.says.last {
		g := goals[i%len(goals)]
		// Of a document that came and went while its policyd read nothing, an instance need not
		// hear: then it has the state, confirmed at an earlier revision.
		if e.Epoch == g.epoch && (e.HasHash && e.Hash == g.hash || !e.HasHash && e.Revision >= g.revision) {
			continue
		}
		behind = append(behind, i)
	}
	return behind
}

func (w *world) describe() string {
	var s strings.Builder
	behind := w.lagging()
	fmt.Fprintf(&s, "%d instances behind, of %d\n", len(behind), instances)
	for p := range replicas {
		rev, _ := w.metric(p, "policyd_store_revision")
		stale, _ := w.metric(p, "policyd_store_stale")
		fmt.Fprintf(&s, "policyd %d: revision %.0f stale %.0f\n", p, rev, stale)
	}
	for _, i := range behind[:min(2, len(behind))] {
		s.WriteString(w.historyText(i))
	}
	return s.String()
}

// historyText is the end of the history of an instance, for people.
func (w *world) historyText(i int) string {
	const most = 60
	var s strings.Builder
	fmt.Fprintf(&s, "history of %s (goal %+v):\n", instanceName(i), w.record.goals()[i%len(targets())])
	all := w.says.history(i)
	for _, e := range all[max(0, len(all)-most):] {
		fmt.Fprintf(&s, "  %s\n", e)
	}
	return s.String()
}
