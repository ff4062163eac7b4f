// SPDX-License-Identifier: Apache-2.0

// Package replay gives each attempt of a call over HTTP the whole request body, or none.
package replay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// takeoverWait is how long a repeat waits for the reader of the attempt before it: one that
// is in the middle of a read, on a busy machine, is not one that is stuck.
const takeoverWait = time.Second

// errTaken is what an attempt that is over reads from the body.
var errTaken = errors.New("policyd: request body belongs to a later attempt")

// Body is the request body of one call. A nil one is that of a request without.
// The caller's body is closed once, after its last use.
type Body struct {
	plain  io.ReadCloser                 // what the caller gave
	again  func() (io.ReadCloser, error) // the request's GetBody
	keep   *keptBody                     // without GetBody
	passed bool                          // plain is in the hands of the base transport
	coming io.ReadCloser                 // for the next attempt
}

// New prepares req's body, nil for an empty one. Up to limit bytes are kept if
// there is no GetBody; a negative limit is for a call that is sent once.
func New(req *http.Request, limit int64) *Body {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return nil
	case limit < 0:
		return &Body{plain: req.Body}
	case req.GetBody != nil:
		return &Body{plain: req.Body, again: req.GetBody}
	}
	if req.ContentLength > limit {
		limit = 0
	}
	k := &keptBody{src: req.Body, limit: limit, size: req.ContentLength, reading: make(chan struct{}, 1)}
	return &Body{plain: req.Body, keep: k}
}

// OrClose asks f about req. If that panics, the body is closed: the transport owes it.
func OrClose(req *http.Request, f func(*http.Request) string) string {
	panicked := true
	defer func() {
		if panicked && req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	answer := f(req)
	panicked = false
	return answer
}

// Replayable reports whether another attempt could have the whole body.
func (b *Body) Replayable() bool { return b == nil || b.keep == nil || b.keep.replayable() }

// First returns the body of the first attempt, nil for an empty one.
func (b *Body) First() io.ReadCloser {
	if b == nil {
		return nil
	}
	if b.keep != nil {
		r, _ := b.keep.hand()
		return r
	}
	b.passed = true
	return b.plain
}

// Prepare readies the body for a further attempt. It fails with errTaken or GetBody's
// error when there is none.
func (b *Body) Prepare(ctx context.Context) (err error) {
	switch {
	case b == nil:
	case b.keep != nil:
		if r, ok := b.keep.next(ctx); ok {
			b.coming = r
			return nil
		}
		return errTaken
	case b.again != nil:
		b.coming, err = b.again()
	default:
		return errTaken
	}
	return err
}

// Spare closes what prepare has readied for an attempt that is not made.
func (b *Body) Spare() {
	if b != nil && b.coming != nil {
		_ = b.coming.Close()
		b.coming = nil
	}
}

// Parallel reports whether several attempts may read the body at once.
func (b *Body) Parallel() bool { return b == nil || b.again != nil }

// Next returns what prepare has readied.
func (b *Body) Next() io.ReadCloser {
	if b == nil {
		return nil
	}
	r := b.coming
	b.coming = nil
	return r
}

// Done is called once, when no attempt follows: it lets the last reader close the
// caller's body, and closes it if no attempt was made.
func (b *Body) Done() {
	if b == nil {
		return
	}
	if b.coming != nil { // for an attempt that was not made after all
		_ = b.coming.Close()
	}
	switch {
	case b.keep != nil:
		b.keep.finish()
	case !b.passed:
		_ = b.plain.Close()
	}
}

// Drop is Done for a call that broke off: nobody else closes the caller's body.
func (b *Body) Drop() {
	b.Done()
	switch {
	case b == nil:
	case b.keep != nil:
		b.keep.drop()
	case b.passed:
		_ = b.plain.Close()
	}
}

// keptBody records what attempts read from a body that can be read only once, as far as
// they read it, so that a streaming body still streams.
type keptBody struct {
	src     io.ReadCloser
	size    int64         // Content-Length; ≤ 0 if unknown
	limit   int64         // bytes to keep
	reading chan struct{} // holds one item while src is read

	mu      sync.Mutex
	kept    []byte      // guarded by mu; what was read, unless lost
	lost    bool        // guarded by mu; bytes were read that are not kept
	end     error       // guarded by mu; how src ended
	current *keptReader // guarded by mu
	last    bool        // guarded by mu; no attempt follows
	closed  bool        // guarded by mu; src is
}

func (k *keptBody) replayable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.lost
}

// Next takes the body over from the attempt before. It fails if that one is still waiting
// for bytes, or if bytes are lost.
func (k *keptBody) next(ctx context.Context) (io.ReadCloser, bool) {
	select {
	case k.reading <- struct{}{}:
	default:
		timer := time.NewTimer(takeoverWait)
		defer timer.Stop()
		select {
		case k.reading <- struct{}{}:
		case <-timer.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
	defer func() { <-k.reading }()
	return k.hand()
}

// hand gives the body to the next attempt, while nobody reads it.
func (k *keptBody) hand() (io.ReadCloser, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost {
		return nil, false
	}
	k.current = &keptReader{body: k}
	return k.current, true
}

func (k *keptBody) finish() {
	k.mu.Lock()
	k.last = true
	closeNow := !k.closed && (k.current == nil || k.current.closed)
	k.closed = k.closed || closeNow
	k.mu.Unlock()
	if closeNow {
		_ = k.src.Close()
	}
}

func (k *keptBody) drop() {
	k.mu.Lock()
	closeNow := !k.closed
	k.closed = true
	k.mu.Unlock()
	if closeNow {
		_ = k.src.Close()
	}
}

// keptReader is the body of one attempt.
type keptReader struct {
	body   *keptBody
	off    int  // guarded by body.mu
	closed bool // guarded by body.mu
}

func (r *keptReader) Read(p []byte) (int, error) {
	k := r.body
	k.reading <- struct{}{}
	defer func() { <-k.reading }()
	if n, done, err := r.recorded(p); done {
		return n, err
	}
	n, err := k.src.Read(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	r.off += n
	k.record(p[:n])
	if err != nil {
		k.end = err
	}
	return n, err
}

// recorded serves p from what is known already.
func (r *keptReader) recorded(p []byte) (n int, done bool, err error) {
	k := r.body
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.current != r:
		return 0, true, errTaken
	case r.closed:
		return 0, true, http.ErrBodyReadAfterClose
	case !k.lost && r.off < len(k.kept):
		n = copy(p, k.kept[r.off:])
		r.off += n
		return n, true, nil
	case k.end != nil:
		return 0, true, k.end
	}
	return 0, len(p) == 0, nil
}

// record keeps p, or gives up keeping.
func (k *keptBody) record(p []byte) {
	if k.lost || len(p) == 0 {
		return
	}
	if int64(len(k.kept)+len(p)) > k.limit {
		k.lost, k.kept = true, nil
		return
	}
	if k.kept == nil {
		k.kept = make([]byte, 0, max(int64(len(p)), min(k.size, k.limit)))
	}
	k.kept = append(k.kept, p...)
}

func (r *keptReader) Close() error {
	k := r.body
	k.mu.Lock()
	r.closed = true
	closeNow := k.last && k.current == r && !k.closed
	k.closed = k.closed || closeNow
	k.mu.Unlock()
	if closeNow {
		return k.src.Close()
	}
	return nil
}
