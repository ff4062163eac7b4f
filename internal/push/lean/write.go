// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"encoding/binary"
	"net/http"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// sending is what a connection has to write. Whoever adds to it writes it, without ever
// waiting. What the socket does not take is written by a goroutine that lives only until
// the client has caught up.
type sending struct {
	control    []byte // whole frames that go before all else
	window     int32  // bytes of messages that the client takes now, over all streams
	catchingUp bool   // a goroutine writes, nobody else may

	// owned by who writes with onWritable
	out    []byte
	outN   int
	outErr error
}

const (
	// maxQueued is how much of a stream may wait before its sender does; grpc-go's is the same.
	maxQueued = 64 << 10
	// maxControl is how many bytes of answers may wait for a client that does not read them.
	maxControl = 32 << 10
	// minChunk: a message is not broken for the sake of less.
	minChunk = 1 << 10
)

// flush writes what may be written now. Guarded by mu; it never waits.
func (c *conn) flush() {
	if c.catchingUp || c.dead {
		return
	}
	out := c.server.output()
	for {
		b := c.compose(out.buf[:0])
		if len(b) == 0 {
			break
		}
		n, err := c.write(b)
		if err != nil {
			c.die(status.Error(codes.Unavailable, "the connection is broken"))
			break
		}
		if n < len(b) {
			c.catchingUp = true
			rest := slices.Clone(b[n:])
			c.server.running.Go(func() { c.catchUp(rest) })
			break
		}
	}
	c.server.outputs.Put(out)
	c.part()
}

// catchUp writes to a client that is slower than what is sent, and waits for it.
func (c *conn) catchUp(rest []byte) {
	var buf []byte
	for {
		_, err := c.nc.Write(rest)
		c.mu.Lock()
		if err != nil {
			c.die(status.Error(codes.Unavailable, "the connection is broken"))
			c.mu.Unlock()
			return
		}
		if buf == nil {
			buf = make([]byte, 0, inputSize)
		}
		if rest = c.compose(buf); len(rest) == 0 {
			c.catchingUp = false
			if c.hungUp {
				c.closeWrite()
			}
			c.part()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// compose puts into b what may be written now, as far as it has room. Guarded by mu.
func (c *conn) compose(b []byte) []byte {
	n := min(len(c.control), cap(b))
	b = append(b, c.control[:n]...)
	if c.control = c.control[n:]; len(c.control) > 0 {
		return b
	}
	c.control = nil
	if c.hungUp {
		return b
	}
	for i := 0; i < len(c.streams); {
		var ended bool
		if b, ended = c.streams[i].fill(b); ended {
			c.detach(c.streams[i])
		} else {
			i++
		}
	}
	if n := len(c.streams); n > 1 {
		// Another one comes first next time.
		first := c.streams[0]
		copy(c.streams, c.streams[1:])
		c.streams[n-1] = first
	}
	return b
}

// outgoing is a message on its way out.
type outgoing struct {
	prefix [5]byte
	pos    int // in prefix
	bufs   mem.BufferSlice
	at     int // in bufs[0]
	left   int // bytes, prefix included
}

func newOutgoing(data mem.BufferSlice) outgoing {
	n := data.Len()
	o := outgoing{bufs: data, left: n}
	binary.BigEndian.PutUint32(o.prefix[1:], uint32(n))
	o.left += len(o.prefix)
	return o
}

// appendTo moves the next n bytes to b.
func (o *outgoing) appendTo(b []byte, n int) []byte {
	o.left -= n
	if o.pos < len(o.prefix) {
		k := min(n, len(o.prefix)-o.pos)
		b = append(b, o.prefix[o.pos:o.pos+k]...)
		o.pos += k
		n -= k
	}
	for n > 0 {
		rest := o.bufs[0].ReadOnlyData()[o.at:]
		k := min(n, len(rest))
		b = append(b, rest[:k]...)
		o.at += k
		n -= k
		if k == len(rest) {
			o.bufs[0].Free()
			o.bufs, o.at = o.bufs[1:], 0
		}
	}
	return b
}

// fill appends what the stream may send now. After ended nothing follows. Guarded by mu.
func (s *stream) fill(b []byte) (_ []byte, ended bool) {
	c := s.conn
	if !s.headed && (s.headNow || len(s.out) > 0) {
		head := s.headBlock()
		if cap(b)-len(b) < frameHeader+len(head) {
			return b, false
		}
		b = appendHeaders(b, s.id, head, false)
		s.headed, s.header = true, nil
	}
	for len(s.out) > 0 {
		o := &s.out[0]
		room := cap(b) - len(b) - frameHeader
		n := min(o.left, int(s.window), int(c.window), c.peer.frame, room)
		if n <= 0 || n < o.left && n == room && n < minChunk {
			return b, false
		}
		b = appendHeader(b, n, http2.FrameData, 0, s.id)
		b = o.appendTo(b, n)
		s.window -= int32(n)
		c.window -= int32(n)
		s.queued -= n
		c.calm.earn()
		if o.left == 0 {
			s.out = slices.Delete(s.out, 0, 1)
		}
		s.makeRoom()
	}
	if s.tail == nil || cap(b)-len(b) < 2*frameHeader+len(s.tail)+4 {
		return b, false
	}
	b = appendHeaders(b, s.id, s.tail, true)
	if !s.remoteClosed {
		// It need not send the rest.
		b = appendReset(b, s.id, http2.ErrCodeNo)
	}
	return b, true
}

// headBlock returns the headers of the response.
func (s *stream) headBlock() []byte {
	if len(s.header) == 0 {
		return s.conn.server.head
	}
	h := newHeaderBlock()
	h.start(http.StatusOK)
	h.addAll(s.header)
	return h.buf.Bytes()
}
