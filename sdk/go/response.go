// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

// sent is an attempt that was made.
type sent struct {
	req    *http.Request // as it was sent; nil in Do
	resp   *http.Response
	err    error
	cancel context.CancelFunc // ends the attempt's context; nil without one of its own
	timer  *time.Timer        // that does so at the time limit
	limit  *timeoutError      // what it says then
	cut    *timeoutError      // limit, if it was reached
}

// fail replaces the response, if there is one, by an error: its body would break off.
func (s *sent) fail(err error) {
	if s.resp != nil && s.resp.Body != nil {
		_ = s.resp.Body.Close()
	}
	s.resp, s.err = nil, err
}

// failure is what an attempt that may be repeated ended with.
func (s *sent) failure() error {
	if s.err != nil {
		return s.err
	}
	return statusError(s.resp.StatusCode)
}

func (s *sent) status() int {
	if s.resp == nil {
		return statusOf(s.err)
	}
	return s.resp.StatusCode
}

// Bounds on reading the body of a response that will probably be replaced by a retry's.
const (
	holdBytes = 64 << 10
	holdTime  = 250 * time.Millisecond
)

// hold readies a response for the wait before a retry: a body that is small and there is
// read into memory, so that its connection is free meanwhile. The response can still be
// returned, with a body as good as unread, if no retry follows after all.
func (s *sent) hold() {
	if s.resp == nil || s.resp.Body == nil || s.resp.Body == http.NoBody {
		return
	}
	body := s.resp.Body
	guard := time.AfterFunc(holdTime, func() { _ = body.Close() })
	var start bytes.Buffer
	if n := s.resp.ContentLength; n > 0 && n <= holdBytes {
		start.Grow(int(n) + bytes.MinRead)
	}
	n, err := start.ReadFrom(io.LimitReader(body, holdBytes))
	open := guard.Stop()
	switch {
	case !open: // it trickles; what is there must do
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		s.resp.Body = heldBody{io.MultiReader(&start, failedReader{err}), nil}
	case err != nil:
		_ = body.Close()
		s.resp.Body = heldBody{io.MultiReader(&start, failedReader{err}), nil}
	case n < holdBytes:
		_ = body.Close()
		s.resp.Body = heldBody{&start, nil}
	default:
		s.resp.Body = heldBody{io.MultiReader(&start, body), body}
		return
	}
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// heldBody is a body whose start was read ahead.
type heldBody struct {
	io.Reader
	rest io.Closer // nil if all of it was read
}

func (b heldBody) Close() error {
	if b.rest == nil {
		return nil
	}
	return b.rest.Close()
}

type failedReader struct{ err error }

func (f failedReader) Read([]byte) (int, error) { return 0, f.err }

// discard closes a response that is not wanted and ends its attempt.
func (s *sent) discard() {
	if s.resp != nil && s.resp.Body != nil {
		_ = s.resp.Body.Close()
	}
	if s.cancel != nil {
		s.cancel()
	}
}

// release readies a response for the caller: OutcomeOf finds the call, and the attempt's
// context lasts as long as the body.
func (s *sent) release(k *call) {
	if s.resp == nil {
		return
	}
	if s.req != nil && (s.resp.Request == nil || s.resp.Request != s.req && recordOf(s.resp.Request) != k.record) {
		s.resp.Request = s.req
	}
	if s.cancel == nil {
		return
	}
	if s.resp.Body == nil || s.resp.Body == http.NoBody {
		s.cancel()
		return
	}
	body := cancelBody{s.resp.Body, s.cancel}
	if w, ok := s.resp.Body.(io.Writer); ok { // 101 Switching Protocols
		s.resp.Body = cancelStream{body, w}
		return
	}
	s.resp.Body = body
}

func recordOf(req *http.Request) *record {
	if m := markOf(req.Context()); m != nil {
		return m.of
	}
	return nil
}

// cancelBody ends the context of its attempt when the body ends or is closed.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b cancelBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.cancel()
	}
	return n, err
}

func (b cancelBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// cancelStream is a cancelBody that can be written to.
type cancelStream struct {
	cancelBody
	io.Writer
}
