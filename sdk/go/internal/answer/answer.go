// SPDX-License-Identifier: Apache-2.0

// Package answer handles the bodies of responses that may not be the last of their call.
package answer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

// Bounds on reading the body of a response that will probably be replaced by a retry's.
const (
	holdBytes = 64 << 10
	holdTime  = 250 * time.Millisecond
)

// Hold readies a response for the wait before a retry: a body that is small and there is
// read into memory, so that its connection is free meanwhile. The response can still be
// returned, with a body as good as unread, if no retry follows after all. It reports whether
// nothing of the body is left to come.
func Hold(resp *http.Response) (whole bool) {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody {
		return false
	}
	body := resp.Body
	guard := time.AfterFunc(holdTime, func() { _ = body.Close() })
	var start bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= holdBytes {
		start.Grow(int(n) + bytes.MinRead)
	}
	n, err := start.ReadFrom(io.LimitReader(body, holdBytes))
	open := guard.Stop()
	switch {
	case !open: // it trickles; what is there must do
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		resp.Body = heldBody{io.MultiReader(&start, failedReader{err}), nil}
	case err != nil:
		_ = body.Close()
		resp.Body = heldBody{io.MultiReader(&start, failedReader{err}), nil}
	case n < holdBytes:
		_ = body.Close()
		resp.Body = heldBody{&start, nil}
	default:
		resp.Body = heldBody{io.MultiReader(&start, body), body}
		return false
	}
	return true
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

// Until has cancel called when the body of a response ends or is closed.
func Until(resp *http.Response, cancel context.CancelFunc) {
	if resp.Body == nil || resp.Body == http.NoBody {
		cancel()
		return
	}
	body := cancelBody{resp.Body, cancel}
	if w, ok := resp.Body.(io.Writer); ok { // 101 Switching Protocols
		resp.Body = cancelStream{body, w}
		return
	}
	resp.Body = body
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
