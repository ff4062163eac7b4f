// SPDX-License-Identifier: Apache-2.0

package lean_test

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/policyd/policyd/internal/push/lean"
)

func TestConnection_errors(t *testing.T) {
	b := start(t, lean.Limits{})
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, payload string) func(*wire) {
		return func(w *wire) { _ = w.WriteRawFrame(kind, flags, id, []byte(payload)) }
	}
	setting := func(id http2.SettingID, v uint32) func(*wire) {
		return func(w *wire) { _ = w.WriteSettings(http2.Setting{ID: id, Val: v}) }
	}
	number := func(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }
	cases := map[string]struct {
		do   func(*wire)
		want http2.ErrCode
	}{
		"data of the connection":                            {raw(http2.FrameData, 0, 0, "x"), http2.ErrCodeProtocol},
		"data of a stream that was never opened":            {raw(http2.FrameData, 0, 7, "x"), http2.ErrCodeProtocol},
		"data of a stream that servers open":                {raw(http2.FrameData, 0, 2, "x"), http2.ErrCodeProtocol},
		"padding longer than the frame":                     {raw(http2.FrameData, http2.FlagDataPadded, 1, "\x09x"), http2.ErrCodeProtocol},
		"padded data without room for the length":           {raw(http2.FrameData, http2.FlagDataPadded, 1, ""), http2.ErrCodeFrameSize},
		"a frame larger than allowed":                       {raw(http2.FrameData, 0, 1, strings.Repeat("x", 16<<10+1)), http2.ErrCodeFrameSize},
		"headers of the connection":                         {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, "\x82"), http2.ErrCodeProtocol},
		"headers of an even stream":                         {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 4, "\x82"), http2.ErrCodeProtocol},
		"headers that cannot be decompressed":               {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, "\xff\xff\xff\xff\xff\xff\xff\xff"), http2.ErrCodeCompression},
		"an index that the table does not have":             {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, "\xff\x80\x01"), http2.ErrCodeCompression},
		"headers interrupted by data":                       {func(w *wire) { raw(http2.FrameHeaders, 0, 3, "\x82")(w); raw(http2.FrameData, 0, 1, "x")(w) }, http2.ErrCodeProtocol},
		"headers interrupted by a frame of an unknown type": {func(w *wire) { raw(http2.FrameHeaders, 0, 3, "\x82")(w); raw(0x42, 0, 0, "x")(w) }, http2.ErrCodeProtocol},
		"a continuation of another stream's headers":        {func(w *wire) { raw(http2.FrameHeaders, 0, 3, "\x82")(w); raw(http2.FrameContinuation, 0, 5, "")(w) }, http2.ErrCodeProtocol},
		"a continuation of nothing":                         {raw(http2.FrameContinuation, 0, 1, ""), http2.ErrCodeProtocol},
		"continuations without end": {func(w *wire) {
			raw(http2.FrameHeaders, 0, 3, "\x82")(w)
			for range 100 {
				raw(http2.FrameContinuation, 0, 3, "")(w)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"headers larger than can be kept": {func(w *wire) {
			raw(http2.FrameHeaders, 0, 3, strings.Repeat("\x82", 10<<10))(w)
			raw(http2.FrameContinuation, 0, 3, strings.Repeat("\x82", 10<<10))(w)
		}, http2.ErrCodeEnhanceYourCalm},
		"headers of a stream that has ended": {func(w *wire) {
			_ = w.WriteRSTStream(1, http2.ErrCodeCancel)
			w.open(1)
		}, http2.ErrCodeStreamClosed},
		"a stream below the newest one":             {func(w *wire) { w.open(9); w.open(7) }, http2.ErrCodeStreamClosed},
		"a push promise":                            {raw(http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 1, number(2)+"\x82"), http2.ErrCodeProtocol},
		"a reset of the connection":                 {raw(http2.FrameRSTStream, 0, 0, number(8)), http2.ErrCodeProtocol},
		"a reset of a stream that was never opened": {raw(http2.FrameRSTStream, 0, 7, number(8)), http2.ErrCodeProtocol},
		"a reset of a wrong size":                   {raw(http2.FrameRSTStream, 0, 1, "abc"), http2.ErrCodeFrameSize},
		"settings of a stream":                      {raw(http2.FrameSettings, 0, 1, ""), http2.ErrCodeProtocol},
		"settings of a wrong size":                  {raw(http2.FrameSettings, 0, 0, "abc"), http2.ErrCodeFrameSize},
		"a confirmation of settings that says more": {raw(http2.FrameSettings, http2.FlagSettingsAck, 0, "\x00\x03\x00\x00\x00\x01"), http2.ErrCodeFrameSize},
		"push neither on nor off":                   {setting(http2.SettingEnablePush, 2), http2.ErrCodeProtocol},
		"an initial window that is too large":       {setting(http2.SettingInitialWindowSize, 1<<31), http2.ErrCodeFlowControl},
		"a frame size that is too small":            {setting(http2.SettingMaxFrameSize, 100), http2.ErrCodeProtocol},
		"a frame size that is too large":            {setting(http2.SettingMaxFrameSize, 1<<24), http2.ErrCodeProtocol},
		"an initial window that makes an open stream's overflow": {func(w *wire) {
			_ = w.WriteWindowUpdate(1, 1<<31-1-65535)
			setting(http2.SettingInitialWindowSize, 1<<31-1)(w)
		}, http2.ErrCodeFlowControl},
		"a ping of a stream":                              {raw(http2.FramePing, 0, 1, "12345678"), http2.ErrCodeProtocol},
		"a ping of a wrong size":                          {raw(http2.FramePing, 0, 0, "1234567"), http2.ErrCodeFrameSize},
		"a goaway of a stream":                            {raw(http2.FrameGoAway, 0, 1, "12345678"), http2.ErrCodeProtocol},
		"a window update of a wrong size":                 {raw(http2.FrameWindowUpdate, 0, 0, "123"), http2.ErrCodeFrameSize},
		"a window update of the connection by nothing":    {raw(http2.FrameWindowUpdate, 0, 0, number(0)), http2.ErrCodeProtocol},
		"the connection's window overflows":               {func(w *wire) { _ = w.WriteWindowUpdate(0, 1<<31-1) }, http2.ErrCodeFlowControl},
		"a window update of a stream that was not opened": {func(w *wire) { _ = w.WriteWindowUpdate(7, 1) }, http2.ErrCodeProtocol},
		"pings that come too often": {func(w *wire) {
			for range 10 {
				_ = w.WritePing(false, [8]byte{1})
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"settings again and again": {func(w *wire) {
			for range 200 {
				_ = w.WriteSettings()
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"streams opened and reset again and again": {func(w *wire) {
			for id := uint32(3); id < 400; id += 2 {
				w.open(id)
				_ = w.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"data frames that are empty": {func(w *wire) {
			for range 2000 {
				_ = w.WriteData(1, false, nil)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"window updates by one": {func(w *wire) {
			for range 2000 {
				_ = w.WriteWindowUpdate(0, 1)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"frames of an unknown type without end": {func(w *wire) {
			for range 2000 {
				_ = w.WriteRawFrame(0x42, 0, 0, nil)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"priorities without end": {func(w *wire) {
			for range 2000 {
				_ = w.WritePriority(1, http2.PriorityParam{StreamDep: 0})
			}
		}, http2.ErrCodeEnhanceYourCalm},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := talking(t, b.addr)
			tc.do(w)
			code, _ := w.goAway()
			require.Equal(t, tc.want, code)
			w.closed()
		})
	}
	eventually(t, "nothing is left", func() bool { return goroutines() == 0 })
}

func TestStream_errors_leave_the_connection_alone(t *testing.T) {
	b := start(t, lean.Limits{Streams: 3, Message: 100 << 10})
	cases := map[string]struct {
		do   func(*wire)
		want http2.ErrCode
	}{
		"a window update by nothing": {func(w *wire) {
			w.open(3)
			_ = w.WriteRawFrame(http2.FrameWindowUpdate, 0, 3, []byte{0, 0, 0, 0})
		}, http2.ErrCodeProtocol},
		"a window that overflows": {func(w *wire) { w.open(3); _ = w.WriteWindowUpdate(3, 1<<31-1) }, http2.ErrCodeFlowControl},
		"data after the end": {func(w *wire) {
			w.open(3)
			_ = w.WriteData(3, true, message("wait"))
			_ = w.WriteData(3, false, message("echo late"))
		}, http2.ErrCodeStreamClosed},
		"headers after the end": {func(w *wire) {
			w.open(3)
			_ = w.WriteData(3, true, message("wait"))
			w.open(3)
		}, http2.ErrCodeStreamClosed},
		"headers in the middle":           {func(w *wire) { w.open(3); w.open(3) }, http2.ErrCodeProtocol},
		"a header in upper case":          {func(w *wire) { w.open(3, "X-Upper", "1") }, http2.ErrCodeProtocol},
		"a header of the connection":      {func(w *wire) { w.open(3, "connection", "close") }, http2.ErrCodeProtocol},
		"a te other than trailers":        {func(w *wire) { w.open(3, "te", "gzip") }, http2.ErrCodeProtocol},
		"a line break in a header":        {func(w *wire) { w.open(3, "x", "a\nb") }, http2.ErrCodeProtocol},
		"an empty path":                   {func(w *wire) { w.open(3, ":path", "") }, http2.ErrCodeProtocol},
		"an unknown pseudo header":        {func(w *wire) { w.write(3, append([][2]string{{":unknown", "1"}}, fields()...)) }, http2.ErrCodeProtocol},
		"a pseudo header that comes late": {func(w *wire) { w.write(3, append([][2]string{{"x", "1"}}, fields()...)) }, http2.ErrCodeProtocol},
		"a pseudo header twice":           {func(w *wire) { w.write(3, append([][2]string{{":path", "/x"}}, fields()...)) }, http2.ErrCodeProtocol},
		"more streams than allowed":       {func(w *wire) { w.open(3); w.open(5); w.open(7) }, http2.ErrCodeRefusedStream},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := talking(t, b.addr)
			tc.do(w)
			id := uint32(3)
			if tc.want == http2.ErrCodeRefusedStream {
				id = 7
			}
			require.Equal(t, tc.want, w.reset(id))
			w.alive(1)
		})
	}
}

func (w *wire) write(id uint32, f [][2]string) {
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(f), EndHeaders: true})
}

func TestCalls_that_are_answered_at_once(t *testing.T) {
	b := start(t, lean.Limits{Message: 1000})
	cases := map[string]struct {
		change           []string
		say              []byte
		code, httpStatus string
	}{
		"not a POST":                        {change: []string{":method", "PUT"}, code: "13", httpStatus: "405"},
		"no content-type of gRPC":           {change: []string{"content-type", "text/plain"}, code: "3", httpStatus: "415"},
		"a codec that nobody has":           {change: []string{"content-type", "application/grpc+json"}, code: "3", httpStatus: "415"},
		"a timeout that is none":            {change: []string{"grpc-timeout", "soon"}, code: "13", httpStatus: "400"},
		"a timeout of too many digits":      {change: []string{"grpc-timeout", "123456789S"}, code: "13", httpStatus: "400"},
		"headers that are too large":        {change: []string{"x", strings.Repeat("x", 12<<10), "y", strings.Repeat("y", 6<<10)}, code: "8", httpStatus: "431"},
		"a deadline that is over":           {change: []string{"grpc-timeout", "1n"}, code: "4", httpStatus: "200"},
		"a message that is compressed":      {say: []byte("\x01\x00\x00\x00\x01x"), code: "12", httpStatus: "200"},
		"a message of an unknown form":      {say: []byte("\x02\x00\x00\x00\x01x"), code: "13", httpStatus: "200"},
		"a message that is too large":       {say: []byte("\x00\x00\x00\x04\x00"), code: "8", httpStatus: "200"},
		"a status with a text and details":  {say: message("fail 5"), code: "5", httpStatus: "200"},
		"a handler that panics":             {say: message("panic"), code: "13", httpStatus: "200"},
		"an end from outside":               {say: message("end"), code: "10", httpStatus: "200"},
		"a content-type with the codec":     {change: []string{"content-type", "application/grpc+proto"}, say: message("fail 6"), code: "6", httpStatus: "200"},
		"a content-type with its parameter": {change: []string{"content-type", "application/grpc;v=1"}, say: message("fail 6"), code: "6", httpStatus: "200"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := greet(t, b.addr)
			if len(tc.change) == 4 {
				// Large headers take two frames.
				block := w.encode(fields(tc.change...))
				require.NoError(t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:8<<10]}))
				require.NoError(t, w.WriteContinuation(1, true, block[8<<10:]))
			} else {
				w.open(1, tc.change...)
			}
			if tc.say != nil {
				require.NoError(t, w.WriteData(1, false, tc.say))
			}
			code, _, httpStatus := w.status(1)
			require.Equal(t, tc.code, code)
			require.Equal(t, tc.httpStatus, httpStatus)
			require.Equal(t, http2.ErrCodeNo, w.reset(1), "the client need not send the rest")
			w.open(3)
			w.alive(3)
		})
	}
	require.Contains(t, b.log.String(), "on purpose")
}

func TestWhat_is_no_HTTP2_is_closed(t *testing.T) {
	b := start(t, lean.Limits{Preface: 50 * time.Millisecond})
	for name, first := range map[string]string{
		"another protocol":       "GET / HTTP/1.1\r\n\r\n",
		"half a preface":         http2.ClientPreface[:10],
		"a preface with a fault": strings.Replace(http2.ClientPreface, "SM", "XX", 1),
		"nothing":                "",
	} {
		t.Run(name, func(t *testing.T) {
			w := knock(t, b.addr)
			_, err := io.WriteString(w.Conn, first)
			require.NoError(t, err)
			_, err = io.ReadAll(w.Conn)
			if err != nil {
				require.ErrorContains(t, err, "reset")
			}
		})
	}
	eventually(t, "nothing is left", func() bool { return goroutines() == 0 })
}

func TestFlow_control_of_what_is_sent(t *testing.T) {
	b := start(t, lean.Limits{})
	data := func(w *wire) int {
		f := w.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
		return int(f.Header().Length)
	}
	t.Run("a window of one byte at a time", func(t *testing.T) {
		w := greet(t, b.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		w.open(1)
		w.say(1, "echo ab")
		for range 7 {
			require.NoError(t, w.WriteWindowUpdate(1, 1))
			require.Equal(t, 1, data(w))
		}
	})
	t.Run("the initial window moves those of open streams, also below zero", func(t *testing.T) {
		w := talking(t, b.addr)
		require.NoError(t, w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) // now at -10
		w.say(1, "echo abcdef")                                                                        // 11 bytes
		require.NoError(t, w.WriteWindowUpdate(1, 10))                                                 // at 0
		require.NoError(t, w.WritePing(false, [8]byte{}))
		f := w.until(func(f http2.Frame) bool {
			return f.Header().Type == http2.FramePing || f.Header().Type == http2.FrameData
		})
		require.Equal(t, http2.FramePing, f.Header().Type, "nothing may be sent")
		require.NoError(t, w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 11}))
		require.Equal(t, 11, data(w))
	})
	t.Run("the connection's window holds back all streams", func(t *testing.T) {
		w := greet(t, b.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		w.open(1)
		w.say(1, "big 100000")
		got := 0
		for got < 65535 {
			got += data(w)
		}
		require.Equal(t, 65535, got)
		require.NoError(t, w.WriteWindowUpdate(0, 1000))
		require.Equal(t, 1000, data(w))
	})
	t.Run("the status waits behind the data", func(t *testing.T) {
		w := greet(t, b.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		w.open(1)
		w.say(1, "echo x")
		w.say(1, "fail 7")
		require.NoError(t, w.WriteWindowUpdate(1, 100))
		require.Equal(t, "x", w.hear(1))
		code, _, _ := w.status(1)
		require.Equal(t, "7", code)
	})
	t.Run("the status does not wait for ever", func(t *testing.T) {
		quick := start(t, lean.Limits{Linger: 20 * time.Millisecond})
		w := greet(t, quick.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		w.open(1)
		w.say(1, "echo x")
		w.say(1, "fail 7")
		require.Equal(t, http2.ErrCodeCancel, w.reset(1))
	})
	t.Run("frames are no larger than the client takes", func(t *testing.T) {
		w := greet(t, b.addr, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
		w.open(1)
		w.say(1, "big 60000")
		for got := 0; got < 60005; {
			n := data(w)
			require.LessOrEqual(t, n, 16<<10)
			got += n
		}
	})
}

func TestFlow_control_of_what_comes(t *testing.T) {
	b := start(t, lean.Limits{})
	t.Run("a message larger than the window comes through", func(t *testing.T) {
		c := b.call(t)
		require.Equal(t, "500000", c.ask(t, "size"+strings.Repeat(" ", 500_000-4)))
	})
	t.Run("a stream whose handler does not listen gets its window and no more", func(t *testing.T) {
		w := talking(t, b.addr)
		w.open(3)
		w.say(3, "wait")
		sent := len(message("wait"))
		piece := message(strings.Repeat("x", 10_000))
		for sent+len(piece) <= 65535 {
			require.NoError(t, w.WriteData(3, false, piece))
			sent += len(piece)
		}
		w.alive(1)
		require.NoError(t, w.WriteData(3, false, piece))
		require.Equal(t, http2.ErrCodeFlowControl, w.reset(3))
		w.alive(1)
	})
	t.Run("padding counts and comes back", func(t *testing.T) {
		w := talking(t, b.addr)
		for range 2000 {
			require.NoError(t, w.WriteDataPadded(1, false, message("echo x"), make([]byte, 200)))
			require.Equal(t, "x", w.hear(1))
		}
	})
}

func TestUnknown_frames_and_settings_are_skipped(t *testing.T) {
	b := start(t, lean.Limits{})
	w := talking(t, b.addr, http2.Setting{ID: 0x77, Val: 1})
	require.NoError(t, w.WriteRawFrame(0x42, 0xff, 1, []byte("anything")))
	require.NoError(t, w.WritePriority(9, http2.PriorityParam{StreamDep: 1}))
	require.NoError(t, w.WriteGoAway(0, http2.ErrCodeNo, nil))
	require.NoError(t, w.WriteWindowUpdate(1, 1))
	w.alive(1)
	// Late frames of a stream that has ended are none of its fault.
	w.say(1, "fail 1")
	_, _, _ = w.status(1)
	require.NoError(t, w.WriteData(1, false, message("echo late")))
	require.NoError(t, w.WriteWindowUpdate(1, 1))
	require.NoError(t, w.WriteRSTStream(1, http2.ErrCodeCancel))
	w.open(3)
	w.alive(3)
}

func TestFrames_may_come_in_any_pieces(t *testing.T) {
	b := start(t, lean.Limits{})
	w := knock(t, b.addr)
	var all strings.Builder
	all.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&all, nil)
	_ = fr.WriteSettings()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.encode(fields()), EndHeaders: true, PadLength: 9})
	text := message("echo piece by piece")
	_ = fr.WriteData(1, false, text[:3])
	_ = fr.WriteData(1, false, text[3:9])
	_ = fr.WriteData(1, false, text[9:])
	for _, c := range []byte(all.String()) {
		_, err := w.Conn.Write([]byte{c})
		require.NoError(t, err)
	}
	require.Equal(t, "piece by piece", w.hear(1))
}
