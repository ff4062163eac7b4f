// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func protocol(reason string) *fault { return &fault{http2.ErrCodeProtocol, reason} }

// frame takes in one frame, or what is wrong with it. Guarded by mu.
func (c *conn) frame(f http2.Frame, err error) *fault {
	var streamErr http2.StreamError
	var connErr http2.ConnectionError
	switch {
	case errors.As(err, &streamErr):
		if streamErr.StreamID > c.maxID {
			return &fault{streamErr.Code, "frame of a stream that was never opened"}
		}
		return c.reset(streamErr.StreamID, streamErr.Code)
	case errors.As(err, &connErr):
		return &fault{http2.ErrCode(connErr), "malformed frame"}
	case err != nil:
		return &fault{http2.ErrCodeFrameSize, "frame without room for what it must hold"}
	}
	if more, ok := f.(*http2.ContinuationFrame); ok {
		return c.onContinuation(more)
	}
	if c.headers.block != nil {
		return protocol("headers interrupted by another frame")
	}
	if !c.calm.spend(f, c.server.now()) {
		return &fault{http2.ErrCodeEnhanceYourCalm, "too many frames that carry nothing"}
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.HeadersFrame:
		return c.onHeaders(f)
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.PingFrame:
		return c.onPing(f)
	case *http2.WindowUpdateFrame:
		return c.onWindowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	case *http2.PushPromiseFrame:
		return protocol("clients push nothing")
	}
	// GOAWAY: no stream is opened from here. PRIORITY says nothing any more. Unknown types
	// are skipped.
	return nil
}

// idle reports whether a stream was not opened yet. Guarded by mu.
func (c *conn) idle(id uint32) bool { return id > c.maxID || id%2 == 0 }

// reset ends a stream because of what the client did. Guarded by mu.
func (c *conn) reset(id uint32, code http2.ErrCode) *fault {
	c.control = appendReset(c.control, id, code)
	if s := c.find(id); s != nil {
		s.fail(status.Errorf(codes.Internal, "stream error: %s", code))
		c.remove(s)
	}
	return nil
}

func (c *conn) onData(f *http2.DataFrame) *fault {
	if c.idle(f.StreamID) {
		return protocol("data of a stream that was never opened")
	}
	n := int32(f.Length)
	if !c.recv.take(n) {
		return &fault{http2.ErrCodeFlowControl, "more data than the connection's window"}
	}
	// The connection's window bounds nothing: the streams' do, and the bytes that are held.
	if back := c.recv.back(n); back > 0 {
		c.control = appendWindowUpdate(c.control, 0, back)
	}
	s := c.find(f.StreamID)
	switch {
	case s == nil:
		return nil // it ended while this was on its way
	case s.remoteClosed:
		return c.reset(s.id, http2.ErrCodeStreamClosed)
	case !s.recv.take(n):
		return c.reset(s.id, http2.ErrCodeFlowControl)
	}
	data := f.Data()
	s.uncredited += n
	if st := s.add(data); st != nil {
		s.finish(st)
		return nil
	}
	if c.held > maxHeld {
		return &fault{http2.ErrCodeEnhanceYourCalm, "too many messages at once"}
	}
	if f.StreamEnded() {
		s.closeRemote()
	} else if len(s.inbox) == 0 {
		s.credit()
	}
	return nil
}

// onPing answers a ping and counts those that come too often.
func (c *conn) onPing(f *http2.PingFrame) *fault {
	if f.IsAck() {
		return nil
	}
	c.control = appendPing(c.control, true, f.Data)
	if !c.calm.ping(c.server.now(), c.server.limits.MinPing) {
		return &fault{http2.ErrCodeEnhanceYourCalm, "too_many_pings"} // as clients of gRPC know it
	}
	return nil
}

func (c *conn) onSettings(f *http2.SettingsFrame) *fault {
	if f.IsAck() {
		c.headers.acked = true
		return nil
	}
	var wrong *fault
	_ = f.ForeachSetting(func(s http2.Setting) error { // returns what the function does
		if err := s.Valid(); err != nil {
			var code http2.ConnectionError
			if wrong = protocol("setting out of range"); errors.As(err, &code) {
				wrong.code = http2.ErrCode(code)
			}
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			wrong = c.resize(int32(s.Val))
		case http2.SettingMaxFrameSize:
			c.peer.frame = int(min(s.Val, maxFrame))
		case http2.SettingMaxHeaderListSize:
			c.peer.headerList = s.Val
		default: // of no concern to who pushes nothing and remembers no headers
		}
		return nil
	})
	if wrong != nil {
		return wrong
	}
	c.control = appendSettingsAck(c.control)
	return nil
}

// resize moves the windows of all streams by what the initial one moves. They may become
// negative.
func (c *conn) resize(initial int32) *fault {
	by := int64(initial) - int64(c.peer.window)
	for _, s := range c.streams {
		if int64(s.window)+by > maxWindow {
			return &fault{http2.ErrCodeFlowControl, "initial window makes a window overflow"}
		}
		s.window = int32(int64(s.window) + by)
	}
	c.peer.window = initial
	return nil
}

func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) *fault {
	if f.StreamID == 0 {
		if int64(c.window)+int64(f.Increment) > maxWindow {
			return &fault{http2.ErrCodeFlowControl, "the connection's window overflows"}
		}
		c.window += int32(f.Increment)
		return nil
	}
	if c.idle(f.StreamID) {
		return protocol("window of a stream that was never opened")
	}
	s := c.find(f.StreamID)
	switch {
	case s == nil:
	case int64(s.window)+int64(f.Increment) > maxWindow:
		return c.reset(s.id, http2.ErrCodeFlowControl)
	default:
		s.window += int32(f.Increment)
	}
	return nil
}

func (c *conn) onReset(f *http2.RSTStreamFrame) *fault {
	if c.idle(f.StreamID) {
		return protocol("reset of a stream that was never opened")
	}
	if s := c.find(f.StreamID); s != nil {
		s.fail(status.Error(codes.Canceled, "the client canceled the call"))
		c.remove(s)
	}
	return nil
}

// calm bounds what a client makes the server do for nothing. Bytes that carry messages cost
// nothing, and what is sent gives something back, as it has to be answered.
type calm struct {
	left    int
	at      time.Duration // up to when calmRate was added
	pinged  bool
	pingAt  time.Duration
	strikes int
}

const (
	calmBurst = 1000
	calmRate  = 20 // per second
	// To open streams and reset them is the cheapest way to keep a server busy.
	priceOfStream   = 2
	priceOfReset    = 10
	priceOfSettings = 10
	earned          = 4
	maxStrikes      = 2
)

func (b *calm) spend(f http2.Frame, now time.Duration) bool {
	price := 1
	switch f := f.(type) {
	case *http2.DataFrame:
		if f.Length > 0 && len(f.Data()) > 0 || f.StreamEnded() {
			price = 0
		}
	case *http2.HeadersFrame:
		price = priceOfStream
	case *http2.RSTStreamFrame:
		price = priceOfReset
	case *http2.SettingsFrame:
		price = priceOfSettings
	}
	if price == 0 {
		return true
	}
	if gained := int((now - b.at) * calmRate / time.Second); gained > 0 {
		b.left, b.at = min(b.left+gained, calmBurst), now
	}
	b.left -= price
	return b.left >= 0
}

// earn is called when something was sent.
func (b *calm) earn() {
	b.left = min(b.left+earned, calmBurst)
	b.strikes, b.pinged = 0, false
}

// ping allows what grpc-go's servers do: any ping after something was sent, as clients
// measure the connection by them, else one per least.
func (b *calm) ping(now, least time.Duration) bool {
	early := b.pinged && now-b.pingAt < least
	b.pinged, b.pingAt = true, now
	if early {
		b.strikes++
	}
	return b.strikes <= maxStrikes
}

// window is what the client may still send, and what it may be told anew.
type window struct{ left, due int32 }

// take is false when the client sends more than it may.
func (w *window) take(n int32) bool {
	if n > w.left {
		return false
	}
	w.left -= n
	return true
}

// back gives n bytes back and returns how much the client is to be told now.
func (w *window) back(n int32) uint32 {
	w.due += n
	if w.due < defaultWindow/2 {
		return 0
	}
	told := w.due
	w.left += told
	w.due = 0
	return uint32(told)
}

func appendHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	b = appendHeader(b, 4, http2.FrameRSTStream, 0, stream)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendWindowUpdate(b []byte, stream, n uint32) []byte {
	b = appendHeader(b, 4, http2.FrameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(b, n)
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	return append(appendHeader(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

func appendSettingsAck(b []byte) []byte {
	return appendHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

func appendGoAway(b []byte, last uint32, f fault) []byte {
	b = appendHeader(b, 8+len(f.reason), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(f.code))
	return append(b, f.reason...)
}
