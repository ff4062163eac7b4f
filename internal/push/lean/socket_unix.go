// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lean

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// rawOf returns the socket of a TCP connection: with it a read waits without a buffer, and a
// write that would block does not. Anything else, such as TLS, does without.
func rawOf(nc net.Conn) syscall.RawConn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readable takes what the socket has; false: nothing yet.
func (c *conn) readable(fd uintptr) bool {
	in := c.server.input()
	in.n = copy(in.buf[:], c.partial)
	for {
		n, err := syscall.Read(int(fd), in.buf[in.n:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			c.server.inputs.Put(in)
			return false
		case err == nil && n == 0:
			err = io.EOF
		}
		if c.inErr = err; err != nil {
			c.server.inputs.Put(in)
			return true
		}
		in.n += n
		c.in = in
		return true
	}
}

// write gives the socket as much of b as it takes without waiting. Guarded by mu.
func (c *conn) write(b []byte) (n int, err error) {
	if c.raw == nil {
		return 0, nil
	}
	c.out = b
	if err := c.raw.Write(c.onWritable); err != nil {
		return 0, err
	}
	n, err = c.outN, c.outErr
	c.out, c.outN, c.outErr = nil, 0, nil
	return n, err
}

func (c *conn) writable(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), c.out)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return true
		}
		if c.outErr = err; err == nil {
			c.outN = n
		}
		return true
	}
}
