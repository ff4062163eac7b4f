// SPDX-License-Identifier: Apache-2.0

// Package answer handles the bodies of responses that may not be the last of their call.
package answer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
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
	h := &held{body: resp.Body, done: make(chan struct{})}
	h.grown.L = &h.mu
	resp.Body = h
	go h.ahead()
	timer := time.NewTimer(holdTime)
	defer timer.Stop()
	select {
	case <-h.done:
	case <-timer.C: // it trickles
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stop = true
	if h.panicked != nil {
		panic(h.panicked)
	}
	if h.whole = h.err != nil; h.whole {
		_ = h.body.Close()
	}
	return h.whole
}

// held is a body whose start was read ahead, or still is for the length of one read.
type held struct {
	body  io.ReadCloser
	done  chan struct{} // closed when over is set
	whole bool          // nothing is left, and body is closed

	mu       sync.Mutex
	grown    sync.Cond
	start    bytes.Buffer // guarded by mu
	stop     bool         // guarded by mu; read no further ahead
	over     bool         // guarded by mu; what follows is set, body is the reader's
	err      error        // guarded by mu; how body ended, nil if it goes on
	panicked any          // guarded by mu; by body
}

// ahead reads what there is room for.
func (h *held) ahead() {
	err := io.ErrUnexpectedEOF // if Read does not return
	defer func() {
		panicked := recover()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.over, h.err, h.panicked = true, err, panicked
		h.grown.Broadcast()
		close(h.done)
	}()
	piece := make([]byte, 4<<10)
	for room, more := holdBytes, true; more; {
		n, e := h.body.Read(piece[:min(len(piece), room)])
		room -= n
		if more = h.add(piece[:n]) && room > 0 && e == nil; !more {
			err = e
		}
	}
}

// add keeps a piece and reports whether another one is wanted.
func (h *held) add(piece []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start.Write(piece)
	h.grown.Broadcast()
	return !h.stop
}

func (h *held) Read(p []byte) (int, error) {
	n, err, ahead := h.kept(p)
	if ahead {
		return n, err
	}
	return h.body.Read(p)
}

// kept reads from what was read ahead, if there is more of that.
func (h *held) kept(p []byte) (n int, err error, ahead bool) { //nolint:revive // as Read
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.start.Len() == 0 && !h.over {
		h.grown.Wait()
	}
	switch {
	case h.start.Len() > 0:
		n, err = h.start.Read(p)
		return n, err, true
	case h.panicked != nil:
		panic(h.panicked)
	default:
		return 0, h.err, h.err != nil
	}
}

func (h *held) Close() error {
	if h.whole {
		return nil
	}
	return h.body.Close()
}

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
