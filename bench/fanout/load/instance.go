// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/bench/fanout/payload"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/reconnect"
)

// instance speaks just enough gRPC to hold one stream: ten thousand of them must cost less
// than the server that is measured.
type instance struct {
	l     *Loader
	id    int
	slot  *slot
	point point // what it holds, for the next stream
	guard *guard

	// of one connection
	conn     net.Conn
	writing  sync.Mutex // guards due and what writes
	due      proto.Message
	delayed  *time.Timer
	framer   *http2.Framer
	stream   uint32
	buf      []byte // of a message that is not complete
	unread   int    // bytes that the window has not got back
	served   bool   // the stream has brought what it starts with
	bytes    int64  // that came
	greeting int64  // the same, up to the moment it was served
	done     chan struct{}
}

func newInstance(l *Loader, id int) *instance {
	in := &instance{l: l, id: id, slot: &l.slots[id]}
	if l.kind.Engine {
		in.guard = newGuard()
	}
	return in
}

func readRaw(c net.Conn, size int, s *slot) {
	b := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if at, ok := payload.Committed(b); ok {
			s.got(at)
		}
	}
}

// rejoin says how instances come back, and what it was like.
type rejoin struct {
	// share, in [0, 1), is that of the SDK's own wait before each stream; nil: no own waits.
	share   func() float64
	resume  bool
	spread  atomic.Int64 // longest wait of an instance
	refused atomic.Int64
	failed  atomic.Int64 // attempts that found nobody
}

// join opens a stream, as often as it takes, and returns when the instance is up to date. It
// waits as the SDK does, by the SDK's own code, each time on a new connection.
func (in *instance) join(r *rejoin) error {
	end := reconnect.Ended{Err: io.EOF}
	var own reconnect.Wait
	var waited time.Duration
	for {
		switch {
		case r.share != nil:
			wait := own.After(end, r.share)
			waited += wait
			time.Sleep(wait)
		case status.Code(end.Err) == codes.ResourceExhausted:
			time.Sleep(own.After(end, func() float64 { return 0 }))
		}
		in.conn = nil
		err := in.open(r.resume)
		switch {
		case err == nil:
			for old := r.spread.Load(); int64(waited) > old && !r.spread.CompareAndSwap(old, int64(waited)); {
				old = r.spread.Load()
			}
			return nil
		case status.Code(err) == codes.ResourceExhausted:
			r.refused.Add(1)
		case r.share == nil:
			return err
		default:
			r.failed.Add(1)
		}
		end.Err = err
	}
}

func (in *instance) cut() {
	_ = in.conn.Close()
	<-in.done
	in.writing.Lock()
	defer in.writing.Unlock()
	in.due = nil
}

// meter counts what is read.
type meter struct {
	net.Conn
	n *int64
}

func (m meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	*m.n += int64(n)
	return n, err
}

// open starts a stream on a connection of its own and returns when it is served; the rest is
// read by a goroutine.
func (in *instance) open(resume bool) error {
	var head bytes.Buffer
	conn, err := dial(in.l.addr, in.id)
	if err != nil {
		return err
	}
	in.conn, in.stream, in.bytes, in.buf, in.unread = conn, 1, 0, nil, 0
	in.framer = http2.NewFramer(conn, bufio.NewReaderSize(meter{conn, &in.bytes}, 4<<10))
	in.framer.SetReuseFrames()
	in.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	head.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(&head, nil).WriteSettings(); err != nil {
		return err
	}
	in.served = false
	if err := in.call(&head, resume); err != nil {
		return err
	}
	for !in.served {
		if err := in.step(); err != nil {
			_ = in.conn.Close()
			return err
		}
	}
	in.greeting = in.bytes
	in.done = make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		for {
			if err := in.step(); err != nil {
				return // a stream that is missed shows in its slot
			}
		}
	}(in.done)
	return nil
}

// call writes the headers and the first message.
func (in *instance) call(head *bytes.Buffer, resume bool) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", in.l.kind.Dialect.path},
		{":authority", "bench"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	fr := http2.NewFramer(head, nil)
	if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: in.stream, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	if err := fr.WriteData(in.stream, false, message(in.l.kind.Dialect.hello(in, resume))); err != nil {
		return err
	}
	_, err := in.conn.Write(head.Bytes())
	return err
}

func message(m []byte) []byte {
	b := make([]byte, 5, 5+len(m))
	binary.BigEndian.PutUint32(b[1:], uint32(len(m)))
	return append(b, m...)
}

func (in *instance) say(m proto.Message) error {
	in.writing.Lock()
	defer in.writing.Unlock()
	return in.write(m)
}

func (in *instance) write(m proto.Message) error {
	return in.framer.WriteData(in.stream, false, message(payload.Encoded(m)))
}

// confirm does as SDKs do: at a random moment of the last quarter of the time given, along
// with what comes meanwhile.
func (in *instance) confirm(m proto.Message, within time.Duration) error {
	in.writing.Lock()
	defer in.writing.Unlock()
	if within == 0 || in.l.kind.Prompt {
		return in.write(m)
	}
	in.due = m
	wait := within*3/4 + rand.N(within/4)
	if in.delayed == nil {
		in.delayed = time.AfterFunc(wait, func() {
			in.writing.Lock()
			defer in.writing.Unlock()
			if in.due != nil {
				_ = in.write(in.due) // a confirmation that is missed shows on the other side
				in.due = nil
			}
		})
	} else {
		in.delayed.Reset(wait)
	}
	return nil
}

// step reads one frame and does what it asks for.
func (in *instance) step() error {
	f, err := in.framer.ReadFrame()
	if err != nil {
		return err
	}
	if of := f.Header().StreamID; of > 0 && of != in.stream {
		return nil // of a stream that was refused
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return in.locked(in.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return in.locked(func() error { return in.framer.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame, *http2.RSTStreamFrame:
		return fmt.Errorf("stream ended: %v", f)
	case *http2.MetaHeadersFrame:
		if f.StreamEnded() {
			return ending(f)
		}
	case *http2.DataFrame:
		if err := in.giveBack(len(f.Data())); err != nil {
			return err
		}
		return in.take(f.Data())
	}
	return nil
}

// giveBack returns the window now and then.
func (in *instance) giveBack(n int) error {
	if in.unread += n; in.unread < 16<<10 {
		return nil
	}
	back := uint32(in.unread)
	in.unread = 0
	return in.locked(func() error {
		return errors.Join(in.framer.WriteWindowUpdate(0, back), in.framer.WriteWindowUpdate(in.stream, back))
	})
}

func (in *instance) locked(write func() error) error {
	in.writing.Lock()
	defer in.writing.Unlock()
	return write()
}

func (in *instance) take(data []byte) error {
	in.buf = append(in.buf, data...)
	for len(in.buf) >= 5 {
		size := 5 + int(binary.BigEndian.Uint32(in.buf[1:]))
		if len(in.buf) < size {
			return nil
		}
		m := in.buf[5:size]
		if at, ok := payload.Committed(m); ok {
			in.slot.got(at)
		}
		if err := in.l.kind.Dialect.take(in, m); err != nil {
			return err
		}
		in.buf = append(in.buf[:0], in.buf[size:]...)
	}
	return nil
}

func ending(f *http2.MetaHeadersFrame) error {
	var code, text, details string
	for _, h := range f.Fields {
		switch h.Name {
		case "grpc-status":
			code = h.Value
		case "grpc-message":
			text = h.Value
		case "grpc-status-details-bin":
			details = h.Value
		}
	}
	if details == "" {
		return fmt.Errorf("stream ended with status %s: %s", code, text)
	}
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "="))
	if err != nil {
		return err
	}
	var st statuspb.Status
	if err := proto.Unmarshal(raw, &st); err != nil {
		return err
	}
	return status.ErrorProto(&st)
}
