// SPDX-License-Identifier: Apache-2.0

package lean_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/policyd/policyd/internal/push/lean"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; none is expected to come near it.
const patience = 60 * time.Second

const method = "/test.Talk/Talk"

// plain is a codec of bytes, so that any client can speak to the tests' service.
type plain struct{}

func (plain) Name() string { return "proto" }

func (plain) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (plain) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// talk does what its client says, one word and a number or text per message.
func talk(_ any, stream grpc.ServerStream) error {
	say := func(b []byte) error { return stream.SendMsg(&b) }
	for {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		word, rest, _ := strings.Cut(string(in), " ")
		n, _ := strconv.Atoi(rest)
		var err error
		switch word {
		case "echo":
			err = say([]byte(rest))
		case "size":
			err = say([]byte(strconv.Itoa(len(in))))
		case "big":
			err = say(bytes.Repeat([]byte("x"), n))
		case "many":
			for i := 0; i < n && err == nil; i++ {
				err = say(bytes.Repeat([]byte("y"), 1000))
			}
		case "fail":
			st, _ := status.New(codes.Code(n), "süß % so\nit is").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
			return st.Err()
		case "panic":
			panic("on purpose")
		case "wait":
			<-stream.Context().Done()
			return stream.Context().Err()
		case "headers":
			stream.SetTrailer(metadata.Pairs("after", "2", "raw-bin", "\x00\xff"))
			err = stream.SendHeader(metadata.Pairs("before", "1"))
		case "end": // from another goroutine, as a hub does
			ts := grpc.ServerTransportStreamFromContext(stream.Context()).(interface{ WriteStatus(*status.Status) error })
			go func() { _ = ts.WriteStatus(status.New(codes.Aborted, "ended from outside")) }()
		}
		if err != nil {
			return err
		}
	}
}

// bench is a lean server on a real port, with a grpc-go server for all that is not its own.
type bench struct {
	lean *lean.Server
	addr string
	rest *grpc.Server
	log  *syncBuffer
	stop func()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func start(t testing.TB, limits lean.Limits) *bench { return startOn(t, limits, nil) }

func startOn(t testing.TB, limits lean.Limits, wrap func(net.Listener) net.Listener) *bench {
	t.Helper()
	b := &bench{log: &syncBuffer{}}
	var err error
	b.lean, err = lean.New(lean.Config{Codec: plain{}, Logger: slog.New(slog.NewTextHandler(b.log, nil)), Limits: limits})
	require.NoError(t, err)
	b.lean.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Talk", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Talk", Handler: talk, ServerStreams: true, ClientStreams: true}},
	}, nil)
	b.rest = grpc.NewServer()
	healthv1.RegisterHealthServer(b.rest, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.addr = l.Addr().String()
	if wrap != nil {
		l = wrap(l)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = b.lean.Serve(l) })
	running.Go(func() { _ = b.rest.Serve(b.lean.Others()) })
	b.stop = sync.OnceFunc(func() {
		b.lean.Close()
		b.rest.Stop()
		running.Wait()
	})
	t.Cleanup(b.stop)
	return b
}

// caller is a client of grpc-go.
type caller struct {
	grpc.ClientStream
	conn   *grpc.ClientConn
	cancel func()
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *bench) call(t testing.TB) *caller {
	t.Helper()
	return on(t, dial(t, b.addr))
}

func on(t testing.TB, conn *grpc.ClientConn, opts ...grpc.CallOption) *caller {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return onContext(t, ctx, cancel, conn, opts...)
}

func onContext(t testing.TB, ctx context.Context, cancel func(), conn *grpc.ClientConn, opts ...grpc.CallOption) *caller { //nolint:revive // t first, as in all helpers
	t.Helper()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	opts = append(opts, grpc.ForceCodecV2(plain{}), grpc.MaxCallRecvMsgSize(64<<20))
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	require.NoError(t, err)
	return &caller{ClientStream: stream, conn: conn, cancel: cancel}
}

func (c *caller) say(text string) error {
	b := []byte(text)
	return c.SendMsg(&b)
}

func (c *caller) hear() (string, error) {
	var b []byte
	err := c.RecvMsg(&b)
	return string(b), err
}

func (c *caller) ask(t testing.TB, text string) string {
	t.Helper()
	require.NoError(t, c.say(text))
	answer, err := c.hear()
	require.NoError(t, err)
	return answer
}

// wire is a client that says anything, frame by frame.
type wire struct {
	t testing.TB
	net.Conn
	*http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer
}

// knock connects and says nothing.
func knock(t testing.TB, addr string) *wire {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	w := &wire{t: t, Conn: c, Framer: http2.NewFramer(c, c)}
	w.Framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	w.Framer.AllowIllegalWrites = true
	w.enc = hpack.NewEncoder(&w.block)
	return w
}

// greet sends the preface and the settings.
func greet(t testing.TB, addr string, settings ...http2.Setting) *wire {
	t.Helper()
	w := knock(t, addr)
	_, err := io.WriteString(w.Conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, w.WriteSettings(settings...))
	return w
}

func fields(change ...string) [][2]string {
	f := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "test"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	}
	for i := 0; i < len(change); i += 2 {
		at := -1
		for j := range f {
			if f[j][0] == change[i] {
				at = j
			}
		}
		if at < 0 {
			f = append(f, [2]string{change[i], change[i+1]})
		} else {
			f[at][1] = change[i+1]
		}
	}
	return f
}

func (w *wire) encode(f [][2]string) []byte {
	w.block.Reset()
	for _, h := range f {
		_ = w.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return w.block.Bytes()
}

func (w *wire) open(id uint32, change ...string) {
	w.t.Helper()
	require.NoError(w.t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(fields(change...)), EndHeaders: true}))
}

func message(text string) []byte {
	return append([]byte{0, byte(len(text) >> 24), byte(len(text) >> 16), byte(len(text) >> 8), byte(len(text))}, text...)
}

func (w *wire) say(id uint32, text string) {
	w.t.Helper()
	require.NoError(w.t, w.WriteData(id, false, message(text)))
}

// talking opens stream 1 of a connection and has an answer.
func talking(t testing.TB, addr string, settings ...http2.Setting) *wire {
	t.Helper()
	w := greet(t, addr, settings...)
	w.open(1)
	w.say(1, "echo hello")
	require.Equal(t, "hello", w.hear(1))
	return w
}

// until reads frames until one is wanted; it returns nil at the end of the connection.
func (w *wire) until(wanted func(http2.Frame) bool) http2.Frame {
	w.t.Helper()
	for {
		f, err := w.ReadFrame()
		if err != nil {
			var late net.Error
			require.False(w.t, errors.As(err, &late) && late.Timeout(), "nothing came")
			return nil
		}
		if wanted(f) {
			return f
		}
	}
}

// hear returns the next message of a stream.
func (w *wire) hear(id uint32) string {
	w.t.Helper()
	var b []byte
	for len(b) < 5 || len(b) < 5+int(b[3])<<8+int(b[4]) {
		f := w.until(func(f http2.Frame) bool { return f.Header().StreamID == id && f.Header().Type == http2.FrameData })
		require.NotNil(w.t, f, "the connection ended")
		b = append(b, f.(*http2.DataFrame).Data()...)
	}
	return string(b[5:])
}

// status reads to the end of a stream.
func (w *wire) status(id uint32) (code, text, httpStatus string) {
	w.t.Helper()
	f := w.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == id && h.StreamEnded()
	})
	require.NotNil(w.t, f, "the connection ended")
	for _, h := range f.(*http2.MetaHeadersFrame).Fields {
		switch h.Name {
		case "grpc-status":
			code = h.Value
		case "grpc-message":
			text = h.Value
		case ":status":
			httpStatus = h.Value
		}
	}
	return code, text, httpStatus
}

func (w *wire) goAway() (http2.ErrCode, string) {
	w.t.Helper()
	f := w.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
	require.NotNil(w.t, f, "closed without a word")
	return f.(*http2.GoAwayFrame).ErrCode, string(f.(*http2.GoAwayFrame).DebugData())
}

func (w *wire) reset(id uint32) http2.ErrCode {
	w.t.Helper()
	f := w.until(func(f http2.Frame) bool {
		return f.Header().Type == http2.FrameRSTStream && f.Header().StreamID == id
	})
	require.NotNil(w.t, f, "the connection ended")
	return f.(*http2.RSTStreamFrame).ErrCode
}

// closed reads until the server has closed the connection.
func (w *wire) closed() {
	w.t.Helper()
	require.Nil(w.t, w.until(func(http2.Frame) bool { return false }))
}

// alive shows that the connection still serves stream id.
func (w *wire) alive(id uint32) {
	w.t.Helper()
	w.say(id, fmt.Sprint("echo alive ", id))
	require.Equal(w.t, fmt.Sprint("alive ", id), w.hear(id))
}

// goroutines counts those of lean.
func goroutines() int {
	buf := make([]byte, 8<<20)
	n := 0
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "internal/push/lean.(*conn)") {
			n++
		}
	}
	return n
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 2*time.Millisecond, what)
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newEncoder(w *wire) *hpack.Encoder { return hpack.NewEncoder(&w.block) }
