// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"time"
)

// condition is what a link does with what passes over it.
type condition int

const (
	passing condition = iota
	// silent: nothing passes and nothing is lost, as with a partition that TCP outlives.
	silent
	// refusing: connections end at once, as with a process or a host that is gone.
	refusing
	// crawling: the reader of the answers takes a few bytes at a time.
	crawling
)

// link is a TCP proxy before one port: one direction of talk between two processes.
type link struct {
	name     string
	listener net.Listener
	target   string
	byPeer   bool // connections name the etcd member that they come from

	mu      sync.Mutex
	now     condition
	peers   map[string]condition // of connections from a member, on top of now
	changed chan struct{}        // closed and replaced when a condition changes
	conns   map[*carried]bool
	done    sync.WaitGroup
}

// carried is one connection through a link.
type carried struct {
	from             string
	client, upstream net.Conn
	closed           chan struct{}
	closeOnce        sync.Once
	// cutAfter is how many bytes of answers still pass before the connection breaks in the
	// middle of a frame; negative: no end. Guarded by link.mu.
	cutAfter int
}

func (c *carried) close() {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.client.Close()
		if c.upstream != nil {
			c.upstream.Close()
		}
	})
}

// newLink stands before target until its close.
func newLink(name, listen, target string, byPeer bool) (*link, error) {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	l := &link{
		name: name, listener: listener, target: target, byPeer: byPeer,
		peers: map[string]condition{}, changed: make(chan struct{}), conns: map[*carried]bool{},
	}
	l.done.Go(l.serve)
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) close() {
	l.listener.Close()
	l.set(refusing)
	l.done.Wait()
}

// restore ends every fault of the link.
func (l *link) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = passing
	clear(l.peers)
	for c := range l.conns {
		c.cutAfter = -1
	}
	l.apply()
}

// set changes the condition of the whole link.
func (l *link) set(c condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = c
	l.apply()
}

// setPeer changes the condition for one member.
func (l *link) setPeer(member string, c condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers[member] = c
	l.apply()
}

func (l *link) apply() {
	close(l.changed)
	l.changed = make(chan struct{})
	for c := range l.conns {
		if l.of(c) == refusing {
			c.close()
		}
	}
}

// of is the condition of a connection; mu is held.
func (l *link) of(c *carried) condition { return max(l.now, l.peers[c.from]) }

// cut breaks every open connection after some more bytes of answers.
func (l *link) cut(after int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.cutAfter = after
	}
}

func (l *link) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		c := &carried{client: conn, closed: make(chan struct{}), cutAfter: -1}
		l.mu.Lock()
		l.conns[c] = true
		l.mu.Unlock()
		l.done.Go(func() { l.carry(c) })
	}
}

// gate waits until bytes may pass and says how.
func (l *link) gate(c *carried) (condition, bool) {
	for {
		l.mu.Lock()
		now, changed := l.of(c), l.changed
		l.mu.Unlock()
		switch now {
		case refusing:
			return now, false
		case silent:
			select {
			case <-changed:
			case <-c.closed:
				return now, false
			}
		default:
			return now, true
		}
	}
}

func (l *link) carry(c *carried) {
	defer func() {
		c.close()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	reader := bufio.NewReaderSize(c.client, 1<<14)
	if l.byPeer {
		from := sender(reader)
		l.mu.Lock()
		c.from = from
		l.mu.Unlock()
	}
	if _, ok := l.gate(c); !ok {
		return
	}
	upstream, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	l.mu.Lock()
	c.upstream = upstream
	l.mu.Unlock()
	select {
	case <-c.closed:
		upstream.Close()
		return
	default:
	}
	var both sync.WaitGroup
	both.Go(func() { l.copy(c, upstream, reader, false) })
	both.Go(func() { l.copy(c, c.client, upstream, true) })
	both.Wait()
}

const crawl = 256 // bytes at once while a link crawls

func (l *link) copy(c *carried, to io.Writer, from io.Reader, answers bool) {
	defer c.close()
	buffer := make([]byte, 1<<14)
	for {
		n, err := from.Read(buffer)
		for rest := buffer[:n]; len(rest) > 0; {
			now, ok := l.gate(c)
			if !ok {
				return
			}
			part := rest
			if now == crawling && answers {
				part = rest[:min(crawl, len(rest))]
				time.Sleep(20 * time.Millisecond)
			}
			part, last := l.allowed(c, part, answers)
			if _, err := to.Write(part); err != nil || last {
				return
			}
			rest = rest[len(part):]
		}
		if err != nil {
			return
		}
	}
}

// allowed shortens part to where the connection shall break.
func (l *link) allowed(c *carried, part []byte, answers bool) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !answers || c.cutAfter < 0 {
		return part, false
	}
	if len(part) < c.cutAfter {
		c.cutAfter -= len(part)
		return part, false
	}
	return part[:c.cutAfter], true
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
