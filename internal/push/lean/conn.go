// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// conn is one connection. One goroutine at a time is its reader: the handler of its only
// stream while that waits for a message, else a goroutine of its own.
type conn struct {
	// set once by newConn, read-only
	server     *Server
	nc         net.Conn
	raw        syscall.RawConn // nil: not a bare socket
	onReadable func(fd uintptr) bool
	onWritable func(fd uintptr) bool

	receiving // owned by the reader

	// mu guards the fields below.
	mu sync.Mutex
	reader
	liveness
	sending
	peer    peerSettings
	headers headerState
	calm    calm

	roster
	held int    // bytes of messages that no handler took yet
	recv window // what the client may still send

	met     bool // it is known whose the connection is
	leaving bool // the client was told to open no more streams
	hungUp  bool // nothing more is written or looked at
	dead    bool
}

// receiving is what a reader holds between and within its reads.
type receiving struct {
	partial []byte // an unfinished frame
	wait    []byte // without raw
	in      *input
	inErr   error
}

// roster is the streams of a connection.
type roster struct {
	streams  []*stream // open
	opened   []*stream // their handlers are to be started
	handlers int
	maxID    uint32 // highest stream that the client opened
	lastID   uint32 // highest stream that was taken
}

// reader says who reads.
type reader struct {
	reading bool
	// by is the stream whose handler is the reader; it can be called back.
	by *stream
	// shared: handlers are not to read, somebody else does.
	shared bool
}

// liveness finds out whether the client is still there. All times are the server's.
type liveness struct {
	armed   bool // the read deadline is set for the next check
	heard   time.Duration
	pinged  bool // and nothing was heard since
	pingAt  time.Duration
	closeAt time.Duration // 0: not hung up
}

// peerSettings are those of the client's settings that matter here.
type peerSettings struct {
	window     int32 // of a new stream
	frame      int
	headerList uint32
}

const (
	defaultWindow = 65_535
	maxWindow     = 1<<31 - 1
	// goodbye is how long a client may take to read why it was hung up on.
	goodbye = time.Second
)

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, nc: nc, raw: rawOf(nc), recv: window{left: defaultWindow}}
	c.onReadable, c.onWritable = c.readable, c.writable
	c.sending.window = defaultWindow
	c.peer = peerSettings{window: defaultWindow, frame: maxFrame, headerList: maxHeaderList}
	c.heard = s.now()
	c.calm.at = c.heard
	c.calm.left = calmBurst
	c.reading = true
	return c
}

// start is the connection's goroutine.
func (c *conn) start() {
	head, v := c.meet()
	switch v {
	case ours:
	case theirs:
		// Nothing may be cut that is on its way to the other server.
		c.server.forget(c)
		c.server.others.give(&replayed{Conn: c.nc, head: head})
		return
	case undecided, nobodys:
		c.kill(nil)
		return
	}
	in := c.server.input()
	in.n = copy(in.buf[:], head[len(http2.ClientPreface):])
	c.mu.Lock()
	c.met = true
	c.consume(in)
	c.flush()
	c.mu.Unlock()
	c.read()
}

// read is the reader until somebody else is or the connection ends.
func (c *conn) read() {
	for {
		c.mu.Lock()
		if c.dead {
			c.reading = false
			c.mu.Unlock()
			return
		}
		opened := c.opened
		c.opened = nil
		if len(opened) == 1 && c.handlers == 1 {
			// The only stream there is reads for itself, on this goroutine.
			c.reading, c.shared = false, false
			c.mu.Unlock()
			c.handle(opened[0])
			c.mu.Lock()
			if c.reading || c.dead {
				c.mu.Unlock()
				return
			}
			c.reading = true
			c.mu.Unlock()
			continue
		}
		c.startAll(opened)
		c.arm()
		c.mu.Unlock()
		c.step()
	}
}

// startAll is guarded by mu.
func (c *conn) startAll(opened []*stream) {
	for _, s := range opened {
		c.server.running.Go(func() { c.handle(s) })
	}
}

// share makes sure that somebody else reads when a handler may be busy for a while. Guarded
// by mu.
func (c *conn) share() {
	if c.dead {
		return
	}
	c.shared = true
	if !c.reading {
		c.reading = true
		c.server.running.Go(c.read)
	}
}

// readFor is a step of reading by the handler of a stream. Guarded by mu, but not throughout.
func (c *conn) readFor(s *stream) {
	c.reading, c.by = true, s
	c.arm()
	c.mu.Unlock()
	c.step()
	c.mu.Lock()
	c.reading, c.by = false, nil
	if len(c.opened) > 0 {
		opened := c.opened
		c.opened = nil
		c.startAll(opened)
		c.shared = true
	}
	if c.shared {
		c.share()
	}
}

// recall interrupts a read that the handler of a stream is in. Guarded by mu.
func (c *conn) recall(s *stream) {
	if c.by == s {
		c.armed = false
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection ended
	}
}

// step reads once and takes in all whole frames.
func (c *conn) step() {
	in, err := c.more()
	c.mu.Lock()
	defer c.mu.Unlock()
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		c.check()
	case err != nil:
		c.die(status.Error(codes.Canceled, "the client is gone"))
	case c.hungUp:
		c.partial = nil
		c.server.inputs.Put(in)
	default:
		c.heard, c.pinged = c.server.now(), false
		c.consume(in)
		c.flush()
	}
}

// consume takes in the whole frames of in and keeps the rest. Guarded by mu.
func (c *conn) consume(in *input) {
	b := in.buf[:in.n]
	for len(b) >= frameHeader && !c.hungUp {
		n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
		if n > maxFrame {
			c.abort(fault{http2.ErrCodeFrameSize, "frame too large"})
			break
		}
		if n += frameHeader; len(b) < n {
			break
		}
		if err := c.frame(in.frame(b[:n])); err != nil {
			c.abort(*err)
			break
		}
		b = b[n:]
	}
	if c.catchingUp && len(c.control) > maxControl {
		c.abort(fault{http2.ErrCodeEnhanceYourCalm, "answers are not read"})
	}
	c.partial = nil
	if len(b) > 0 && !c.hungUp {
		c.partial = slices.Clone(b)
	}
	c.server.inputs.Put(in)
}

// arm sets the read deadline for the next check. Guarded by mu.
func (c *conn) arm() {
	if c.armed {
		return
	}
	c.armed = true
	at := c.heard + c.server.limits.Idle
	switch {
	case c.closeAt > 0:
		at = c.closeAt
	case c.pinged:
		at = c.pingAt + c.server.limits.PingTimeout
	}
	_ = c.nc.SetReadDeadline(c.server.start.Add(at)) // fails only if the connection ended
}

// check looks whether the client is still there. Guarded by mu.
func (c *conn) check() {
	c.armed = false
	now, limits := c.server.now(), &c.server.limits
	switch {
	case c.closeAt > 0 && now >= c.closeAt:
		c.die(nil)
	case c.closeAt > 0:
	case c.pinged && now-c.pingAt >= limits.PingTimeout:
		c.die(status.Error(codes.Unavailable, "the client answers no ping"))
	case !c.pinged && now-c.heard >= limits.Idle:
		c.pinged, c.pingAt = true, now
		c.control = appendPing(c.control, false, [8]byte{'i', 'd', 'l', 'e'})
		c.flush()
	}
}

// find returns an open stream, or nil. Guarded by mu.
func (c *conn) find(id uint32) *stream {
	for _, s := range c.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

// remove takes a stream off the wire; nothing more is written on it. Guarded by mu.
func (c *conn) remove(s *stream) {
	c.detach(s)
	c.part()
}

func (c *conn) detach(s *stream) {
	if i := slices.Index(c.streams, s); i >= 0 {
		c.streams = slices.Delete(c.streams, i, i+1)
		s.drop()
	}
}

// part hangs up on a client that was told to leave and has no stream left. Guarded by mu.
func (c *conn) part() {
	if c.leaving && len(c.streams) == 0 {
		c.hangUp()
	}
}

// leave asks the client to open no more streams here.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.met:
		c.die(nil)
	case !c.leaving && !c.dead:
		c.goAway(fault{code: http2.ErrCodeNo})
		c.flush()
		c.part()
	}
}

// goAway is guarded by mu.
func (c *conn) goAway(f fault) {
	c.leaving = true
	c.control = appendGoAway(c.control, c.lastID, f)
}

// abort ends the connection because of what the client did. Guarded by mu.
func (c *conn) abort(f fault) {
	if c.hungUp || c.dead {
		return
	}
	c.goAway(f)
	c.hangUp()
	for _, s := range slices.Clone(c.streams) {
		s.fail(status.Errorf(codes.Internal, "connection error: %s: %s", f.code, f.reason))
		c.remove(s)
	}
}

// hangUp writes what is due, says that nothing follows, and gives the client a moment to
// read it: closing at once would take it away. Guarded by mu.
func (c *conn) hangUp() {
	if c.hungUp || c.dead {
		return
	}
	c.hungUp = true
	c.flush()
	c.closeAt = c.server.now() + goodbye
	_ = c.nc.SetWriteDeadline(c.server.start.Add(c.closeAt))
	c.armed = false
	c.arm() // a read that is under way waits no longer either
	if !c.catchingUp {
		c.closeWrite()
	}
	if !c.reading {
		c.share()
	}
}

func (c *conn) closeWrite() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails only if the connection ended
	}
}

// kill cuts the connection.
func (c *conn) kill(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.die(err)
}

// die is guarded by mu.
func (c *conn) die(err error) {
	if c.dead {
		return
	}
	c.dead, c.hungUp = true, true
	_ = c.nc.Close()
	for _, s := range slices.Clone(c.streams) {
		s.fail(err)
		c.remove(s)
	}
	c.control = nil
	c.server.forget(c)
}

func errStopping() error { return status.Error(codes.Unavailable, "policyd is shutting down") }

// fault is a connection error of HTTP/2.
type fault struct {
	code   http2.ErrCode
	reason string
}

// headerState is what reading headers needs between frames.
type headerState struct {
	block *block
	// decoder is kept only for clients that spoke before they knew our settings.
	decoder *hpack.Decoder
	acked   bool // the client knows our settings
}
