// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/policyd/policyd/internal/fault"
	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/storetest"
)

func TestOpen_refuses_what_cannot_work(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent.pem")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		cfg  store.External
		want string
	}{
		"no endpoint":                  {store.External{}, "no etcd endpoint"},
		"an endpoint without a host":   {store.External{Endpoints: []string{"https://"}}, "no host"},
		"a scheme of something else":   {store.External{Endpoints: []string{"postgres://db:5432"}}, "not http or https"},
		"a user without a password":    {store.External{Endpoints: []string{"etcd:2379"}, User: "svc"}, "needs a password"},
		"a password that is not a URL": {store.External{Endpoints: []string{"https://svc:s3cr3t%zz@etcd:2379"}}, "etcd:2379"},
		"an authority that is absent":  {store.External{Endpoints: []string{"etcd:2379"}, CAFile: absent}, "absent.pem"},
		"an authority that is empty":   {store.External{Endpoints: []string{"etcd:2379"}, CAFile: empty}, "no certificate"},
		"a certificate without a key":  {store.External{Endpoints: []string{"etcd:2379"}, CertFile: empty}, "certificate"},
	} {
		_, err := store.Open(t.Context(), c.cfg)
		require.ErrorContains(t, err, c.want, name)
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
		require.NotContains(t, err.Error(), "s3cr3t", name)
	}
}

func TestO_SE_04_no_secret_of_the_store_is_shown(t *testing.T) {
	logs := &logbook{}
	nobody := freePort(t, "127.0.0.1")
	cfg := store.External{
		Endpoints: []string{"http://svc:s3cr3t@" + nobody, nobody}, Password: "s3cr3t", User: "svc", Logger: logs.logger(),
	}
	for _, shown := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg), cfg.String()} {
		require.NotContains(t, shown, "s3cr3t")
		require.Contains(t, shown, nobody, "the host is kept")
	}
	logs.logger().Info("starting", "etcd", cfg)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := store.Open(ctx, cfg)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.NotContains(t, err.Error(), "s3cr3t")
	require.Contains(t, err.Error(), nobody)
	require.Contains(t, logs.String(), nobody)
	require.NotContains(t, logs.String(), "s3cr3t")
	require.Equal(t, 1, logs.count(t, "etcd cannot be reached, trying on"))
}

func TestOpen_does_not_wait_for_a_cluster_without_a_user(t *testing.T) {
	client := open(t, store.External{Endpoints: []string{freePort(t, "127.0.0.1")}})
	s := newStore(t, client, newPrefix())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	storetest.Eventually(t, "a refusal", func() bool {
		_, err := s.Commit(t.Context(), put("shop", 2, 0))
		return fault.KindOf(err) == fault.Unavailable
	})
	require.True(t, s.View().Stale)
	cancel()
	require.NoError(t, <-done)
}

func TestOpen_with_certificates(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	server := ca.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	client := ca.issue(t, dir, "client", x509.ExtKeyUsageClientAuth)
	c := newCluster(t, 1, func(cfg *embed.Config) {
		cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
		cfg.ClientTLSInfo = transport.TLSInfo{
			CertFile: server.cert, KeyFile: server.key, TrustedCAFile: ca.cert, ClientCertAuth: true,
		}
	})
	endpoint := "https://" + c.members[0].clients.addr()
	s := newStore(t, open(t, store.External{
		Endpoints: []string{endpoint}, CAFile: ca.cert, CertFile: client.cert, KeyFile: client.key, ServerName: "127.0.0.1",
	}), newPrefix())
	storetest.Start(t, s)
	commit(t, s, put("shop", 2, 0))

	stranger := newAuthority(t, dir, "stranger")
	for name, cfg := range map[string]store.External{
		"a server of another authority": {Endpoints: []string{endpoint}, CAFile: stranger.cert, CertFile: client.cert, KeyFile: client.key},
		"a client without certificate":  {Endpoints: []string{endpoint}, CAFile: ca.cert},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := open(t, cfg).Get(ctx, "x")
		cancel()
		require.Error(t, err, name)
	}
}

// pair is a certificate and its key in files.
type pair struct{ cert, key string }

type authority struct {
	pair
	certificate *x509.Certificate
	signer      *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	return authority{writePair(t, dir, name, raw, key), certificate, key}
}

func (a authority) issue(t *testing.T, dir, name string, usage x509.ExtKeyUsage) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		// The server's certificate serves etcd's own gateway as a client, too.
		ExtKeyUsage: []x509.ExtKeyUsage{usage, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.signer)
	require.NoError(t, err)
	return writePair(t, dir, name, raw, key)
}

func writePair(t *testing.T, dir, name string, cert []byte, key *ecdsa.PrivateKey) pair {
	t.Helper()
	raw, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	p := pair{cert: filepath.Join(dir, name+".pem"), key: filepath.Join(dir, name+".key")}
	require.NoError(t, os.WriteFile(p.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(p.key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600))
	return p
}
