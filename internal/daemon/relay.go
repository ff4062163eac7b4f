// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/policyd/policyd/internal/admin"
	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/peer"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/internal/relay"
	"github.com/policyd/policyd/internal/rest"
	"github.com/policyd/policyd/internal/rpc"
	"github.com/policyd/policyd/internal/telemetry"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// RunRelay serves a cell with what another policyd sends, until ctx ends, then stops
// gracefully. ready, if not nil, is called once there is something to serve and connections
// are accepted.
func RunRelay(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(Addrs)) (err error) {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	var stop stack
	// What stops the relay must not be cut short by the end of ctx.
	defer func() { err = errors.Join(err, stop.run(context.WithoutCancel(ctx), logger)) }()

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
	addrs := Addrs{GRPC: grpcListener.Addr().String(), HTTP: httpListener.Addr().String()}
	if slices.Contains(cfg.Relay.Upstream, addrs.GRPC) {
		return fmt.Errorf("configuration: relay.upstream: %s is this relay itself", addrs.GRPC)
	}

	registry := fleet.New()
	var hub *push.Hub
	var cells *peer.Cells
	var upstream *relay.Relay
	reporter := &peer.Reporter{Fleet: registry, About: func() *policydv1.Relay { return upstream.About() }}
	upstream, err = relay.New(relay.Config{
		Upstream: cfg.Relay.Upstream,
		Security: relay.Security{
			CAFile: cfg.Relay.CAFile, CertFile: cfg.Relay.CertFile, KeyFile: cfg.Relay.KeyFile, TokenFile: cfg.Relay.TokenFile,
		},
		Dir: cfg.Data.Dir, Address: addrs.GRPC, Version: Version(), Logger: logger,
		Below:  func() []string { return below(hub, cells) },
		Report: func(ctx context.Context, conn grpc.ClientConnInterface) error { return reporter.Run(ctx, conn) },
	})
	if err != nil {
		return fmt.Errorf("%w (--upstream says whom to follow)", err)
	}
	cells = peer.NewCells(peer.CellsConfig{Self: upstream.ID(), Fleet: registry, Logger: logger})
	reporter.Cells = cells
	hub, err = push.New(push.Config{
		Fleet: registry, Logger: logger,
		// Edits were gathered at the root of the tree.
		Gather: time.Nanosecond,
		Limits: push.Limits{Streams: cfg.Push.MaxStreams, AcceptRate: cfg.Push.AcceptPerSecond},
		Relay:  &push.Relay{ID: upstream.ID(), Clock: upstream.Clock, AsOf: upstream.AsOf},
	})
	if err != nil {
		return err
	}
	service := admin.New(admin.Config{Store: upstream, Fleet: registry, Peers: cells, Logger: logger, Version: Version(), RelayOf: func() string { return upstream.Standing().Upstream }})

	parts := newParts(ctx, &stop)
	parts.run("push", hub.Run)
	parts.run("relay", func(ctx context.Context) error { return upstream.Run(ctx, hub.Publish) })
	var stopping atomic.Bool
	parts.serveHTTP(httpListener, &stop, rest.Config{
		Ready:   func() error { return relayReadiness(upstream, stopping.Load()) },
		Metrics: telemetry.Handler(func() []telemetry.Sample { return relaySamples(upstream, hub, registry) }),
		Logger:  logger,
	})
	logger.InfoContext(ctx, "relay starts", "version", Version(), "id", upstream.ID(), "upstream", cfg.Relay.Upstream, "http", addrs.HTTP)
	// Before there is something to serve a cell is better off elsewhere.
	if goOn, err := parts.until(ctx, upstream.Loaded()); !goOn {
		return err
	}

	adminServer := rpc.New(service)
	edge, err := newEdge(cfg, logger, hub, adminServer, cells)
	if err != nil {
		return err
	}
	parts.run("grpc", func(context.Context) error { return edge.serve(grpcListener) })
	stop.push("grpc", func(ctx context.Context) error {
		stopping.Store(true)
		edge.health.Shutdown()
		leave, cancel := context.WithTimeout(ctx, stopWithin/2)
		hub.Drain(leave, cfg.Push.ReconnectWindow)
		cancel()
		adminServer.Drain()
		cells.Drain()
		edge.stop(ctx)
		return nil
	})
	now := upstream.Standing()
	logger.InfoContext(ctx, "relay is ready", "grpc", addrs.GRPC, "http", addrs.HTTP,
		"epoch", now.Epoch, "revision", now.Revision, "documents", now.Documents, "connected", now.Connected)
	if ready != nil {
		ready(addrs)
	}
	_, err = parts.until(ctx, nil)
	return err
}

// below names the relays below this one, each once.
func below(hub *push.Hub, cells *peer.Cells) []string {
	ids := append(hub.Below(), cells.Below()...)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return ids[:min(len(ids), push.MaxBelow)]
}

// relayReadiness returns why the relay should get no new work, nil if it should.
func relayReadiness(r *relay.Relay, stopping bool) error {
	if stopping {
		return errors.New("the relay is stopping")
	}
	st := r.Standing()
	switch {
	case st.Epoch == "":
		return fmt.Errorf("there is nothing to serve yet; upstream %s: %w", st.Upstream, st.Err)
	case !st.CutOff.IsZero() && st.Connected:
		return fmt.Errorf("the upstream %s is cut off itself, or what it has is not here yet, since %s; the last known good is still served", st.Upstream, st.CutOff.UTC().Format(time.RFC3339))
	case !st.CutOff.IsZero():
		return fmt.Errorf("cut off since %s; the last known good is still served; upstream %s: %w",
			st.CutOff.UTC().Format(time.RFC3339), st.Upstream, st.Err)
	}
	return nil
}

func relaySamples(r *relay.Relay, hub *push.Hub, registry *fleet.Registry) []telemetry.Sample {
	st, stats := r.Standing(), r.Stats()
	connected, cutOff := 0.0, 0.0
	if st.Connected {
		connected = 1
	}
	if !st.CutOff.IsZero() {
		cutOff = max(r.Clock().Sub(st.CutOff).Seconds(), 0)
	}
	return append([]telemetry.Sample{
		{Name: "policyd_relay_connected", Help: "1 while a stream from an upstream is served.", Value: connected},
		{Name: "policyd_relay_cut_off_seconds", Help: "How long what is served has not been known to be the newest; 0: it is.", Value: cutOff},
		{Name: "policyd_relay_revision", Help: "Revision that is served.", Value: float64(st.Revision)},
		{Name: "policyd_relay_documents", Help: "Policies and switches that are served.", Value: float64(st.Documents)},
		{Name: "policyd_relay_upstream_streams_total", Help: "Streams from an upstream that served an update.", Value: float64(stats.Streams), Counter: true},
		{Name: "policyd_relay_updates_total", Help: "Updates taken from upstream.", Value: float64(stats.Updates), Counter: true},
		{Name: "policyd_relay_snapshots_total", Help: "Updates from upstream that carried everything.", Value: float64(stats.Snapshots), Counter: true},
		{Name: "policyd_relay_refused_total", Help: "Updates from upstream that were not taken: older, of a left epoch, or with another hash.", Value: float64(stats.Refused), Counter: true},
		{Name: "policyd_relay_save_failures_total", Help: "Times that the disk did not take the state.", Value: float64(stats.SaveFailures), Counter: true},
	}, pushSamples(hub, registry)...)
}
