// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	// pingEvery fits policyd, which accepts a ping every 10 s.
	pingEvery   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// maxMessage bounds one message; policyd cuts updates into far smaller pieces.
	maxMessage = 16 << 20
	// oneOfAll spreads clients over the addresses behind one name.
	oneOfAll = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`
)

// dial prepares a connection of its own for one stream: one that has gone silent is never
// used again, and gRPC never reconnects by a schedule of its own.
func (c *Client) dial(addr string) (*grpc.ClientConn, error) {
	creds, err := c.credentials(addr)
	if err != nil {
		return nil, err
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDefaultServiceConfig(oneOfAll),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithUserAgent("policyd-go/" + Version),
	}, c.cfg.dialOptions...)
	conn, err := grpc.NewClient(addr, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return conn, nil
}

// credentials are plaintext to this machine and TLS to any other unless options say else.
func (c *Client) credentials(addr string) (credentials.TransportCredentials, error) {
	switch {
	case c.cfg.creds != nil:
		return c.cfg.creds, nil
	case c.cfg.tls.set():
		return c.cfg.tls.load()
	case loopback(addr):
		return insecure.NewCredentials(), nil
	default:
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), nil
	}
}

func (f tlsFiles) load() (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("read certificate authority: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authority %s: no certificate in PEM form", f.ca)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

const maxToken = 16 << 10

var errToken = errors.New("is empty, too long or not one line of printable ASCII")

// authorized adds the bearer token as it is in its file now. The token appears in no error.
func (c *Client) authorized(ctx context.Context) (context.Context, error) {
	if c.cfg.tokenFile == "" {
		return ctx, nil
	}
	file, err := os.Open(c.cfg.tokenFile)
	if err != nil {
		return ctx, fmt.Errorf("read token: %w", err)
	}
	defer file.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return ctx, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ctx, fmt.Errorf("token file %s %w", c.cfg.tokenFile, errToken)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}
