// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxHead bounds what is read of a connection before it is known whose it is.
const maxHead = inputSize

// verdict says whose a connection is.
type verdict uint8

const (
	undecided verdict = iota
	ours
	theirs
	nobodys // it does not speak HTTP/2
)

// judge looks at the first bytes of a connection: the first call decides. What is wrong with
// them is for the other server to say.
func (s *Server) judge(head []byte) verdict {
	preface := []byte(http2.ClientPreface)
	if n := min(len(head), len(preface)); !bytes.Equal(head[:n], preface[:n]) {
		return nobodys
	}
	if len(head) < len(preface) {
		return undecided
	}
	r := http2.NewFramer(nil, bytes.NewReader(head[len(preface):]))
	r.SetMaxReadFrameSize(maxFrame)
	r.MaxHeaderListSize = maxHeaderList
	r.ReadMetaHeaders = hpack.NewDecoder(defaultTable, nil)
	for {
		f, err := r.ReadFrame()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if len(head) >= maxHead {
				return theirs
			}
			return undecided
		case err != nil:
			return theirs
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			if _, known := s.methods[h.PseudoValue("path")]; known {
				return ours
			}
			return theirs
		}
	}
}

// meet greets a client and reads until it is known whose the connection is. The client's
// settings are not confirmed here, as whoever serves it does that, once.
func (c *conn) meet() (head []byte, v verdict) {
	_ = c.nc.SetDeadline(time.Now().Add(c.server.limits.Preface))
	greeted := false
	head = make([]byte, 0, 512)
	for {
		if len(head) == cap(head) {
			grown := make([]byte, len(head), min(4*cap(head), maxHead))
			copy(grown, head)
			head = grown
		}
		n, err := c.nc.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		v = c.server.judge(head)
		if v == nobodys {
			return head, v
		}
		if !greeted && len(head) >= len(http2.ClientPreface) {
			// Clients of grpc-go make no call before they saw it.
			if _, err := c.nc.Write(c.server.greet); err != nil {
				return head, nobodys
			}
			greeted = true
			_ = c.nc.SetDeadline(time.Now().Add(c.server.limits.Decide))
		}
		var late net.Error
		switch {
		case v != undecided:
		case greeted && errors.As(err, &late) && late.Timeout():
			v = theirs // a client that connects ahead of its calls
		case err != nil:
			return head, nobodys
		default:
			continue
		}
		_ = c.nc.SetDeadline(time.Time{})
		return head, v
	}
}

// others is the listener of the connections that are handed over.
type others struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func newOthers() *others {
	o := &others{conns: make(chan net.Conn), done: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.done) })
	return o
}

func (o *others) give(c net.Conn) {
	select {
	case o.conns <- c:
	case <-o.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (o *others) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (o *others) Close() error { o.close(); return nil }

// Addr implements net.Listener.
func (o *others) Addr() net.Addr { return handedOver{} }

type handedOver struct{}

func (handedOver) Network() string { return "tcp" }
func (handedOver) String() string  { return "handed over" }

// replayed is a connection that starts with bytes that were read from it already.
type replayed struct {
	net.Conn
	head []byte
}

func (r *replayed) Read(b []byte) (int, error) {
	if len(r.head) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.head)
	if r.head = r.head[n:]; len(r.head) == 0 {
		r.head = nil
	}
	return n, nil
}
