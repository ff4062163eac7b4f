// SPDX-License-Identifier: Apache-2.0

package lean

import (
	"bytes"
	"io"

	"golang.org/x/net/http2"
)

const (
	maxFrame    = 16 << 10
	frameHeader = 9
	// inputSize takes the largest frame whole.
	inputSize = frameHeader + maxFrame
	// outputSize is how much is written at once at most; it takes the largest frame.
	outputSize = 2 * inputSize
	// plainRead is what a connection that is no bare socket keeps to wait with.
	plainRead = 512
)

// input is a buffer that a connection has only while there is something in it.
type input struct {
	buf    [inputSize]byte
	n      int
	bytes  bytes.Reader
	framer *http2.Framer
}

func newInput() *input {
	in := new(input)
	in.framer = http2.NewFramer(nil, &in.bytes)
	in.framer.SetReuseFrames()
	in.framer.SetMaxReadFrameSize(maxFrame)
	// Order is a matter of the connection, and a framer is used by many.
	in.framer.AllowIllegalReads = true
	return in
}

// frame parses one whole frame. It is valid until the next call.
func (in *input) frame(b []byte) (http2.Frame, error) {
	in.bytes.Reset(b)
	return in.framer.ReadFrame()
}

// output is a buffer for one write.
type output struct{ buf [outputSize]byte }

// more waits for bytes and returns them behind those of an unfinished frame. The caller is
// the connection's reader.
func (c *conn) more() (*input, error) {
	if c.raw != nil {
		c.in, c.inErr = nil, nil
		if err := c.raw.Read(c.onReadable); err != nil {
			return nil, err
		}
		in := c.in
		c.in = nil
		return in, c.inErr
	}
	if c.wait == nil {
		c.wait = make([]byte, plainRead)
	}
	n, err := c.nc.Read(c.wait[:min(plainRead, inputSize-len(c.partial))])
	if n == 0 {
		if err == nil {
			err = io.ErrNoProgress
		}
		return nil, err
	}
	in := c.server.input()
	in.n = copy(in.buf[:], c.partial)
	in.n += copy(in.buf[in.n:], c.wait[:n])
	return in, nil
}

func (s *Server) input() *input   { return s.inputs.Get().(*input) }
func (s *Server) output() *output { return s.outputs.Get().(*output) }
