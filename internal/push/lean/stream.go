// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// stream is one call. It implements grpc.ServerStream.
type stream struct {
	// set once by newStream, read-only
	conn *conn
	id   uint32
	path string
	run  grpc.StreamHandler
	ctx  context.Context //nolint:containedctx // the one way to give a stream a context

	// guarded by conn.mu
	incoming
	response
	ending
}

// incoming is what the client sends.
type incoming struct {
	inbox        [][]byte
	part         assembly
	recv         window
	uncredited   int32 // bytes that came and were not given back to the window
	remoteClosed bool
	wake         chan struct{} // made when a handler waits without reading
}

// response is what goes out.
type response struct {
	header, trailer metadata.MD
	headNow, headed bool
	out             []outgoing
	queued          int           // bytes in out
	window          int32         // bytes that the client takes now; negative after it took some back
	tail            []byte        // the trailers that end it
	room            chan struct{} // made when a sender waits
}

// ending is how a stream ends.
type ending struct {
	ended bool
	err   error // for whoever still uses it
	done  chan struct{}
	until time.Time // zero: no deadline
	late  *time.Timer
	cut   *time.Timer
}

// assembly is the message that is coming in.
type assembly struct {
	head [5]byte
	n    int // bytes of head
	want int
	body []byte
}

const (
	// maxHeld bounds the messages of a connection that no handler took yet.
	maxHeld = 4 << 20
	// firstBody is what a message gets before it proves to be larger.
	firstBody = 4 << 10
	perBody   = 64
)

func newStream(c *conn, id uint32, path string, run grpc.StreamHandler) *stream {
	s := &stream{conn: c, id: id, path: path, run: run}
	s.window = c.peer.window
	s.recv.left = defaultWindow
	ctx := peer.NewContext((*streamContext)(s), &peer.Peer{Addr: c.nc.RemoteAddr(), LocalAddr: c.nc.LocalAddr()})
	s.ctx = grpc.NewContextWithServerTransportStream(ctx, (*transportStream)(s))
	return s
}

// handle runs the handler of a stream.
func (c *conn) handle(s *stream) {
	err := c.call(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers--
	s.finish(status.Convert(err))
}

func (c *conn) call(s *stream) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.server.log.Error("handler failed", "method", s.path, "error", fmt.Errorf("panic: %v\n%s", cause, debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return s.run(nil, s)
}

// expire sets the deadline of a call.
func (s *stream) expire(timeout string) {
	d, err := parseTimeout(timeout)
	if err != nil || d == 0 {
		return
	}
	s.until = time.Now().Add(d)
	s.late = time.AfterFunc(d, func() {
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		s.finish(status.New(codes.DeadlineExceeded, "deadline of the call exceeded"))
	})
}

// add takes in bytes of messages. Guarded by mu.
func (s *stream) add(data []byte) *status.Status {
	p := &s.part
	for len(data) > 0 {
		if p.n < len(p.head) {
			n := copy(p.head[p.n:], data)
			p.n += n
			if data = data[n:]; p.n < len(p.head) {
				return nil
			}
			if st := s.begin(); st != nil {
				return st
			}
		}
		n := min(len(data), p.want-len(p.body))
		p.body = append(p.body, data[:n]...)
		s.conn.held += n
		data = data[n:]
		if len(p.body) == p.want {
			s.inbox = append(s.inbox, p.body)
			s.conn.held += perBody
			*p = assembly{}
			s.rouse()
		}
	}
	return nil
}

func (s *stream) begin() *status.Status {
	p := &s.part
	size := binary.BigEndian.Uint32(p.head[1:])
	switch limit := s.conn.server.limits.Message; {
	case p.head[0] == 1:
		return status.New(codes.Unimplemented, "compressed messages are not supported")
	case p.head[0] != 0:
		return status.Newf(codes.Internal, "message of an unknown form %d", p.head[0])
	case uint64(size) > uint64(limit):
		return status.Newf(codes.ResourceExhausted, "message of %d bytes: at most %d", size, limit)
	}
	p.want = int(size)
	p.body = make([]byte, 0, min(p.want, firstBody))
	return nil
}

// closeRemote notes that the client sends no more. Guarded by mu.
func (s *stream) closeRemote() {
	s.remoteClosed = true
	s.rouse()
}

// credit lets the client send as much again as it sent. Guarded by mu.
func (s *stream) credit() {
	if s.remoteClosed || s.ended {
		return
	}
	if back := s.recv.back(s.uncredited); back > 0 {
		s.conn.control = appendWindowUpdate(s.conn.control, s.id, back)
	}
	s.uncredited = 0
}

// rouse wakes a handler that waits for a message. Guarded by mu.
func (s *stream) rouse() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// makeRoom wakes senders that wait. Guarded by mu.
func (s *stream) makeRoom() {
	if s.room != nil && (s.queued < maxQueued || s.ended) {
		close(s.room)
		s.room = nil
	}
}

// finish ends the stream with a status, behind what was sent before. Guarded by mu.
func (s *stream) finish(st *status.Status) {
	if s.ended {
		return
	}
	s.tail = s.trailers(st)
	err := st.Err()
	if err == nil {
		err = status.Error(codes.Canceled, "the call has ended")
	}
	s.fail(err)
	if len(s.out) > 0 {
		s.cut = time.AfterFunc(s.conn.server.limits.Linger, s.cutShort)
	}
	s.conn.flush()
}

// cutShort ends a stream whose client does not take what comes before the status.
func (s *stream) cutShort() {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.find(s.id) != s {
		return
	}
	if c.catchingUp {
		c.die(status.Error(codes.Unavailable, "the client does not read"))
		return
	}
	c.control = appendReset(c.control, s.id, http2.ErrCodeCancel)
	c.remove(s)
	c.flush()
}

// fail lets nobody use the stream any more. Guarded by mu.
func (s *stream) fail(err error) {
	if s.ended {
		return
	}
	s.ended = true
	if s.err = err; err == nil {
		s.err = status.Error(codes.Canceled, "the connection has ended")
	}
	if s.done != nil {
		close(s.done)
	}
	s.rouse()
	s.makeRoom()
	s.conn.recall(s)
}

// drop gives back what a stream holds that is off the wire. Guarded by mu.
func (s *stream) drop() {
	for _, t := range []*time.Timer{s.late, s.cut} {
		if t != nil {
			t.Stop()
		}
	}
	for i := range s.out {
		s.out[i].bufs.Free()
	}
	s.out, s.queued = nil, 0
	for _, body := range s.inbox {
		s.conn.held -= len(body) + perBody
	}
	s.conn.held -= len(s.part.body)
	s.inbox, s.part = nil, assembly{}
}

// SendMsg implements grpc.ServerStream. It waits only while more than 64 KiB wait already.
func (s *stream) SendMsg(m any) error {
	c := s.conn
	data, err := c.server.codec.Marshal(m)
	if err != nil {
		return status.Errorf(codes.Internal, "encode message: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !s.ended && s.queued >= maxQueued {
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		c.share() // somebody has to hear when the client takes more
		c.mu.Unlock()
		<-room
		c.mu.Lock()
	}
	if s.ended {
		data.Free()
		return s.err
	}
	o := newOutgoing(data)
	s.queued += o.left
	s.out = append(s.out, o)
	c.flush()
	return nil
}

// RecvMsg implements grpc.ServerStream.
func (s *stream) RecvMsg(m any) error {
	body, err := s.receive()
	if err != nil {
		return err
	}
	if err := s.conn.server.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(body)}, m); err != nil {
		return status.Errorf(codes.Internal, "decode message: %v", err)
	}
	return nil
}

func (s *stream) receive() ([]byte, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.ended:
			c.share() // the handler is on its way out
			return nil, s.err
		case len(s.inbox) > 0:
			return s.take(), nil
		case s.remoteClosed && s.part.n > 0:
			c.share()
			return nil, status.Error(codes.Internal, "the client ended within a message")
		case s.remoteClosed:
			c.share()
			return nil, io.EOF
		case !c.reading:
			c.readFor(s)
		default:
			if s.wake == nil {
				s.wake = make(chan struct{})
			}
			wake := s.wake
			c.mu.Unlock()
			<-wake
			c.mu.Lock()
		}
	}
}

// take is guarded by mu.
func (s *stream) take() []byte {
	body := s.inbox[0]
	s.inbox[0] = nil
	if s.inbox = s.inbox[1:]; len(s.inbox) == 0 {
		s.inbox = nil
		s.credit()
		s.conn.flush()
	}
	s.conn.held -= len(body) + perBody
	return body
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (s *stream) SetHeader(md metadata.MD) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.headed || s.headNow || s.ended {
		return status.Error(codes.Internal, "headers were sent already")
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader implements grpc.ServerStream.
func (s *stream) SendHeader(md metadata.MD) error {
	if err := s.SetHeader(md); err != nil {
		return err
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.headNow = true
	s.conn.flush()
	return nil
}

// SetTrailer implements grpc.ServerStream.
func (s *stream) SetTrailer(md metadata.MD) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
}

// streamContext is a stream as the root of its handler's context.
type streamContext stream

// Deadline implements context.Context.
func (c *streamContext) Deadline() (time.Time, bool) { return c.until, !c.until.IsZero() }

// Done implements context.Context.
func (c *streamContext) Done() <-chan struct{} {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.conn.share() // whoever waits for it does not read, and has to hear that the client left
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *streamContext) Err() error {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	switch {
	case !c.ended:
		return nil
	case status.Code(c.err) == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// Value implements context.Context.
func (c *streamContext) Value(any) any { return nil }

// transportStream is a stream as grpc.ServerTransportStream.
type transportStream stream

// Method implements grpc.ServerTransportStream.
func (t *transportStream) Method() string { return t.path }

// SetHeader implements grpc.ServerTransportStream.
func (t *transportStream) SetHeader(md metadata.MD) error { return (*stream)(t).SetHeader(md) }

// SendHeader implements grpc.ServerTransportStream.
func (t *transportStream) SendHeader(md metadata.MD) error { return (*stream)(t).SendHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (t *transportStream) SetTrailer(md metadata.MD) error {
	(*stream)(t).SetTrailer(md)
	return nil
}

// WriteStatus ends the stream, as grpc-go's own does: a handler that waits for its client is
// interrupted. Safe for concurrent use.
func (t *transportStream) WriteStatus(st *status.Status) error {
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	(*stream)(t).finish(st)
	return nil
}
