// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/engine"
)

// network sorts an error below the protocol. 0 means that it is no network error, or one
// that no further attempt can cure. notSent holds if the server certainly did nothing. An
// io.EOF of an application's function may mean anything, unless net/http wrapped it.
func network(err error) (kind engine.NetworkFailure, notSent bool) {
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

// statusOf returns the HTTP status that an error of fn carries, 0 for none.
func statusOf(err error) int {
	var a interface{ StatusCode() int }
	if errors.As(err, &a) {
		return a.StatusCode()
	}
	var b interface{ HTTPStatusCode() int }
	if errors.As(err, &b) {
		return b.HTTPStatusCode()
	}
	return 0
}

// codeOf returns the gRPC status that an error of fn carries.
func codeOf(err error) (codes.Code, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code(), true
	}
	return codes.OK, false
}

// judgeResponse says what a response means, in the words of the engine.
func judgeResponse(resp *http.Response) engine.Outcome {
	if resp.StatusCode < http.StatusBadRequest {
		return engine.Outcome{}
	}
	return engine.Outcome{
		Kind: engine.OutcomeHTTP, Code: resp.StatusCode, Server: serverWait(resp.Header, time.Now()),
	}
}

// judgeError says what an error of an application's function means.
func judgeError(err error) engine.Outcome {
	var ours *Error
	if errors.As(err, &ours) { // a call inside it gave up: another try would multiply its own
		return engine.Outcome{Kind: engine.OutcomeError}
	}
	if code, ok := codeOf(err); ok {
		return engine.Outcome{Kind: engine.OutcomeGRPC, Code: int(code)}
	}
	if code := statusOf(err); code != 0 {
		return engine.Outcome{Kind: engine.OutcomeHTTP, Code: code}
	}
	if kind, notSent := network(err); kind != 0 {
		return engine.Outcome{Kind: engine.OutcomeNetwork, Network: kind, NotSent: notSent}
	}
	return engine.Outcome{Kind: engine.OutcomeError}
}

// outcome is the application's verdict in the words of the engine.
func (e *judgedError) outcome() engine.Outcome {
	o := engine.Outcome{Kind: engine.OutcomeRetryable, NotSent: e.verdict == verdictNotSent}
	if e.verdict == verdictPermanent {
		o.Kind = engine.OutcomePermanent
	}
	if e.asked {
		o.Server = engine.ServerWait{Kind: engine.AskedRetryAfter, For: e.after}
	}
	return o
}

// statusError stands for a response that was judged by its status.
type statusError int

func (s statusError) Error() string {
	text := http.StatusText(int(s))
	if text == "" {
		return strconv.Itoa(int(s))
	}
	return strconv.Itoa(int(s)) + " " + text
}

// StatusCode is how other layers find the status.
func (s statusError) StatusCode() int { return int(s) }
