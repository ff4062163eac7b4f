// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// onceBody is a body that can be read once and counts how often it is closed.
type onceBody struct {
	io.Reader
	mu     sync.Mutex
	closed int
}

func (b *onceBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed++
	return nil
}

func (b *onceBody) closes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func requestWith(t *testing.T, body io.ReadCloser, length int64) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://a.test/", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	return req
}

func read(t *testing.T, r io.ReadCloser) string {
	t.Helper()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	return string(all)
}

func nextBody(b *Body) (io.ReadCloser, error) {
	if err := b.Prepare(context.Background()); err != nil {
		return nil, err
	}
	return b.Next(), nil
}

func TestBody_without_GetBody_is_whole_in_each_attempt(t *testing.T) {
	const text = "0123456789"
	for name, readFirst := range map[string]int{"all of it": 10, "a part of it": 4, "nothing": 0} {
		t.Run("the attempt before read "+name, func(t *testing.T) {
			src := &onceBody{Reader: strings.NewReader(text)}
			body := New(requestWith(t, src, 10), 10)
			first := body.First()
			if _, err := io.ReadFull(first, make([]byte, readFirst)); err != nil {
				t.Fatal(err)
			}
			_ = first.Close()
			for range 2 {
				again, err := nextBody(body)
				if err != nil {
					t.Fatal(err)
				}
				if got := read(t, again); got != text {
					t.Fatalf("attempt got %q, want %q", got, text)
				}
			}
			if n, err := first.Read(make([]byte, 4)); n != 0 || !errors.Is(err, errTaken) {
				t.Fatalf("reader of an earlier attempt got %d bytes, %v", n, err)
			}
			if src.closes() != 0 {
				t.Fatal("closed before the call is done")
			}
			body.Done()
			body.Done()
			if src.closes() != 1 {
				t.Fatalf("closed %d times", src.closes())
			}
		})
	}
}

func TestBody_over_the_limit_is_sent_once_and_whole(t *testing.T) {
	text := strings.Repeat("x", 100)
	for name, length := range map[string]int64{"known length": 100, "unknown length": -1} {
		t.Run(name, func(t *testing.T) {
			src := &onceBody{Reader: strings.NewReader(text)}
			body := New(requestWith(t, src, length), 99)
			if !body.Replayable() {
				t.Fatal("an untouched body can be sent")
			}
			if got := read(t, body.First()); got != text {
				t.Fatalf("got %d bytes", len(got))
			}
			if body.Replayable() {
				t.Fatal("must not be replayable")
			}
			if _, err := nextBody(body); !errors.Is(err, errTaken) {
				t.Fatalf("next: %v", err)
			}
			body.Done()
			if src.closes() != 1 {
				t.Fatalf("closed %d times", src.closes())
			}
		})
	}
}

func TestBody_is_closed_when_no_attempt_is_made(t *testing.T) {
	for name, getBody := range map[string]bool{"with GetBody": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			src := &onceBody{Reader: strings.NewReader("x")}
			req := requestWith(t, src, 1)
			if getBody {
				req.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
			}
			body := New(req, 10)
			body.Done()
			if src.closes() != 1 {
				t.Fatalf("closed %d times", src.closes())
			}
		})
	}
}

func TestBody_of_the_last_attempt_is_closed_by_its_reader(t *testing.T) {
	src := &onceBody{Reader: strings.NewReader("abc")}
	body := New(requestWith(t, src, 3), 10)
	last := body.First()
	body.Done() // a transport may still be writing when the answer is there
	if src.closes() != 0 {
		t.Fatal("closed under a transport that still reads")
	}
	if got := read(t, last); got != "abc" || src.closes() != 1 {
		t.Fatalf("got %q, closed %d times", got, src.closes())
	}
}

// blockedReader gives nothing until it is closed.
type blockedReader struct{ gate chan struct{} }

func (b blockedReader) Read([]byte) (int, error) { <-b.gate; return 0, io.ErrClosedPipe }
func (b blockedReader) Close() error             { close(b.gate); return nil }

func TestBody_that_is_still_being_read_is_not_taken_over(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := blockedReader{make(chan struct{})}
		body := New(requestWith(t, src, -1), 10)
		first := body.First()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = first.Read(make([]byte, 1)) })
		synctest.Wait()
		if _, err := nextBody(body); !errors.Is(err, errTaken) {
			t.Fatalf("next: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		began := time.Now()
		time.AfterFunc(time.Millisecond, cancel)
		if err := body.Prepare(ctx); err == nil || time.Since(began) != time.Millisecond {
			t.Fatalf("a caller that left had to wait for %s: %v", time.Since(began), err)
		}
		body.Done()
		_ = first.Close() // unblocks the reader
		wg.Wait()
	})
}

func TestBody_error_of_the_source_is_repeated(t *testing.T) {
	broken := errors.New("disk gone")
	src := &onceBody{Reader: io.MultiReader(strings.NewReader("ab"), errReader{broken})}
	body := New(requestWith(t, src, 10), 10)
	for i := range 2 {
		r := body.First()
		if i > 0 {
			r, _ = nextBody(body)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(r); !errors.Is(err, broken) || got.String() != "ab" {
			t.Fatalf("attempt %d: %q, %v", i+1, got.String(), err)
		}
	}
	body.Done()
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func FuzzBody(f *testing.F) {
	f.Add([]byte("hello"), uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, limit, part uint8) {
		src := &onceBody{Reader: bytes.NewReader(data)}
		body := New(requestWith(t, src, -1), int64(limit))
		first := body.First()
		_, _ = io.ReadFull(first, make([]byte, min(int(part), len(data))))
		_ = first.Close()
		again, err := nextBody(body)
		if err == nil {
			if got, err := io.ReadAll(again); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("got %q, %v; want %q", got, err, data)
			}
			_ = again.Close()
		}
		body.Done()
		if src.closes() != 1 {
			t.Fatalf("closed %d times", src.closes())
		}
	})
}
