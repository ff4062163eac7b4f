// SPDX-License-Identifier: Apache-2.0

// Package daemon builds policyd from its settings, starts it, and stops it in reverse. All
// wiring stands here.
package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/peer"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/internal/rest"
	"github.com/policyd/policyd/internal/rpc"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/telemetry"
)

// stopWithin bounds a graceful stop: streams are told to go, requests finish, the store closes.
const stopWithin = 8 * time.Second

// Addrs are the addresses that policyd serves on, with the ports it got.
type Addrs struct{ GRPC, HTTP string }

// Version returns the version the program was built as.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Run serves until ctx ends, then stops gracefully. ready, if not nil, is called once policyd
// has read the store and accepts connections.
func Run(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(Addrs)) (err error) {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	var stop stack
	// What stops policyd must not be cut short by the end of ctx.
	defer func() { err = errors.Join(err, stop.run(context.WithoutCancel(ctx), logger)) }()

	// Listen first: an address in use must not cost a start of etcd.
	grpcListener, err := listen(ctx, cfg.Listen.GRPC)
	if err != nil {
		return err
	}
	stop.push("grpc listener", closer(grpcListener.Close))
	httpListener, err := listen(ctx, cfg.Listen.HTTP)
	if err != nil {
		return err
	}
	stop.push("http listener", closer(httpListener.Close))

	etcd, err := openEtcd(ctx, cfg, logger)
	if err != nil {
		return err
	}
	stop.push("etcd", closer(etcd.close))

	st, err := store.New(store.Config{Client: etcd.client, Logger: logger, OutboxEntries: cfg.Etcd.OutboxMax, NewEpoch: cfg.Etcd.NewEpoch})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	registry := fleet.New()
	hub, err := push.New(push.Config{
		Fleet: registry, Logger: logger, Suspect: st.Suspect,
		Limits: push.Limits{Streams: cfg.Push.MaxStreams, AcceptRate: cfg.Push.AcceptPerSecond},
	})
	if err != nil {
		return err
	}
	backlog := &backlog{store: st}
	self := store.Peer{
		ID: strings.ToLower(rand.Text()), Address: grpcListener.Addr().String(), Version: Version(), StartedAt: time.Now(),
	}
	cells := peer.NewCells(peer.CellsConfig{Fleet: registry, Logger: logger})
	peers := peer.New(peer.Config{Self: self, Fleet: registry, Cells: cells, Logger: logger})
	service := admin.New(admin.Config{
		Store: st, Fleet: registry, Peers: peers, Logger: logger, Version: Version(), Backlog: backlog.load,
	})

	parts := newParts(ctx, &stop)
	run := parts.run
	run("store", func(ctx context.Context) error { return st.Run(ctx, hub.Publish) })
	run("push", hub.Run)
	run("sweeper", service.RunSweeper)
	keep := &housekeeping{store: st, member: etcd.member, backlog: backlog, log: logger}
	run("house-keeping", keep.run)
	if etcd.member != nil {
		run("embedded etcd", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case err := <-etcd.member.Failed():
				return err
			}
		})
	}

	// Health is served from here on: who asks must hear why policyd is not ready yet.
	var stopping atomic.Bool
	parts.serveHTTP(httpListener, &stop, rest.Config{
		Ready:   func() error { return readiness(st, stopping.Load()) },
		Metrics: telemetry.Handler(func() []telemetry.Sample { return samples(st, hub, registry, backlog) }),
		Logger:  logger,
	})

	if goOn, err := parts.until(ctx, st.Loaded()); !goOn {
		return err
	}

	adminServer, peerServer := rpc.New(service), peer.NewServer(registry, cells)
	edge, err := newEdge(cfg, logger, hub, adminServer, peerServer, cells)
	if err != nil {
		return err
	}
	run("grpc", func(context.Context) error { return edge.serve(grpcListener) })
	stop.push("grpc", func(ctx context.Context) error {
		stopping.Store(true)
		edge.health.Shutdown()
		// Streams get half of the time; who has not left by then is cut and comes back by itself.
		leave, cancel := context.WithTimeout(ctx, stopWithin/2)
		hub.Drain(leave, cfg.Push.ReconnectWindow)
		cancel()
		adminServer.Drain()
		peerServer.Drain()
		cells.Drain()
		edge.stop(ctx)
		return nil
	})
	// An embedded etcd has no other replica.
	if len(cfg.Etcd.Endpoints) > 0 {
		run("announcement", func(ctx context.Context) error { return st.Announce(ctx, self) })
		run("peers", func(ctx context.Context) error { peers.Run(ctx, st.WatchPeers); return nil })
	}

	addrs := Addrs{GRPC: grpcListener.Addr().String(), HTTP: httpListener.Addr().String()}
	view := st.View()
	logger.InfoContext(ctx, "policyd is ready", "version", Version(), "grpc", addrs.GRPC, "http", addrs.HTTP,
		"epoch", view.Epoch, "revision", view.Revision, "policies", len(view.Policies))
	if ready != nil {
		ready(addrs)
	}
	_, err = parts.until(ctx, nil)
	return err
}

// listen serves only this machine. "localhost" is whatever the machine says it is, so that
// the address counts that it turned out to be.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w (is another policyd running?)", addr, err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		_ = l.Close() // nobody was served
		return nil, fmt.Errorf("listen on %s: %s is not a loopback address", addr, l.Addr())
	}
	return l, nil
}

// readiness returns why policyd should get no new work, nil if it should.
func readiness(st *store.Store, stopping bool) error {
	if stopping {
		return errors.New("policyd is stopping")
	}
	select {
	case <-st.Loaded():
	default:
		return errors.New("the store has not been read yet")
	}
	if view := st.View(); view.Stale {
		return fmt.Errorf("the view of the store is stale since %s; it is still served", view.AsOf.UTC().Format(time.RFC3339))
	}
	return nil
}
