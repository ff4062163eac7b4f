// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	policyd "github.com/policyd/policyd/sdk/go"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// certificate writes a certificate and its key in PEM form, signed by parent or by itself.
func certificate(tb testing.TB, dir, name string, parent *tls.Certificate) (certFile, keyFile string, cert tls.Certificate) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, signKey := template, any(key)
	if parent != nil {
		signer, signKey = parent.Leaf, parent.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signKey)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if cert, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		tb.Fatal(err)
	}
	return certFile, keyFile, cert
}

func TestTLS_identifies_both_sides(t *testing.T) {
	dir := t.TempDir()
	caFile, _, ca := certificate(t, dir, "ca", nil)
	_, _, server := certificate(t, dir, "server", &ca)
	certFile, keyFile, _ := certificate(t, dir, "client", &ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)

	s := &watchServer{t: t, conns: make(chan *watchConn, 10), over: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	})))
	policydv1.RegisterWatchServiceServer(s.grpc, s)
	go func() {
		defer close(s.over)
		_ = s.grpc.Serve(listener)
	}()
	t.Cleanup(s.stop)

	c := s.client(policyd.WithTLS(caFile, certFile, keyFile))
	s.next().apply(t, wholeState("e", 1, tries("shop", 1, 4)))
	if c.Status().State != policyd.StateLive {
		t.Fatalf("status %+v", c.Status())
	}

	for name, opt := range map[string]policyd.Option{
		"no certificate of its own": policyd.WithTLS(caFile, "", ""),
		"roots that do not fit":     policyd.WithTLS(certFile, certFile, keyFile),
		"a file that is not there":  policyd.WithTLS(filepath.Join(dir, "none"), "", ""),
		"plaintext":                 policyd.WithTLS("", "", ""),
	} {
		t.Run(name, func(t *testing.T) {
			log := newLog()
			c := s.client(opt, policyd.WithLogger(log.logger()))
			for line := range log.fresh {
				if strings.Contains(line, "policyd unreachable") {
					break
				}
			}
			if st := c.Status(); st.State != policyd.StateConnecting || st.LastErr == nil {
				t.Fatalf("status %+v", st)
			}
		})
	}
}

func TestWatch_survives_a_server_that_is_none(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	garbage := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n\x00\xff garbage"))
			_ = conn.Close()
			garbage <- struct{}{}
		}
	}()
	s := &watchServer{t: t, conns: make(chan *watchConn, 10), addr: listener.Addr().String()}
	c := s.client()
	receive(t, garbage, "a connection")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s.restartTCP()
	t.Cleanup(s.stop)
	s.next().apply(t, wholeState("e", 1, tries("shop", 1, 4)))

	// The process restarts on its port: everything is back, with the state as it was.
	s.stop()
	s.restartTCP()
	conn := s.next()
	if got := conn.hello.GetResume().GetHash(); got != stateHash(tries("shop", 1, 4)) {
		t.Fatalf("resumes at %v", conn.hello.GetResume())
	}
	conn.apply(t, changes("e", 1, []*policydv1.Entry{tries("shop", 1, 4)}))
	if c.Status().State != policyd.StateLive {
		t.Fatalf("status %+v", c.Status())
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, ok := v.([]byte)
	if !ok {
		return nil, errors.New("not bytes")
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

func TestWatch_asks_for_everything_after_an_update_it_cannot_read(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		s.next().apply(t, wholeState("e", 1, tries("shop", 1, 4)))
		s.stop()

		listener := bufconn.Listen(1 << 20)
		raw := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			if err := stream.SendMsg([]byte("\x0a\xffnot a message")); err != nil {
				return err
			}
			<-stream.Context().Done()
			return nil
		}))
		s.pipe.Store(listener)
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = raw.Serve(listener)
		}()
		time.Sleep(20 * time.Second)
		if st := c.Status(); st.State != policyd.StateStale || maxAttempts(c, "shop/x") != 4 {
			t.Fatalf("status %+v", st)
		}
		raw.Stop()
		<-over
		s.start()
		conn := s.next()
		if conn.hello.GetResume() != nil {
			t.Fatalf("resumes at %v", conn.hello.GetResume())
		}
		conn.apply(t, wholeState("e", 2, tries("shop", 2, 5)))
	})
}
