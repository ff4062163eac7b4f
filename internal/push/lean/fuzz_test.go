// SPDX-License-Identifier: Apache-2.0

package lean_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/policyd/policyd/internal/push/lean"
)

// FuzzConnection sends any bytes after a good start. Whatever they are, the server neither
// panics nor keeps anything, and goes on serving others.
func FuzzConnection(f *testing.F) {
	seed := func(write func(fr *http2.Framer)) {
		var b bytes.Buffer
		fr := http2.NewFramer(&b, nil)
		fr.AllowIllegalWrites = true
		write(fr)
		f.Add(b.Bytes(), uint8(b.Len()/2))
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, h := range fields("grpc-timeout", "1S") {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	seed(func(fr *http2.Framer) { _ = fr.WriteData(1, false, message("echo x")) })
	seed(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block.Bytes()[:20], PadLength: 3})
		_ = fr.WriteContinuation(3, true, block.Bytes()[20:])
		_ = fr.WriteDataPadded(3, true, message("many 100"), make([]byte, 9))
		_ = fr.WriteData(1, true, message("fail 5"))
	})
	seed(func(fr *http2.Framer) {
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1})
		_ = fr.WriteData(1, false, append(message("big 100000"), message("echo y")...))
		_ = fr.WriteWindowUpdate(1, 50_000)
		_ = fr.WriteWindowUpdate(0, 1<<30)
		_ = fr.WritePing(false, [8]byte{1})
		_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
		_ = fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		_ = fr.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		_ = fr.WriteRawFrame(0x42, 0xff, 1, []byte("x"))
	})
	b := start(f, lean.Limits{Linger: 10 * time.Millisecond})
	head := opening()
	f.Fuzz(func(t *testing.T, tail []byte, cut uint8) {
		c, err := net.Dial("tcp", b.addr)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		first := min(int(cut), len(tail))
		_, err = c.Write(append(bytes.Clone(head), tail[:first]...))
		require.NoError(t, err)
		if _, err := c.Write(tail[first:]); err == nil {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		var late net.Error
		_, err = io.Copy(io.Discard, c)
		if err != nil {
			require.NotErrorAs(t, err, &late, "the connection hangs")
		}
	})
}

// opening is a preface, settings and the headers of stream 1.
func opening() []byte {
	var b, block bytes.Buffer
	b.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteSettings()
	enc := hpack.NewEncoder(&block)
	for _, h := range fields() {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	return b.Bytes()
}
