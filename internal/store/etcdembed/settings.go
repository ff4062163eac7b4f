// SPDX-License-Identifier: Apache-2.0

package etcdembed

import (
	"crypto/rand"
	"log/slog"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// settings returns the configuration of a member without listeners.
func settings(cfg Config) *embed.Config {
	c := embed.NewConfig()
	c.Name = "policyd"
	c.Dir = cfg.Dir
	c.ListenPeerUrls, c.ListenClientUrls, c.ListenClientHttpUrls = nil, nil, nil
	c.AdvertiseClientUrls = nil
	// The advertised peer address is only a name: nothing listens there.
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// Read at the first start only. A random token gives each set of data an id of its own,
	// so that data restored elsewhere do not pass for these.
	c.InitialClusterToken = rand.Text()

	c.AutoCompactionMode = embed.CompactorModePeriodic
	c.AutoCompactionRetention = DefaultRetention.String()
	if cfg.Retention > 0 {
		c.AutoCompactionRetention = cfg.Retention.String()
	}
	c.QuotaBackendBytes = DefaultQuota
	if cfg.Quota > 0 {
		c.QuotaBackendBytes = cfg.Quota
	}
	c.MaxRequestBytes = maxRequest
	if cfg.FastTick {
		c.TickMs, c.ElectionMs = 10, 100
	}
	c.Metrics = "basic"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(bridge(cfg.Logger))
	return c
}

// bridge returns a zap logger that writes warnings to log as information and errors as
// warnings. etcd ends the process
// on data it cannot use; here that is a panic, which Start turns into an error.
func bridge(log *slog.Logger) *zap.Logger {
	options := []zap.Option{zap.WithFatalHook(zapcore.WriteThenPanic)}
	if log == nil {
		return zap.New(zapcore.NewNopCore(), options...)
	}
	return zap.New(&slogCore{log: log.With("component", "etcd")}, options...)
}

// slogCore is a zapcore.Core on top of slog.
type slogCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (*slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: c.log, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// maxLogged bounds a field: of a slow request etcd reports all of it.
const maxLogged = 500

func (c *slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(values)
	}
	for _, f := range fields {
		f.AddTo(values)
	}
	for name, value := range values.Fields {
		if text, ok := value.(string); ok && len(text) > maxLogged {
			values.Fields[name] = strings.ToValidUTF8(text[:maxLogged], "") + "…"
		}
	}
	// One level down: what etcd warns of at every start, and repairs by itself, is nothing
	// that a person must act on.
	log := c.log.Info
	if entry.Level > zapcore.WarnLevel {
		log = c.log.Warn
	}
	log("etcd reports", "event", entry.Message, "fields", values.Fields)
	return nil
}

func (*slogCore) Sync() error { return nil }
