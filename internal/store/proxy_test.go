// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands before a port and can be closed in several ways.
type proxy struct {
	listener net.Listener
	target   string
	byPeer   bool // connections say which member they come from

	mu     sync.Mutex
	dials  int
	mode   proxyMode
	banned map[string]bool // members whose connections are refused
	conns  map[*proxied]bool
	done   sync.WaitGroup
}

type proxyMode int

const (
	pass    proxyMode = iota
	refuse            // connections end at once
	swallow           // connections stay, and nothing comes through
)

type proxied struct {
	from     string
	client   net.Conn
	upstream net.Conn
}

func newProxy(t testing.TB, target string, byPeer bool) *proxy {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, target: target, byPeer: byPeer, banned: make(map[string]bool), conns: make(map[*proxied]bool)}
	p.done.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.set(refuse)
		p.done.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// set changes the mode; what is open is cut unless it may pass on or hang.
func (p *proxy) set(mode proxyMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.mode
	p.mode = mode
	if mode == refuse || was == swallow {
		for c := range p.conns {
			c.close()
		}
	}
}

func (p *proxy) now() proxyMode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// ban refuses the connections of a member, or accepts them again.
func (p *proxy) ban(member string, banned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.banned[member] = banned
	for c := range p.conns {
		if banned && c.from == member {
			c.close()
		}
	}
}

// count returns the connections tried since the last call.
func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.dials
	p.dials = 0
	return n
}

func (c *proxied) close() {
	c.client.Close()
	if c.upstream != nil {
		c.upstream.Close()
	}
}

func (p *proxy) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.dials++
		c := &proxied{client: conn}
		if p.mode == refuse {
			conn.Close()
		} else {
			p.conns[c] = true
			p.done.Go(func() { p.carry(c) })
		}
		p.mu.Unlock()
	}
}

func (p *proxy) carry(c *proxied) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.close()
		delete(p.conns, c)
	}()
	reader := bufio.NewReaderSize(c.client, 1<<16)
	var from string
	if p.byPeer {
		from = sender(reader)
	}
	var dialer net.Dialer
	upstream, err := dialer.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.mu.Lock()
	c.from, c.upstream = from, upstream
	stop := p.mode == refuse || p.banned[from]
	p.mu.Unlock()
	if stop {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(c, upstream, reader) })
	both.Go(func() { p.copy(c, c.client, upstream) })
	both.Wait()
}

// copy ends with either side, or drops what comes while the proxy swallows.
func (p *proxy) copy(c *proxied, to io.Writer, from io.Reader) {
	defer c.client.Close()
	defer c.upstream.Close()
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		drop := p.mode == swallow
		p.mu.Unlock()
		if n > 0 && !drop {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sender returns the member that sent the first request of a connection between members.
func sender(r *bufio.Reader) string {
	for size := 1; ; size++ {
		head, err := r.Peek(size)
		if i := bytes.Index(head, []byte("X-Server-From: ")); i >= 0 {
			if id, _, ok := bytes.Cut(head[i+len("X-Server-From: "):], []byte("\r\n")); ok {
				return string(id)
			}
		}
		if err != nil || bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			return ""
		}
		size = max(size, r.Buffered()-1)
	}
}
