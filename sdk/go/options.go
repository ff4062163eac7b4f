// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Option configures a Client. Every option wins over its environment variable. What is wrong
// in one, or in the environment, is an error of [New], and is logged and left out by [Default].
type Option func(*config)

// Mode decides whether decisions act.
type Mode string

// Modes of a client.
const (
	Enforce Mode = "enforce" // decisions act
	Observe Mode = "observe" // decide, count and trace, but change nothing
	Off     Mode = "off"     // pass calls through; visible in the fleet view
)

func (m Mode) engine() engine.Mode {
	switch m {
	case Observe:
		return engine.ModeObserve
	case Off:
		return engine.ModeOff
	default:
		return engine.ModeEnforce
	}
}

// config is what New was asked for. Read-only once New has returned.
type config struct {
	addrs      []string
	tokenFile  string
	namespace  string
	service    string
	instance   string
	targets    []engine.Scope
	mode       Mode
	policyFile string
	cacheDir   *string // nil: the default; empty: no cache
	logger     *slog.Logger
	hooks      Hooks

	// creds is nil for the default: plaintext to loopback, TLS to anything else.
	creds credentials.TransportCredentials
	tls   tlsFiles
	// dialOptions are for tests: other networks than TCP.
	dialOptions []grpc.DialOption

	// uniform replaces the random numbers of endpoints, sent is told of each attempt, and
	// keeps has the keeper run without policyd: for package policytest.
	uniform func() uint64
	sent    func(*endpoint, Attempt)
	keeps   bool

	errs []error
}

// tlsFiles name PEM files that are read again at each connection.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) set() bool { return f != tlsFiles{} }

// WithAddr sets the gRPC address of policyd, host:port; several are separated by commas and
// tried in turn. Empty, the default, means that nothing is dialled. POLICYD_ADDR.
func WithAddr(hostport string) Option {
	return func(c *config) { c.setAddr("WithAddr", hostport) }
}

// WithTokenFile names a file that holds the bearer token; it is read at each connection, so
// that a rotated token is taken up. Default none. POLICYD_TOKEN_FILE.
func WithTokenFile(path string) Option {
	return func(c *config) { c.tokenFile = path }
}

// WithTLS secures the connection with files in PEM form: ca verifies policyd (empty: the
// system's roots), cert and key identify this instance (empty: a token or nothing does).
// Without it, addresses that are not loopback use TLS with the system's roots.
// POLICYD_CA_FILE, POLICYD_CERT_FILE, POLICYD_KEY_FILE.
func WithTLS(ca, cert, key string) Option {
	return func(c *config) { c.tls = tlsFiles{ca, cert, key} }
}

// WithTransportCredentials sets how the connection to policyd is secured and wins over
// WithTLS. It is the way to plaintext beyond loopback, for example inside a service mesh. No
// variable.
func WithTransportCredentials(creds credentials.TransportCredentials) Option {
	return func(c *config) { c.creds = creds }
}

// WithService names the calling service in the fleet view; its namespace is the default
// target. POLICYD_NAMESPACE and POLICYD_SERVICE, else OpenTelemetry's service.namespace and
// service.name.
func WithService(namespace, service string) Option {
	return func(c *config) {
		c.namespace = c.segment("WithService", namespace)
		c.service = c.segment("WithService", service)
	}
}

// WithInstance names this process; the name must be unique in the fleet. POLICYD_INSTANCE,
// else OpenTelemetry's service.instance.id, else the host's name and a random part.
func WithInstance(id string) Option {
	return func(c *config) { c.setInstance("WithInstance", id) }
}

// WithTargets lists the scopes whose services this instance calls. Default: its own
// namespace. POLICYD_TARGETS, separated by commas.
func WithTargets(scopes ...string) Option {
	return func(c *config) { c.setTargets("WithTargets", scopes) }
}

// WithMode sets whether decisions act. Default Enforce. POLICYD_MODE.
func WithMode(m Mode) Option {
	return func(c *config) { c.setMode("WithMode", string(m)) }
}

// WithPolicyFile names a file of documents, YAML or JSON, as policyctl reads and `policyctl
// export` writes it, for development and air gaps. It is used until policyd answers, and not at
// all by a process that starts with what policyd said before, in the disk cache. It is read
// again when it changes (write it whole: to another name, then rename). New fails on a file
// that it cannot read; later, the last good content stays. Default none. POLICYD_FILE.
func WithPolicyFile(path string) Option {
	return func(c *config) { c.policyFile = path }
}

// WithCacheDir sets where the last good policy is kept across restarts; "" disables it.
// Default: the user's cache directory, else the temporary one. POLICYD_CACHE_DIR.
func WithCacheDir(dir string) Option {
	return func(c *config) { c.cacheDir = &dir }
}

// WithLogger sets where state changes are logged: one line each, none per call. Default
// slog.Default at the level of POLICYD_LOG (off, info, debug; default info).
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l == nil {
			c.fail("WithLogger", errors.New("logger is nil; leave the option out for the default"))
			return
		}
		c.logger = l
	}
}

// WithHooks adds functions that are told of decisions and state changes; those of several
// WithHooks are told in turn. They are called concurrently: see [Hooks]. Default none; no
// variable.
func WithHooks(h Hooks) Option {
	return func(c *config) { c.hooks = c.hooks.and(h) }
}

func newConfig(env environment, opts []Option) (config, error) {
	c := config{mode: Enforce}
	c.readEnvironment(env)
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.tls.cert == "" != (c.tls.key == "") {
		c.fail("WithTLS", errors.New("certificate and key go together; one of them is missing"))
	}
	c.logger = slog.New(safeLog{c.logger.Handler()})
	return c, errors.Join(c.errs...)
}

func (c *config) fail(source string, err error) {
	c.errs = append(c.errs, fmt.Errorf("policyd: %s: %w", source, err))
}

func (c *config) setAddr(source, list string) {
	c.addrs = nil
	for addr := range strings.SplitSeq(list, ",") {
		if addr = strings.TrimSpace(addr); addr == "" {
			continue
		}
		if err := checkAddr(addr); err != nil {
			c.fail(source, err)
			continue
		}
		c.addrs = append(c.addrs, addr)
	}
}

// checkAddr never repeats what is not host:port: it may hold credentials.
func checkAddr(addr string) error {
	if scheme, _, ok := strings.Cut(addr, "://"); ok {
		return fmt.Errorf("address starts with a scheme (%.10q): write host:port", scheme)
	}
	if strings.ContainsAny(addr, "@/?#") {
		return errors.New("address holds more than host:port")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return fmt.Errorf("address %q is not host:port", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("address %q: port is not a number from 1 to 65535", addr)
	}
	return nil
}

// loopback reports whether addr names this machine by number or as localhost.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *config) segment(source, s string) string {
	if s == "" {
		return ""
	}
	scope, err := engine.ParseScope(s)
	if err != nil {
		c.fail(source, err)
		return ""
	}
	if scope.Level() != engine.LevelNamespace {
		c.fail(source, fmt.Errorf("%q is not a single name", s))
		return ""
	}
	return s
}

const maxInstance = 128

func (c *config) setInstance(source, id string) {
	if id == "" || len(id) > maxInstance || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		c.fail(source, fmt.Errorf("instance id must have 1 to %d printable ASCII characters without spaces", maxInstance))
		return
	}
	c.instance = id
}

const maxTargets = 64

func (c *config) setTargets(source string, scopes []string) {
	c.targets = nil
	for _, s := range scopes {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		scope, err := engine.ParseScope(s)
		if err != nil {
			c.fail(source, err)
			continue
		}
		c.targets = append(c.targets, scope)
	}
	if len(c.targets) > maxTargets {
		c.fail(source, fmt.Errorf("%d targets: at most %d", len(c.targets), maxTargets))
		c.targets = c.targets[:maxTargets] // policyd would refuse the instance
	}
}

func (c *config) setMode(source, word string) {
	switch m := Mode(word); m {
	case Enforce, Observe, Off:
		c.mode = m
	default:
		c.fail(source, fmt.Errorf("unknown mode %.40q (enforce, observe, off)", word))
	}
}
