// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	maxHeaderList    = 16 << 10
	maxContinuations = 32
	defaultTable     = 4096
	// maxTrailer bounds the headers at the end of a stream; they fit into one frame.
	maxTrailer = 8 << 10
	maxMessage = 2 << 10 // of grpc-message
)

// block is headers that come in several frames.
type block struct {
	stream   uint32
	end      bool // of the client's side
	fragment []byte
	frames   int
}

func (c *conn) onHeaders(f *http2.HeadersFrame) *fault {
	if f.StreamID%2 == 0 {
		return protocol("clients open streams of odd numbers")
	}
	b := block{stream: f.StreamID, end: f.StreamEnded(), fragment: f.HeaderBlockFragment()}
	if f.HeadersEnded() {
		return c.onBlock(&b)
	}
	b.fragment = slices.Clone(b.fragment)
	c.headers.block = &b
	return nil
}

func (c *conn) onContinuation(f *http2.ContinuationFrame) *fault {
	b := c.headers.block
	switch {
	case b == nil || b.stream != f.StreamID:
		return protocol("continuation of nothing")
	case len(b.fragment)+len(f.HeaderBlockFragment()) > maxHeaderList, b.frames >= maxContinuations:
		// The client's later headers could not be read without these.
		return &fault{http2.ErrCodeEnhanceYourCalm, "headers too large"}
	}
	b.frames++
	b.fragment = append(b.fragment, f.HeaderBlockFragment()...)
	if !f.HeadersEnded() {
		return nil
	}
	c.headers.block = nil
	return c.onBlock(b)
}

// onBlock takes in all headers of a stream, or trailers. They are read in any case, as they
// may change how the next ones are to be read.
func (c *conn) onBlock(b *block) *fault {
	r, err := c.headers.decode(b.fragment)
	if err != nil {
		return &fault{http2.ErrCodeCompression, "headers cannot be read"}
	}
	if s := c.find(b.stream); s != nil {
		switch {
		case s.remoteClosed:
			return c.reset(s.id, http2.ErrCodeStreamClosed)
		case !b.end || r.malformed != "" || r.pseudo:
			return c.reset(s.id, http2.ErrCodeProtocol)
		}
		s.closeRemote()
		return nil
	}
	if b.stream <= c.maxID {
		return &fault{http2.ErrCodeStreamClosed, "headers of a stream that has ended"}
	}
	c.maxID = b.stream
	switch {
	case c.leaving:
		return nil // it was told that this one is not looked at
	case r.malformed != "":
		return c.reset(b.stream, http2.ErrCodeProtocol)
	// A handler may outlive its stream for a moment, but not those of stream after stream.
	case len(c.streams) >= c.server.limits.Streams, c.handlers >= 2*c.server.limits.Streams:
		return c.reset(b.stream, http2.ErrCodeRefusedStream)
	}
	handler, known := c.server.methods[r.path]
	if !known && r.size <= maxHeaderList {
		// The call is for the other server, and safe to make again: on a new connection.
		c.goAway(fault{http2.ErrCodeNo, "other calls need another connection"})
		c.part()
		return nil
	}
	c.lastID = b.stream
	if code, st := r.refuse(); st != nil {
		c.control = appendRefusal(c.control, b, code, st)
		return nil
	}
	s := newStream(c, b.stream, r.path, handler)
	c.streams = append(c.streams, s)
	c.opened = append(c.opened, s)
	c.handlers++
	s.expire(r.timeout)
	if b.end {
		s.closeRemote()
	}
	return nil
}

// request is what the headers of a call say.
type request struct {
	size        uint32
	malformed   string
	pseudo      bool // there were pseudo headers
	regular     bool // and others
	method      string
	scheme      string
	path        string
	contentType string
	timeout     string
}

func (h *headerState) decode(fragment []byte) (*request, error) {
	d := h.decoder
	if d == nil {
		size := uint32(0)
		if !h.acked {
			size = defaultTable
		}
		d = hpack.NewDecoder(size, nil)
		d.SetMaxStringLength(maxHeaderList)
		if !h.acked {
			h.decoder = d
		}
	}
	var r request
	d.SetEmitFunc(r.add)
	defer d.SetEmitFunc(func(hpack.HeaderField) {})
	if _, err := d.Write(fragment); err != nil {
		return nil, err
	}
	return &r, d.Close()
}

// add takes one header. What no stream needs is dropped.
func (r *request) add(f hpack.HeaderField) {
	r.size += f.Size()
	if r.size > maxHeaderList {
		return
	}
	if !f.IsPseudo() {
		r.regular = true
		switch {
		case f.Name == "" || strings.ContainsFunc(f.Name, func(c rune) bool { return c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z' }):
			r.malformed = "name of a header"
		case strings.ContainsAny(f.Value, "\x00\r\n"):
			r.malformed = "value of a header"
		case f.Name == "connection", f.Name == "proxy-connection", f.Name == "keep-alive",
			f.Name == "transfer-encoding", f.Name == "upgrade", f.Name == "te" && f.Value != "trailers":
			r.malformed = "header of a connection"
		case f.Name == "content-type":
			r.contentType = f.Value
		case f.Name == "grpc-timeout":
			r.timeout = f.Value
		}
		return
	}
	r.pseudo = true
	var to *string
	switch f.Name {
	case ":method":
		to = &r.method
	case ":scheme":
		to = &r.scheme
	case ":path":
		to = &r.path
	case ":authority":
		return
	}
	if to == nil || *to != "" || f.Value == "" || r.regular {
		r.malformed = "pseudo header"
		return
	}
	*to = f.Value
}

// refuse says why a call is answered at once, as grpc-go's server does.
func (r *request) refuse() (httpStatus int, st *status.Status) {
	switch {
	case r.size > maxHeaderList:
		return http.StatusRequestHeaderFieldsTooLarge, status.New(codes.ResourceExhausted, "headers too large")
	case r.method != http.MethodPost:
		return http.StatusMethodNotAllowed, status.Newf(codes.Internal, "method %q is not POST", r.method)
	case !isGRPC(r.contentType):
		return http.StatusUnsupportedMediaType, status.Newf(codes.InvalidArgument, "content-type %q is not application/grpc", clip(r.contentType))
	}
	if _, err := parseTimeout(r.timeout); err != nil {
		return http.StatusBadRequest, status.Newf(codes.Internal, "grpc-timeout: %v", err)
	}
	return 0, nil
}

func clip(s string) string { return s[:min(len(s), 64)] }

func isGRPC(contentType string) bool {
	const base = "application/grpc"
	rest, ok := strings.CutPrefix(strings.ToLower(contentType), base)
	return ok && (rest == "" || rest == "+proto" || rest[0] == ';' || strings.HasPrefix(rest, "+proto;"))
}

// parseTimeout returns 0 for none.
func parseTimeout(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	const maxDigits = 8
	digits, unit := s[:len(s)-1], s[len(s)-1]
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || len(digits) > maxDigits {
		return 0, fmt.Errorf("%q is no number of at most %d digits and a unit", clip(s), maxDigits)
	}
	units := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}
	of, ok := units[unit]
	if !ok {
		return 0, fmt.Errorf("%q has no unit", clip(s))
	}
	const most = time.Duration(1<<63 - 1)
	if n > uint64(most/of) {
		return most, nil
	}
	return max(time.Duration(n)*of, 1), nil
}

// headerBlock encodes headers without a memory of those before. It always says that there is
// none, as a client that allows less than the default wants to hear it.
type headerBlock struct {
	buf  bytes.Buffer
	enc  *hpack.Encoder
	list uint32
}

func newHeaderBlock() *headerBlock {
	h := &headerBlock{}
	h.enc = hpack.NewEncoder(&h.buf)
	h.enc.SetMaxDynamicTableSize(0)
	return h
}

func (h *headerBlock) add(name, value string) {
	f := hpack.HeaderField{Name: name, Value: value}
	h.list += f.Size()
	_ = h.enc.WriteField(f) // a buffer takes everything
}

func (h *headerBlock) addAll(md metadata.MD) {
	for name, values := range md {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "grpc-") || strings.HasPrefix(name, ":") || name == "content-type" {
			continue // gRPC's own
		}
		if h.list > maxTrailer {
			return // a block is one frame
		}
		for _, v := range values {
			if strings.HasSuffix(name, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			h.add(name, v)
		}
	}
}

func (h *headerBlock) start(httpStatus int) {
	h.add(":status", strconv.Itoa(httpStatus))
	h.add("content-type", "application/grpc")
}

// end adds the status: what does not fit is left out, details first.
func (h *headerBlock) end(st *status.Status, limit uint32) {
	h.add("grpc-status", strconv.Itoa(int(st.Code())))
	limit = min(limit, maxTrailer)
	fits := func(name, value string) bool {
		return h.list+hpack.HeaderField{Name: name, Value: value}.Size() <= limit
	}
	text := st.Message()
	text = encodeMessage(strings.ToValidUTF8(text[:min(len(text), maxMessage)], ""))
	if text != "" && fits("grpc-message", text) {
		h.add("grpc-message", text)
	}
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		if raw, err := proto.Marshal(p); err == nil {
			if v := base64.RawStdEncoding.EncodeToString(raw); fits("grpc-status-details-bin", v) {
				h.add("grpc-status-details-bin", v)
			}
		}
	}
	if st.Code() == codes.Unimplemented {
		h.add("grpc-accept-encoding", "identity")
	}
}

// encodeMessage escapes what a header cannot hold.
func encodeMessage(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func appendHeaders(b []byte, stream uint32, fragment []byte, end bool) []byte {
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
	}
	b = appendHeader(b, len(fragment), http2.FrameHeaders, flags, stream)
	return append(b, fragment...)
}

// appendRefusal answers a call at once.
func appendRefusal(b []byte, of *block, httpStatus int, st *status.Status) []byte {
	h := newHeaderBlock()
	h.start(httpStatus)
	h.end(st, maxTrailer)
	b = appendHeaders(b, of.stream, h.buf.Bytes(), true)
	if !of.end {
		b = appendReset(b, of.stream, http2.ErrCodeNo)
	}
	return b
}

// trailers returns what ends the stream. Guarded by mu.
func (s *stream) trailers(st *status.Status) []byte {
	h := newHeaderBlock()
	if !s.headed {
		h.start(http.StatusOK)
		h.addAll(s.header)
	}
	h.addAll(s.trailer)
	h.end(st, s.conn.peer.headerList)
	return h.buf.Bytes()
}
