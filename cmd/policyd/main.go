// SPDX-License-Identifier: Apache-2.0

// Policyd is the control plane: it keeps policies and kill switches in etcd and streams them
// to SDKs.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/daemon"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "policyd",
		Short:         "Control plane for retries, budgets and circuit breakers",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.AddCommand(serveCmd(), relayCmd(), devCmd(), demoFleetCmd(), configCmd(), versionCmd())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

// settingFlags declares a flag per setting that a role obeys and returns a function that loads the settings.
func settingFlags(cmd *cobra.Command, role config.Role) func() (config.Config, config.Origins, error) {
	file := cmd.Flags().String("config", os.Getenv("POLICYD_CONFIG"), "configuration file")
	defaults := config.Default()
	for _, s := range config.Settings() {
		if s.Fits(role) {
			cmd.Flags().String(s.Flag, s.Value(defaults), s.Doc)
			if s.Toggle {
				cmd.Flags().Lookup(s.Flag).NoOptDefVal = "true"
			}
		}
	}
	return func() (config.Config, config.Origins, error) {
		given := map[string]string{}
		for _, s := range config.Settings() {
			if f := cmd.Flags().Lookup(s.Flag); f != nil && f.Changed {
				given[s.Flag] = f.Value.String()
			}
		}
		return config.Load(*file, os.Getenv, given)
	}
}

func serveCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Serve, for production", Args: cobra.NoArgs}
	load := settingFlags(cmd, config.Store)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, _, err := load()
		if err != nil {
			return err
		}
		return daemon.Run(cmd.Context(), cfg, newLogger(cfg.Log, cmd.ErrOrStderr()), nil)
	}
	return cmd
}

func relayCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "relay", Short: "Serve a cell with what another policyd sends", Args: cobra.NoArgs,
		Example: "  policyd relay --upstream policyd-1:7400,policyd-2:7400 --data-dir /var/lib/policyd-relay",
	}
	load := settingFlags(cmd, config.Relays)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, _, err := load()
		if err != nil {
			return err
		}
		return daemon.RunRelay(cmd.Context(), cfg, newLogger(cfg.Log, cmd.ErrOrStderr()), nil)
	}
	return cmd
}

func configCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print every setting, its value and where it comes from", Args: cobra.NoArgs}
	load := settingFlags(cmd, config.AnyRole)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, origins, err := load()
		if err != nil {
			return err
		}
		for _, s := range config.Settings() {
			fmt.Fprintf(cmd.OutOrStdout(), "%-22s %-24s %-12s --%s  %s\n", s.Key, s.Value(cfg), origins[s.Key], s.Flag, s.Env())
		}
		return nil
	}
	return cmd
}

func versionCmd() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(cmd *cobra.Command, _ []string) {
		fmt.Fprintln(cmd.OutOrStdout(), "policyd", daemon.Version())
	}}
}

func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Level)) // validated by config
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
