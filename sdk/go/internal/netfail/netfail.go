// SPDX-License-Identifier: Apache-2.0

// Package netfail tells the failures of networks apart, below any protocol.
package netfail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Of sorts an error below the protocol. 0 means that it is no network error, or one
// that no further attempt can cure. notSent holds if the server certainly did nothing. An
// io.EOF of an application's function may mean anything, unless net/http wrapped it.
func Of(err error) (kind engine.NetworkFailure, notSent bool) {
	switch {
	case hopeless(err):
		return 0, false
	case neverConnected(err):
		return engine.NetworkConnect, true
	case refusedStream(err):
		return engine.NetworkReset, true
	case broken(err):
		return engine.NetworkReset, false
	case timedOut(err):
		return engine.NetworkTimeout, false
	}
	return 0, false
}

// hopeless finds connections that fail the same way each time: the certificate is not
// trusted, or the server does not speak TLS.
func hopeless(err error) bool {
	var (
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
		ca     x509.UnknownAuthorityError
		name   x509.HostnameError
		bad    x509.CertificateInvalidError
	)
	return errors.As(err, &verify) || errors.As(err, &record) ||
		errors.As(err, &ca) || errors.As(err, &name) || errors.As(err, &bad) ||
		errors.Is(err, http.ErrSchemeMismatch)
}

// neverConnected finds failures before the first byte of a request.
func neverConnected(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns) || errors.Is(err, syscall.ECONNREFUSED) ||
		strings.Contains(err.Error(), "TLS handshake timeout") // net/http has no type for it
}

// h2StreamError has the shape of the HTTP/2 stream error inside net/http, which converts
// itself to it in errors.As.
type h2StreamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (h2StreamError) Error() string { return "http2: stream error" }

// refusedStream finds requests that an HTTP/2 server refused before any work on them.
func refusedStream(err error) bool {
	const refused = 7
	var stream h2StreamError
	return errors.As(err, &stream) && stream.Code == refused
}

// broken finds connections that ended before the answer.
func broken(err error) bool {
	var stream h2StreamError
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &stream) {
		return true
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) && errors.Is(wrapped.Err, io.EOF) {
		return true
	}
	// The rest of net/http's own errors have no type.
	text := err.Error()
	return strings.Contains(text, "server closed idle connection") ||
		strings.Contains(text, "http2: server sent GOAWAY") ||
		strings.Contains(text, "http2: client connection lost") ||
		strings.Contains(text, "http2: client connection force closed") ||
		strings.Contains(text, "http2: Transport received Server's graceful shutdown GOAWAY")
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}
