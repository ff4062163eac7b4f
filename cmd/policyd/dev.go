// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/daemon"
	"github.com/policyd/policyd/internal/demo"
)

// devCmd runs policyd for a look around: embedded etcd in a temporary or given directory,
// and with --demo a fleet under traffic in a process of its own.
func devCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "dev", Short: "Serve for a look around, with embedded etcd and a demo fleet", Args: cobra.NoArgs}
	withDemo := cmd.Flags().Bool("demo", false, "start a demo fleet under traffic")
	demoAddr := cmd.Flags().String("demo-addr", "127.0.0.1:7490", "address of the demo's backend and controls")
	load := settingFlags(cmd, config.Store)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, origins, err := load()
		if err != nil {
			return err
		}
		if err := config.LoopbackOnly(*demoAddr); err != nil {
			return fmt.Errorf("--demo-addr: %w", err)
		}
		if origins["data.dir"] == "default" {
			dir, err := os.MkdirTemp("", "policyd-dev-")
			if err != nil {
				return fmt.Errorf("make a data directory: %w", err)
			}
			defer os.RemoveAll(dir)
			cfg.Data.Dir = dir
		}
		if origins["log.level"] == "default" {
			cfg.Log.Level = "warn"
		}
		logger := newLogger(cfg.Log, cmd.ErrOrStderr())
		if !*withDemo {
			return daemon.Run(cmd.Context(), cfg, logger, func(a daemon.Addrs) {
				fmt.Fprintf(cmd.OutOrStdout(), "policyd is ready: gRPC %s, HTTP %s\n", a.GRPC, a.HTTP)
			})
		}
		return runWithDemo(cmd.Context(), cfg, *demoAddr, logger, cmd.OutOrStdout())
	}
	return cmd
}

func runWithDemo(ctx context.Context, cfg config.Config, addr string, logger *slog.Logger, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var fleet *exec.Cmd
	err := daemon.Run(ctx, cfg, logger, func(a daemon.Addrs) {
		var err error
		if fleet, err = startDemo(ctx, cfg, a, addr); err != nil {
			cancel(err)
			return
		}
		printWelcome(out, a, addr)
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, stopDemo(fleet))
}

// startDemo writes the demo's policies if there are none and starts the fleet, unless one
// from an earlier run is still there.
func startDemo(ctx context.Context, cfg config.Config, a daemon.Addrs, addr string) (*exec.Cmd, error) {
	if err := demo.Seed(ctx, a.GRPC); err != nil {
		return nil, fmt.Errorf("write the demo's policies: %w", err)
	}
	if demo.Running(ctx, addr) {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program of the demo fleet: %w", err)
	}
	// Not tied to ctx: the fleet is asked to end, and outlives a policyd that is killed.
	fleet := exec.Command(self, "demo-fleet", "--listen", addr, "--policyd", a.GRPC, "--cache-dir", filepath.Join(cfg.Data.Dir, "sdk-cache")) //nolint:noctx // outlives policyd on purpose
	fleet.Stderr = os.Stderr
	if err := fleet.Start(); err != nil {
		return nil, fmt.Errorf("start the demo fleet: %w", err)
	}
	for !demo.Running(ctx, addr) {
		select {
		case <-ctx.Done():
			return fleet, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fleet, nil
}

func stopDemo(fleet *exec.Cmd) error {
	if fleet == nil {
		return nil
	}
	_ = fleet.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	if err := fleet.Wait(); err != nil {
		return fmt.Errorf("demo fleet: %w", err)
	}
	return nil
}

func printWelcome(out io.Writer, a daemon.Addrs, addr string) {
	fmt.Fprintf(out, `policyd %s is ready (gRPC %s, HTTP %s, process %d); 20 instances call http://%s. In a second terminal:
  bin/policyctl status
  bin/policyctl switch disable-retries global --for 10m --incident INC-1 --reason "first try" --confirm=global --yes
  curl %[5]s/backend                                  # retries fall to 0; revert brings them back
  curl -X POST '%[5]s/backend?fail=0.5&latency=200ms' # make the backend sick; curl %[5]s shows more
  bin/policyctl edit shop/payments                    # change a policy; policyctl fleet shows who has it
`, daemon.Version(), a.GRPC, a.HTTP, os.Getpid(), addr)
}

func demoFleetCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "demo-fleet", Short: "Run only the demo fleet", Args: cobra.NoArgs, Hidden: true}
	cfg := demo.Config{}
	cmd.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:7490", "address of the backend and the controls")
	cmd.Flags().StringVar(&cfg.Policyd, "policyd", "127.0.0.1:7400", "address of policyd's gRPC")
	cmd.Flags().StringVar(&cfg.CacheDir, "cache-dir", "", "directory of the instances' disk caches")
	cmd.Flags().Float64Var(&cfg.CallsPerSecond, "rate", 10, "calls per second of each instance")
	cmd.Flags().DurationVar(&cfg.AbandonAfter, "abandon-after", 15*time.Minute, "end when policyd stays away for so long; 0: never")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.LoopbackOnly(cfg.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if cfg.CallsPerSecond <= 0 {
			return fmt.Errorf("--rate must be above 0")
		}
		cfg.Logger = newLogger(config.Log{Level: "warn", Format: "text"}, cmd.ErrOrStderr())
		return demo.Run(cmd.Context(), cfg)
	}
	return cmd
}
