// SPDX-License-Identifier: Apache-2.0

// Package demo is a small fleet under real traffic: three services, twenty instances of the
// Go SDK, and a backend whose failure rate, latency and capacity can be turned. It shows
// what policies and switches do; it lives in a process of its own, so that it goes on when
// policyd is gone.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// Config says where the demo serves and whom its instances ask.
type Config struct {
	// Listen is the address of the backend and of the controls.
	Listen string
	// Policyd is the address of policyd's gRPC.
	Policyd string
	// CacheDir holds the disk caches of the instances.
	CacheDir string
	// CallsPerSecond of each instance.
	CallsPerSecond float64
	// AbandonAfter ends the demo when no instance has seen policyd for so long; 0: never.
	AbandonAfter time.Duration
	Logger       *slog.Logger
}

// Run serves the demo until ctx ends, someone asks it to quit, or policyd stays away.
func Run(ctx context.Context, cfg Config) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	backend := newBackend()
	fleet, err := startFleet(ctx, cfg, listener.Addr().String())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{
		Handler:           controls(backend, fleet, quit),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	abandoned := fleet.abandoned(ctx, cfg.AbandonAfter)
	select {
	case <-ctx.Done():
	case <-abandoned:
		cfg.Logger.InfoContext(ctx, "policyd stayed away, demo ends", "after", cfg.AbandonAfter)
	case err = <-served:
	}
	quit()
	fleet.stop()
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if stopErr := server.Shutdown(stopCtx); stopErr != nil {
		err = errors.Join(err, server.Close())
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// Running reports whether a demo answers at addr.
func Running(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/demo", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.Header.Get(demoHeader) != ""
}

const demoHeader = "Policyd-Demo"

func pid() string { return fmt.Sprint(os.Getpid()) }
