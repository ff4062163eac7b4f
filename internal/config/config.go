// SPDX-License-Identifier: Apache-2.0

// Package config reads policyd's settings: defaults, then the file, then the environment,
// then flags. Unknown keys are errors. It builds nothing.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/policyd/policyd/internal/fault"
)

// Config is every setting of policyd.
type Config struct {
	Listen Listen
	Data   Data
	Etcd   Etcd
	Push   Push
	Relay  Relay
	Log    Log
}

// Listen holds the addresses that policyd serves on.
type Listen struct {
	GRPC string
	HTTP string
}

// Data says where the embedded etcd keeps its data; unused with Etcd.Endpoints.
type Data struct {
	Dir string
	// QuotaMiB bounds the embedded etcd's database.
	QuotaMiB int
}

// Etcd names an external cluster; with no endpoints policyd embeds etcd.
type Etcd struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
	User                      string
	PasswordFile              string
	// OutboxMax bounds the records that wait in etcd.
	OutboxMax int
	// NewEpoch has every instance take the data anew, also those that have left them for others.
	NewEpoch bool
}

// Push bounds the fan-out.
type Push struct {
	MaxStreams      int
	AcceptPerSecond int
	// ReconnectWindow is the time over which streams are told to come back on shutdown.
	ReconnectWindow time.Duration
	// Transport carries the watch streams: TransportGRPC or TransportLean.
	Transport string
}

// Relay says whom a relay follows. Unused by a policyd that has a store.
type Relay struct {
	// Upstream are addresses of policyd or of relays.
	Upstream                  []string
	CAFile, CertFile, KeyFile string
	TokenFile                 string
}

// Transports of the watch streams. Both speak gRPC to the SDKs.
const (
	TransportGRPC = "grpc" // grpc-go's server
	TransportLean = "lean" // a server made for many quiet streams
)

// Log says how policyd logs, on standard error.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text, json
}

// Default returns the settings of a policyd that nobody configured.
func Default() Config {
	return Config{
		Listen: Listen{GRPC: "127.0.0.1:7400", HTTP: "127.0.0.1:7480"},
		Data:   Data{Dir: "policyd-data", QuotaMiB: 2048},
		Etcd:   Etcd{OutboxMax: 10_000},
		Push:   Push{MaxStreams: 20_000, AcceptPerSecond: 2_000, ReconnectWindow: 10 * time.Second, Transport: TransportGRPC},
		Log:    Log{Level: "info", Format: "text"},
	}
}

// Setting is one leaf of Config: its flag, its key in the file and its variable follow one rule.
type Setting struct {
	Flag string // "grpc-addr"
	Key  string // "listen.grpc"
	Doc  string
	For  Role
	// Toggle: the flag without a value means true.
	Toggle bool
	get    func(*Config) string
	set    func(*Config, string) error
}

// Role is what a program does; a setting may be for one of them.
type Role int

// Roles of policyd. The zero value, of a setting, is all of them.
const (
	AnyRole Role = iota
	Store        // policyd on etcd
	Relays       // a relay of another policyd
)

// Fits reports whether a program in a role obeys the setting.
func (s Setting) Fits(role Role) bool { return s.For == AnyRole || role == AnyRole || s.For == role }

// Env returns the setting's environment variable.
func (s Setting) Env() string {
	return "POLICYD_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Value returns the setting as text.
func (s Setting) Value(c Config) string { return s.get(&c) }

// Settings returns every setting in the order of the reference.
func Settings() []Setting {
	return slices.Concat(commonSettings(), only(Store, storeSettings()), only(Relays, relaySettings()))
}

func only(role Role, settings []Setting) []Setting {
	for i := range settings {
		settings[i].For = role
	}
	return settings
}

func commonSettings() []Setting {
	return []Setting{
		text("grpc-addr", "listen.grpc", "address of gRPC: watch and admin", func(c *Config) *string { return &c.Listen.GRPC }),
		text("http-addr", "listen.http", "address of HTTP: health and metrics", func(c *Config) *string { return &c.Listen.HTTP }),
		text("data-dir", "data.dir", "directory of the embedded etcd, or of a relay's state", func(c *Config) *string { return &c.Data.Dir }),
		number("max-streams", "push.maxStreams", "watch streams served at once", bounds{1, 1_000_000}, func(c *Config) *int { return &c.Push.MaxStreams }),
		number("accept-per-second", "push.acceptPerSecond", "watch streams accepted per second", bounds{1, 1_000_000}, func(c *Config) *int { return &c.Push.AcceptPerSecond }),
		duration("reconnect-window", "push.reconnectWindow", "time over which clients are told to come back on shutdown", func(c *Config) *time.Duration { return &c.Push.ReconnectWindow }),
		text("watch-transport", "push.watchTransport", "what carries watch streams: grpc or lean", func(c *Config) *string { return &c.Push.Transport }),
		text("log-level", "log.level", "debug, info, warn or error", func(c *Config) *string { return &c.Log.Level }),
		text("log-format", "log.format", "text or json", func(c *Config) *string { return &c.Log.Format }),
	}
}

func storeSettings() []Setting {
	return []Setting{
		number("quota-mib", "data.quotaMiB", "bound of the embedded etcd's database in MiB", bounds{16, 8192}, func(c *Config) *int { return &c.Data.QuotaMiB }),
		list("etcd-endpoints", "etcd.endpoints", "external etcd cluster, comma-separated; empty: embedded etcd", func(c *Config) *[]string { return &c.Etcd.Endpoints }),
		text("etcd-ca-file", "etcd.caFile", "certificate authority of the etcd cluster", func(c *Config) *string { return &c.Etcd.CAFile }),
		text("etcd-cert-file", "etcd.certFile", "client certificate for the etcd cluster", func(c *Config) *string { return &c.Etcd.CertFile }),
		text("etcd-key-file", "etcd.keyFile", "key of the client certificate", func(c *Config) *string { return &c.Etcd.KeyFile }),
		text("etcd-user", "etcd.user", "user of the etcd cluster", func(c *Config) *string { return &c.Etcd.User }),
		text("etcd-password-file", "etcd.passwordFile", "file that holds the user's password", func(c *Config) *string { return &c.Etcd.PasswordFile }),
		number("outbox-max", "etcd.outboxMax", "records kept in etcd; the oldest go first", bounds{100, 1_000_000}, func(c *Config) *int { return &c.Etcd.OutboxMax }),
		toggle("new-epoch", "etcd.newEpoch", "have every instance take the data anew, once: they are right although a restore had replaced them", func(c *Config) *bool { return &c.Etcd.NewEpoch }),
	}
}

func relaySettings() []Setting {
	return []Setting{
		list("upstream", "relay.upstream", "policyd, or relays, that a relay follows, comma-separated", func(c *Config) *[]string { return &c.Relay.Upstream }),
		text("upstream-ca-file", "relay.caFile", "certificate authority of the upstream; TLS is used to any but this machine", func(c *Config) *string { return &c.Relay.CAFile }),
		text("upstream-cert-file", "relay.certFile", "client certificate for the upstream", func(c *Config) *string { return &c.Relay.CertFile }),
		text("upstream-key-file", "relay.keyFile", "key of the client certificate", func(c *Config) *string { return &c.Relay.KeyFile }),
		text("upstream-token-file", "relay.tokenFile", "file that holds a bearer token for the upstream", func(c *Config) *string { return &c.Relay.TokenFile }),
	}
}

// Origins says for each setting's key where its value came from.
type Origins map[string]string

// Load builds the settings. flags holds those that were given, by name; path is the file,
// "" for none; getenv reads the environment.
func Load(path string, getenv func(string) string, flags map[string]string) (Config, Origins, error) {
	c := Default()
	origins := Origins{}
	for _, s := range Settings() {
		origins[s.Key] = "default"
	}
	var errs []error
	if path != "" {
		values, err := readFile(path)
		if err != nil {
			return c, nil, err
		}
		errs = append(errs, c.take(path, origins, func(s Setting) (string, bool) { v, ok := values[s.Key]; return v, ok }))
	}
	errs = append(errs,
		c.take("environment", origins, func(s Setting) (string, bool) { v := getenv(s.Env()); return v, v != "" }),
		c.take("flag", origins, func(s Setting) (string, bool) { v, ok := flags[s.Flag]; return v, ok }),
		c.Validate())
	if err := errors.Join(errs...); err != nil {
		return c, nil, fault.Wrap(err, fault.Invalid, "bad_config", "configuration")
	}
	return c, origins, nil
}

func (c *Config) take(origin string, origins Origins, lookup func(Setting) (string, bool)) error {
	var errs []error
	for _, s := range Settings() {
		v, ok := lookup(s)
		if !ok {
			continue
		}
		if err := s.set(c, v); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", s.Key, origin, err))
			continue
		}
		origins[s.Key] = origin
	}
	return errors.Join(errs...)
}

// Validate reports every setting that cannot work, all at once.
func (c *Config) Validate() error {
	var errs []error
	for _, a := range []struct{ key, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.http", c.Listen.HTTP}} {
		if err := LoopbackOnly(a.addr); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.key, err))
		}
	}
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
	default:
		errs = append(errs, fmt.Errorf("log.level: unknown level %q (debug, info, warn, error)", c.Log.Level))
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		errs = append(errs, fmt.Errorf("log.format: unknown format %q (text, json)", c.Log.Format))
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		errs = append(errs, errors.New("etcd.certFile and etcd.keyFile: both or none"))
	}
	if (c.Relay.CertFile == "") != (c.Relay.KeyFile == "") {
		errs = append(errs, errors.New("relay.certFile and relay.keyFile: both or none"))
	}
	for _, addr := range c.Relay.Upstream {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("relay.upstream: %q is not host:port: %w", addr, err))
		}
	}
	if (c.Etcd.User == "") != (c.Etcd.PasswordFile == "") {
		errs = append(errs, errors.New("etcd.user and etcd.passwordFile: both or none"))
	}
	if len(c.Etcd.Endpoints) == 0 && c.Data.Dir == "" {
		errs = append(errs, errors.New("data.dir: the embedded etcd needs a directory"))
	}
	if t := c.Push.Transport; t != TransportGRPC && t != TransportLean {
		errs = append(errs, fmt.Errorf("push.watchTransport: unknown transport %q (grpc, lean)", t))
	}
	if w := c.Push.ReconnectWindow; w < 0 || w > 5*time.Minute {
		errs = append(errs, fmt.Errorf("push.reconnectWindow: %s is out of range (0s to 5m)", w))
	}
	return errors.Join(errs...)
}

// LoopbackOnly returns an error for addresses that other machines reach: without TLS and authentication
// anyone there could pull a switch.
func LoopbackOnly(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port: %w", addr, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q: port must be a number from 0 to 65535", addr)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%q is not a loopback address: policyd has no TLS and no authentication on its listeners, so it serves only 127.0.0.1, ::1 or localhost", addr)
}

// readFile flattens a YAML file to dotted keys and refuses keys that are no setting.
func readFile(path string) (map[string]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "config_file", "read configuration file")
	}
	var root yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&root); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "config_file", "parse "+path)
	}
	known := map[string]bool{}
	for _, s := range Settings() {
		known[s.Key] = true
	}
	values := map[string]string{}
	var errs []error
	var walk func(prefix string, n *yaml.Node)
	walk = func(prefix string, n *yaml.Node) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			key := prefix + k.Value
			_, twice := values[key]
			switch {
			case v.Kind == yaml.MappingNode:
				walk(key+".", v)
			case twice:
				errs = append(errs, fmt.Errorf("%s:%d:%d: %s is set twice", path, k.Line, k.Column, key))
			case !known[key]:
				errs = append(errs, fmt.Errorf("%s:%d:%d: unknown key %s (see: policyd config)", path, k.Line, k.Column, key))
			case v.Kind == yaml.SequenceNode:
				items := make([]string, 0, len(v.Content))
				for _, item := range v.Content {
					items = append(items, item.Value)
				}
				values[key] = strings.Join(items, ",")
			case v.Kind == yaml.ScalarNode:
				values[key] = v.Value
			default:
				errs = append(errs, fmt.Errorf("%s:%d:%d: %s has a value of the wrong type", path, v.Line, v.Column, key))
			}
		}
	}
	if len(root.Content) > 0 {
		if root.Content[0].Kind != yaml.MappingNode {
			return nil, fault.New(fault.Invalid, "config_file", "%s: not a mapping of settings", path)
		}
		walk("", root.Content[0])
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "config_file", "configuration file")
	}
	return values, nil
}

func text(flag, key, doc string, at func(*Config) *string) Setting {
	return Setting{
		Flag: flag, Key: key, Doc: doc,
		get: func(c *Config) string { return *at(c) },
		set: func(c *Config, v string) error { *at(c) = v; return nil },
	}
}

func list(flag, key, doc string, at func(*Config) *[]string) Setting {
	return Setting{
		Flag: flag, Key: key, Doc: doc,
		get: func(c *Config) string { return strings.Join(*at(c), ",") },
		set: func(c *Config, v string) error {
			*at(c) = nil
			for _, item := range strings.Split(v, ",") {
				if item = strings.TrimSpace(item); item != "" {
					*at(c) = append(*at(c), item)
				}
			}
			return nil
		},
	}
}

// bounds of a number, both included.
type bounds struct{ lo, hi int }

func number(flag, key, doc string, in bounds, at func(*Config) *int) Setting {
	return Setting{
		Flag: flag, Key: key, Doc: fmt.Sprintf("%s (%d to %d)", doc, in.lo, in.hi),
		get: func(c *Config) string { return strconv.Itoa(*at(c)) },
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < in.lo || n > in.hi {
				return fmt.Errorf("%q is not a number from %d to %d", v, in.lo, in.hi)
			}
			*at(c) = n
			return nil
		},
	}
}

func duration(flag, key, doc string, at func(*Config) *time.Duration) Setting {
	return Setting{
		Flag: flag, Key: key, Doc: doc,
		get: func(c *Config) string { return at(c).String() },
		set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil {
				return fmt.Errorf("%q is not a duration with a unit, for example 10s", v)
			}
			*at(c) = d
			return nil
		},
	}
}

func toggle(flag, key, doc string, at func(*Config) *bool) Setting {
	return Setting{
		Flag: flag, Key: key, Doc: doc, Toggle: true,
		get: func(c *Config) string { return strconv.FormatBool(*at(c)) },
		set: func(c *Config, v string) error {
			on, err := strconv.ParseBool(v)
			if err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			*at(c) = on
			return nil
		},
	}
}
