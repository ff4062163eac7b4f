// SPDX-License-Identifier: Apache-2.0

package policyqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// storedRequest is what is stored of a request beside its body.
type storedRequest struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Host   string      `json:"host,omitempty"` // if it is not that of the URL
	Header http.Header `json:"header,omitempty"`
}

// contentHeaders describe the content of a request, its negotiation and its conditions.
func contentHeaders() []string {
	return []string{
		"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Digest",
		"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-MD5", "Content-Range",
		"Content-Type", "Idempotency-Key", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range",
		"If-Unmodified-Since", "Link", "Origin", "Pragma", "Prefer", "Range", "Repr-Digest", "User-Agent",
		"X-Correlation-ID", "X-HTTP-Method-Override", "X-Request-ID", "X-Requested-With",
	}
}

// ofAttempt reports whether a header belongs to one attempt or connection, so that a later
// send has its own.
func ofAttempt(name string) bool {
	switch name {
	case "Baggage", "B3", "Connection", "Content-Length", "Date", "Expect", "Te", "Traceparent", "Tracestate",
		"Transfer-Encoding", "Uber-Trace-Id", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context":
		return true
	default:
		return strings.HasPrefix(name, "X-B3-")
	}
}

// store returns what is stored of a request, or why it cannot be kept. keyHeader may be
// stored as well.
func (q *Queue) store(req *http.Request, keyHeader string) (*storedRequest, error) {
	if req.Method == http.MethodConnect || len(req.Trailer) > 0 || req.Header.Get("Upgrade") != "" {
		return nil, errors.New("it is more than a request with a body")
	}
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil { // there may be a credential in what cannot be read
		return nil, fmt.Errorf("its query cannot be read: %w", err)
	}
	for name := range query {
		if secret(name) {
			return nil, fmt.Errorf("its URL has a credential: %s", name)
		}
	}
	if req.URL.User != nil && q.cfg.Authorize == nil {
		return nil, errors.New("its URL has a credential, and there is no Config.Authorize")
	}
	u := *req.URL
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	s := &storedRequest{Method: req.Method, URL: u.String()}
	if s.Method == "" {
		s.Method = http.MethodGet
	}
	if req.Host != "" && req.Host != u.Host {
		s.Host = req.Host
	}
	keyHeader = http.CanonicalHeaderKey(keyHeader)
	for name, values := range req.Header {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case ofAttempt(canonical):
		case q.headers[canonical] || canonical == keyHeader:
			if s.Header == nil {
				s.Header = http.Header{}
			}
			s.Header[name] = slices.Clone(values)
		case q.cfg.Authorize == nil:
			return nil, fmt.Errorf("its header %s may be a credential: list it in Config.Headers, or set Config.Authorize", canonical)
		}
	}
	return s, s.check()
}

// secret reports whether a parameter of a query is named as a credential.
func secret(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "auth", "authorization", "code", "key", "password", "passwd", "pwd", "sig", "signature":
		return true
	}
	for _, part := range []string{"token", "secret", "apikey", "api_key", "api-key", "credential", "x-amz-", "x-goog-", "jwt", "session"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// check reports an error for what http could not send.
func (s *storedRequest) check() error {
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is not the URL of a service", s.URL)
	}
	if s.Method == "" || strings.ContainsFunc(s.Method, func(r rune) bool { return !inToken(r) }) {
		return fmt.Errorf("%q is not a method", s.Method)
	}
	return nil
}

// inToken reports whether a method may have a character (RFC 9110).
func inToken(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// request makes the request that is sent. It has a Content-Length and can be sent anew.
func (q *Queue) request(ctx context.Context, s *storedRequest, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, s.Method, s.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if s.Host != "" {
		req.Host = s.Host
	}
	if s.Header != nil {
		req.Header = s.Header.Clone()
	}
	if q.cfg.Authorize != nil {
		if err := q.cfg.Authorize(req); err != nil {
			return nil, fmt.Errorf("Config.Authorize: %w", err)
		}
	}
	return req, nil
}
