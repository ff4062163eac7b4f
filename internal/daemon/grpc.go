// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/push"
	"github.com/policyd/policyd/internal/push/lean"
	"github.com/policyd/policyd/internal/rpc"
)

// service is what a gRPC server serves.
type service interface {
	Register(to grpc.ServiceRegistrar)
}

// edge is what listens for gRPC: grpc-go's server, alone or behind the lean transport, which
// keeps the watch streams for itself.
type edge struct {
	server *grpc.Server
	lean   *lean.Server // nil: grpc-go serves everything
	health *health.Server
}

func newEdge(cfg config.Config, logger *slog.Logger, hub *push.Hub, services ...service) (*edge, error) {
	e := &edge{
		server: grpc.NewServer(append(rpc.Options(logger), push.ServerOptions()...)...),
		health: health.NewServer(),
	}
	for _, s := range append(services, hub) {
		s.Register(e.server)
	}
	healthv1.RegisterHealthServer(e.server, e.health)
	reflection.Register(e.server)
	if cfg.Push.Transport != config.TransportLean {
		return e, nil
	}
	var err error
	e.lean, err = lean.New(lean.Config{
		Codec: push.Codec(), Logger: logger.With("component", "lean"),
		Limits: lean.Limits{Message: push.MaxRequest},
	})
	if err != nil {
		return nil, fmt.Errorf("watch transport: %w", err)
	}
	hub.Register(e.lean)
	return e, nil
}

func (e *edge) serve(l net.Listener) error {
	if e.lean == nil {
		return stopped(e.server.Serve(l))
	}
	var both errgroup.Group
	both.Go(func() error {
		// Only the lean server closes it, which says itself when that is a failure.
		if err := e.server.Serve(e.lean.Others()); !errors.Is(err, net.ErrClosed) {
			return stopped(err)
		}
		return nil
	})
	both.Go(func() error { return e.lean.Serve(l) })
	return both.Wait()
}

// stopped forgives a server that was told to stop before it began.
func stopped(err error) error {
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// stop lets requests finish, and cuts what is left when ctx ends.
func (e *edge) stop(ctx context.Context) {
	done := make(chan struct{})
	go func() { e.server.GracefulStop(); close(done) }()
	if e.lean != nil {
		e.lean.Shutdown(ctx)
	}
	select {
	case <-done:
	case <-ctx.Done():
		e.server.Stop()
		<-done
	}
}
