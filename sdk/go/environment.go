// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// environment looks a variable up, as os.LookupEnv does.
type environment func(name string) (string, bool)

func (env environment) value(name string) string {
	v, _ := env(name)
	return v
}

// readEnvironment sets the defaults that options then override.
func (c *config) readEnvironment(env environment) {
	c.setAddr("POLICYD_ADDR", env.value("POLICYD_ADDR"))
	c.tokenFile = env.value("POLICYD_TOKEN_FILE")
	c.policyFile = env.value("POLICYD_FILE")
	c.tls = tlsFiles{env.value("POLICYD_CA_FILE"), env.value("POLICYD_CERT_FILE"), env.value("POLICYD_KEY_FILE")}
	c.setTargets("POLICYD_TARGETS", strings.Split(env.value("POLICYD_TARGETS"), ","))
	if m := env.value("POLICYD_MODE"); m != "" {
		c.setMode("POLICYD_MODE", m)
	}

	otel := resourceAttributes(env.value("OTEL_RESOURCE_ATTRIBUTES"))
	if name := env.value("OTEL_SERVICE_NAME"); name != "" {
		otel["service.name"] = name
	}
	c.namespace = c.name(env.value("POLICYD_NAMESPACE"), "POLICYD_NAMESPACE", otel["service.namespace"])
	c.service = c.name(env.value("POLICYD_SERVICE"), "POLICYD_SERVICE", otel["service.name"])

	c.instance = defaultInstance(otel["service.instance.id"])
	if id := env.value("POLICYD_INSTANCE"); id != "" {
		c.setInstance("POLICYD_INSTANCE", id)
	}

	if dir, set := env("POLICYD_CACHE_DIR"); set {
		c.cacheDir = &dir
	}
	c.logger = c.defaultLogger(env.value("POLICYD_LOG"))
}

// name prefers own. What OpenTelemetry says was not meant for policyd: where it is no valid
// name even in lower case, it is left out instead of being an error.
func (c *config) name(own, variable, otel string) string {
	if own != "" {
		return c.segment(variable, own)
	}
	otel = strings.ToLower(otel)
	if s, err := engine.ParseScope(otel); err != nil || s.Level() != engine.LevelNamespace {
		return ""
	}
	return otel
}

// resourceAttributes reads key=value pairs, percent-encoded, separated by commas.
func resourceAttributes(list string) map[string]string {
	attrs := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		if plain, err := url.PathUnescape(strings.TrimSpace(value)); err == nil {
			attrs[strings.TrimSpace(key)] = plain
		}
	}
	return attrs
}

func defaultInstance(otel string) string {
	var c config
	if c.setInstance("", otel); c.instance != "" {
		return c.instance
	}
	host, _ := os.Hostname()
	if c.setInstance("", host); c.instance == "" {
		c.instance = "instance"
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf("%.110s-%s", c.instance, hex.EncodeToString(random[:]))
}

func (c *config) defaultLogger(level string) *slog.Logger {
	switch level {
	case "", "info":
		return slog.New(processLog{slog.LevelInfo})
	case "debug":
		return slog.New(processLog{slog.LevelDebug})
	case "off":
	default:
		c.fail("POLICYD_LOG", fmt.Errorf("unknown level %.40q (off, info, debug)", level))
	}
	return slog.New(slog.DiscardHandler)
}

// safeLog survives a handler of the application that panics: it must not end a goroutine of
// ours, or the call that happens to log.
type safeLog struct{ slog.Handler }

func (l safeLog) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("log handler panicked: %v", p)
		}
	}()
	return l.Handler.Handle(ctx, r)
}

func (l safeLog) Enabled(ctx context.Context, level slog.Level) (yes bool) {
	defer func() { _ = recover() }()
	return l.Handler.Enabled(ctx, level)
}

func (l safeLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return safeLog{l.Handler.WithAttrs(attrs)}
}

func (l safeLog) WithGroup(name string) slog.Handler { return safeLog{l.Handler.WithGroup(name)} }

// processLog writes to whatever slog.Default is when the line is written: applications set
// it up after their clients exist.
type processLog struct{ min slog.Level }

func (p processLog) handler() slog.Handler { return slog.Default().Handler() }

func (p processLog) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= p.min && p.handler().Enabled(ctx, l)
}

func (p processLog) Handle(ctx context.Context, r slog.Record) error {
	return p.handler().Handle(ctx, r)
}

func (p processLog) WithAttrs(attrs []slog.Attr) slog.Handler { return p.handler().WithAttrs(attrs) }

func (p processLog) WithGroup(name string) slog.Handler { return p.handler().WithGroup(name) }

// cacheFile names the file after the instance's place and targets, so that clients which see
// different documents do not share one.
func cacheFile(c *config) state.File {
	var dirs []string
	switch {
	case c.cacheDir == nil:
		if dir, err := os.UserCacheDir(); err == nil {
			dirs = append(dirs, filepath.Join(dir, "policyd"))
		}
		dirs = append(dirs, filepath.Join(os.TempDir(), "policyd-"+strconv.Itoa(os.Getuid())))
	case *c.cacheDir != "":
		dirs = append(dirs, *c.cacheDir)
	}
	h := sha256.New()
	for _, s := range append([]string{c.namespace, c.service}, scopeNames(c.targets)...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	name := cmp.Or(c.namespace, string(engine.Global))
	if c.service != "" {
		name += "-" + c.service
	}
	name = fmt.Sprintf("%s-%x.cache", name, h.Sum(nil)[:6])
	for i, dir := range dirs {
		dirs[i] = filepath.Join(dir, name)
	}
	return state.File{Paths: dirs}
}
