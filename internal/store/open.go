// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
)

// External says how to reach an etcd cluster. It prints itself without secrets.
type External struct {
	// Endpoints of all members, as URL or host:port. A user and password in a URL count
	// when User is empty.
	Endpoints []string
	// Files with the authority that signs the servers, and with our certificate; empty: the
	// system's authorities, and none.
	CAFile, CertFile, KeyFile string
	// ServerName to expect in the servers' certificates; empty: their host.
	ServerName string
	User       string
	Password   string
	// Logger hears why connecting takes long; nil: nobody does.
	Logger *slog.Logger
}

// LogValue is what a log may say of e.
func (e External) LogValue() slog.Value { return slog.StringValue(e.String()) }

// String names the endpoints, without users and passwords.
func (e External) String() string {
	shown := make([]string, len(e.Endpoints))
	for i, endpoint := range e.Endpoints {
		shown[i], _, _ = splitUser(endpoint)
	}
	return strings.Join(shown, ",")
}

// GoString is String, so that %#v shows no password either.
func (e External) GoString() string { return e.String() }

const (
	dialKeepAlive        = 10 * time.Second
	dialKeepAliveTimeout = 3 * time.Second
	authTimeout          = 5 * time.Second
	// maxRequest fits a batch of 100 large documents; etcd may be set to take less.
	maxRequest = 10 << 20
)

// Open returns a client of an etcd cluster, to be closed by the caller. Without a user it
// does not wait for the cluster. With one it must log in first, and tries until ctx ends;
// a wrong password is an error at once.
func Open(ctx context.Context, cfg External) (*clientv3.Client, error) {
	settings, err := settings(cfg)
	if err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for pause, said := 100*time.Millisecond, false; ; pause = min(2*pause, 5*time.Second) {
		client, err := dial(ctx, settings)
		if err == nil {
			return client, nil
		}
		if !unavailable(err) && ctx.Err() == nil {
			return nil, translate(err, "log in to etcd at "+cfg.String())
		}
		if !said {
			said = true
			log.Warn("etcd cannot be reached, trying on", "endpoints", cfg.String(), "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, translate(ctx.Err(), "log in to etcd at "+cfg.String())
		case <-time.After(pause):
		}
	}
}

// dial makes a client that outlives ctx, though ctx ends the attempt.
func dial(ctx context.Context, settings clientv3.Config) (*clientv3.Client, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	settings.Context = life
	client, err := clientv3.New(settings)
	stop()
	if err != nil {
		end()
		return nil, err
	}
	context.AfterFunc(client.Ctx(), end) //nolint:contextcheck // lives as long as the client, not as ctx
	return client, nil
}

func settings(cfg External) (clientv3.Config, error) {
	c := clientv3.Config{
		Username:             cfg.User,
		Password:             cfg.Password,
		DialTimeout:          authTimeout,
		DialKeepAliveTime:    dialKeepAlive,
		DialKeepAliveTimeout: dialKeepAliveTimeout,
		MaxCallSendMsgSize:   maxRequest,
		Logger:               zap.NewNop(), // what matters comes back as an error
		// 100 ms doubling to 5 s: 16 attempts in a minute without etcd, back within 6 s.
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: 5 * time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
			grpc.WithChainStreamInterceptor(keepOneStream),
		},
	}
	secure := false
	for _, endpoint := range cfg.Endpoints {
		bare, user, err := splitUser(endpoint)
		if err != nil {
			return c, err
		}
		if user != nil && c.Username == "" {
			c.Username = user.Username()
			c.Password, _ = user.Password()
		}
		secure = secure || strings.HasPrefix(bare, "https://")
		c.Endpoints = append(c.Endpoints, bare)
	}
	if len(c.Endpoints) == 0 {
		return c, invalid("etcd_endpoints", "no etcd endpoint is given")
	}
	if (c.Username == "") != (c.Password == "") {
		return c, invalid("etcd_user", "an etcd user needs a password, and a password a user")
	}
	if secure || cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" {
		var err error
		if c.TLS, err = tlsConfig(cfg); err != nil {
			return c, err
		}
	}
	return c, nil
}

// oneStream is a watch that must not go on over another stream than its first: what is there
// may have been put back to an older copy, and etcd's client would not notice. It also ends
// the stream with the watch, which etcd's client forgets if it is connecting at that moment.
type oneStream struct {
	opened atomic.Bool
	atEnd  func(func())
}

type oneStreamKey struct{}

func withOneStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, oneStreamKey{}, &oneStream{atEnd: func(f func()) { context.AfterFunc(ctx, f) }})
}

//nolint:revive // the signature of an interceptor
func keepOneStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	one, ok := ctx.Value(oneStreamKey{}).(*oneStream)
	if !ok {
		return next(ctx, desc, conn, method, opts...)
	}
	if one.opened.Load() {
		// Not Unavailable, after which etcd's client would try again.
		return nil, status.Error(codes.Aborted, "the connection of the watch broke")
	}
	ctx, cancel := context.WithCancel(ctx)
	one.atEnd(cancel)
	stream, err := next(ctx, desc, conn, method, opts...)
	if err == nil {
		one.opened.Store(true)
	}
	return stream, err
}

// splitUser takes the user out of an endpoint. Errors do not repeat what may be a password.
func splitUser(endpoint string) (bare string, user *url.Userinfo, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, rest = "", endpoint
	}
	host := rest
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		host = rest[i+1:]
		name, password, _ := strings.Cut(rest[:i], ":")
		if name, err = url.PathUnescape(name); err == nil {
			password, err = url.PathUnescape(password)
		}
		if err != nil {
			return host, nil, invalid("etcd_endpoints", "the user or password in the endpoint of %s is not encoded as in a URL", host)
		}
		user = url.UserPassword(name, password)
	}
	host = strings.TrimSuffix(host, "/")
	switch {
	case host == "":
		return "", nil, invalid("etcd_endpoints", "an etcd endpoint has no host")
	case scheme == "":
		return host, user, nil
	case scheme != "http" && scheme != "https" && scheme != "unix" && scheme != "unixs":
		return host, nil, invalid("etcd_endpoints", "the scheme %q of the endpoint of %s is not http or https", scheme, host)
	}
	return scheme + "://" + host, user, nil
}

func tlsConfig(cfg External) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "etcd_tls", "read the authority of etcd")
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("etcd_tls", "%s holds no certificate", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "etcd_tls", "read the certificate for etcd")
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
