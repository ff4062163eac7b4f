// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// Security is how an upstream is reached. The zero value is plaintext to this machine and
// TLS, with the certificate authorities of the system, to any other.
type Security struct {
	CAFile, CertFile, KeyFile string
	// TokenFile holds a bearer token; it is read for each stream.
	TokenFile string
}

const (
	// pingEvery fits policyd, which accepts a ping every 10 s.
	pingEvery   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// maxMessage bounds one message; policyd cuts updates into far smaller pieces.
	maxMessage = 16 << 20
)

// dial prepares a connection of its own for one stream: one that has gone silent is never
// used again, and gRPC never reconnects by a schedule of its own.
func (s Security) dial(addr string) (*grpc.ClientConn, error) {
	creds, err := s.credentials(addr)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newCodec())),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry())
}

func (s Security) credentials(addr string) (credentials.TransportCredentials, error) {
	if s.CAFile == "" && s.CertFile == "" && loopback(addr) {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate authority: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authority %s: no certificate in PEM form", s.CAFile)
		}
	}
	if s.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

var errToken = errors.New("is empty, too long or not one line of printable ASCII")

// authorized adds the bearer token as it is in its file now. The token appears in no error.
func (s Security) authorized(ctx context.Context) (context.Context, error) {
	if s.TokenFile == "" {
		return ctx, nil
	}
	const most = 16 << 10
	data, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return ctx, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > most || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ctx, fmt.Errorf("token file %s %w", s.TokenFile, errToken)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}
