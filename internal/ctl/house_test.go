// SPDX-License-Identifier: Apache-2.0

package ctl_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/ctl"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/rpc"
	"github.com/policyd/policyd/internal/store/storetest"
	"github.com/policyd/policyd/sdk/go/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a policyd without etcd and with a fleet of the test's making, behind real TCP.
type house struct {
	store *storetest.Memory
	fleet *fleet.Registry
	admin *admin.Service
	addr  string
	began time.Time

	server  *grpc.Server
	serving chan struct{} // closed when the server ended

	mu        sync.Mutex
	instances map[string]*instance // guarded by mu
	revision  policy.Revision      // guarded by mu
}

// instance confirms what policyd has, unless it is told not to.
type instance struct {
	session  *fleet.Session
	behind   bool
	rejected []fleet.Rejection
}

func newHouse(tb testing.TB) *house {
	tb.Helper()
	h := &house{store: storetest.NewMemory(), fleet: fleet.New(), instances: make(map[string]*instance), revision: 1, began: time.Now()}
	h.admin = admin.New(admin.Config{Store: h.store, Fleet: h.fleet, Logger: slog.New(slog.DiscardHandler), Version: "v0.test"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.store.Run(ctx, h.deliver) }()
	h.start(tb, "127.0.0.1:0")
	tb.Cleanup(func() {
		h.stop()
		cancel()
		require.NoError(tb, <-done)
	})
	for _, id := range []string{"cart-1", "cart-2", "checkout-1", "checkout-2"} {
		h.connect(id)
	}
	return h
}

func (h *house) start(t runner, addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	h.addr = listener.Addr().String()
	h.server = grpc.NewServer(rpc.Options(slog.New(slog.DiscardHandler))...)
	rpc.New(h.admin).Register(h.server)
	h.serving = make(chan struct{})
	server, serving := h.server, h.serving
	go func() {
		defer close(serving)
		_ = server.Serve(listener) // how it ends is not tested
	}()
}

func (h *house) stop() {
	h.server.Stop()
	<-h.serving
}

func (h *house) connect(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	service, _, _ := strings.Cut(id, "-")
	in := &instance{session: h.fleet.Connect(fleet.Identity{
		ID: id, Namespace: "shop", Service: service, SDKLanguage: "go", SDKVersion: "0.1.0",
		Mode: "enforce", Targets: []engine.Scope{"shop"}, Source: "built-in",
	}, int64(h.revision), false)}
	h.instances[id] = in
	h.answer(in)
}

func (h *house) deliver(u policy.Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revision = u.Revision
	for _, in := range h.instances {
		h.answer(in)
	}
}

func (h *house) answer(in *instance) {
	in.session.Wanted(int64(h.revision))
	if in.behind {
		return
	}
	rejected := make([]fleet.Rejection, 0, len(in.rejected))
	for _, r := range in.rejected {
		r.Revision = int64(h.revision)
		rejected = append(rejected, r)
	}
	in.session.Confirmed(int64(h.revision), rejected)
}

// set changes how an instance behaves: live, behind, stale, or "rejected SCOPE".
func (h *house) set(id, how, scope string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.instances[id]
	in.behind, in.rejected = how == "behind", nil
	switch how {
	case "stale":
		in.session.Close()
	case "rejected":
		in.rejected = []fleet.Rejection{{Scope: scope, Field: "hedging.enabled", Reason: "not supported by this SDK"}}
	case "live":
		h.answer(in)
	}
}

// report gives every instance a report about one endpoint.
func (h *house) report(endpoint, breaker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rejected := int64(0)
	if breaker == "open" {
		rejected = 2_500
	}
	for _, in := range h.instances {
		in.session.Reported(&fleet.Report{Period: 10 * time.Second, Endpoints: []fleet.EndpointReport{{
			Endpoint: endpoint, Calls: 10_000, Attempts: 11_000, Failed: 200, Rescued: 190, Rejected: rejected, Breaker: breaker,
			BudgetLeft: 12, Suppressed: map[string]int64{"budget_exhausted": 30},
		}}})
	}
}

// result is what a run of policyctl printed and ended with.
type result struct {
	code        int
	stdout, err string
}

// options of a run; the zero value is a script without terminal.
type options struct {
	ctx   context.Context //nolint:containedctx // one run
	stdin string
	env   map[string]string
	dir   string
	tty   bool
	now   func() time.Time
}

// screen is an output that may be a terminal. Safe for concurrent use.
type screen struct {
	mu  sync.Mutex
	b   bytes.Buffer
	tty bool
}

func (s *screen) IsTerminal() bool { return s.tty }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// keyboard is an input that may be a terminal.
type keyboard struct {
	io.Reader
	tty bool
}

func (k *keyboard) IsTerminal() bool { return k.tty }

// runner is what a run needs of a test.
type runner interface {
	require.TestingT
	Helper()
	TempDir() string
}

func run(t runner, h *house, o options, args ...string) result {
	t.Helper()
	out, errOut := &screen{tty: o.tty}, &screen{tty: o.tty}
	code := runTo(t, h, o, out, errOut, args...)
	return result{code, out.String(), errOut.String()}
}

func runTo(t runner, h *house, o options, out, errOut io.Writer, args ...string) int {
	t.Helper()
	if o.ctx == nil {
		o.ctx = context.Background()
	}
	env := map[string]string{"LC_ALL": "C.UTF-8", "HOME": t.TempDir(), "TMPDIR": t.TempDir(), "NO_COLOR": "1"}
	if h != nil {
		env["POLICYCTL_ADDR"] = h.addr
		if o.now == nil {
			// Stands still, so that no age depends on how long the test takes.
			o.now = func() time.Time { return h.began }
		}
	}
	for k, v := range o.env {
		env[k] = v
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	return ctl.Main(o.ctx, args, ctl.Env{
		In: &keyboard{strings.NewReader(o.stdin), o.tty}, Out: out, Err: errOut, Lookup: lookup, Dir: o.dir, Now: o.now,
	})
}

// must runs policyctl and requires its exit code.
func must(t runner, h *house, code int, args ...string) result {
	t.Helper()
	r := run(t, h, options{}, args...)
	require.Equal(t, code, r.code, "policyctl %s\n%s%s", strings.Join(args, " "), r.stdout, r.err)
	return r
}
