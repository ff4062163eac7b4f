// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
)

// etcd is the store's other end: a member inside the process, or a client of a cluster.
type etcd struct {
	client *clientv3.Client
	close  func() error
	member *etcdembed.Server // nil for a cluster
}

func openEtcd(ctx context.Context, cfg config.Config, logger *slog.Logger) (etcd, error) {
	if len(cfg.Etcd.Endpoints) == 0 {
		server, err := etcdembed.Start(ctx, etcdembed.Config{
			Dir: cfg.Data.Dir, Logger: logger, Quota: int64(cfg.Data.QuotaMiB) << 20, FastTick: true,
		})
		if err != nil {
			return etcd{}, fmt.Errorf("embedded etcd: %w", err)
		}
		return etcd{client: server.Client(), close: server.Close, member: server}, nil
	}
	password := ""
	if cfg.Etcd.PasswordFile != "" {
		raw, err := os.ReadFile(cfg.Etcd.PasswordFile)
		if err != nil {
			return etcd{}, fmt.Errorf("read etcd password: %w", err)
		}
		password = strings.TrimRight(string(raw), "\r\n")
	}
	client, err := store.Open(ctx, store.External{
		Endpoints: cfg.Etcd.Endpoints, CAFile: cfg.Etcd.CAFile, CertFile: cfg.Etcd.CertFile, KeyFile: cfg.Etcd.KeyFile,
		User: cfg.Etcd.User, Password: password, Logger: logger,
	})
	if err != nil {
		return etcd{}, fmt.Errorf("etcd cluster: %w", err)
	}
	return etcd{client: client, close: client.Close}, nil
}
