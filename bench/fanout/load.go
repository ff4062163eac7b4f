// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slot says what arrived last at one instance.
type slot struct {
	received, applied     atomic.Int64 // when
	receivedOf, appliedOf atomic.Int64 // which commit, written after when
}

func (s *slot) got(of stamp) {
	s.received.Store(time.Now().UnixNano())
	s.receivedOf.Store(int64(of))
}

func (s *slot) inForce(of stamp) {
	s.applied.Store(time.Now().UnixNano())
	s.appliedOf.Store(int64(of))
}

// arrivals says how long a change took to each stream, in nanoseconds.
type arrivals struct {
	Received, Applied []int64
}

// loader is all instances.
type loader struct {
	system    system
	addr      string
	slots     []slot
	instances []*instance
}

// load opens the streams and then answers for each change how long it took to each of them.
func load(name, addr string, o options) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	l := &loader{system: s, addr: addr, slots: make([]slot, o.Streams)}
	if s.speak == nil {
		err = l.connectRaw(len(encoded(document(0, o.Size))))
	} else {
		for id := range l.slots {
			l.instances = append(l.instances, newInstance(l, id))
		}
		err = l.together(64, func(in *instance) error { return in.join(&rejoin{}) })
	}
	if err != nil {
		return err
	}
	answer(len(l.slots))
	return answerAll(l.do)
}

// together calls f for all instances, so many at a time.
func (l *loader) together(width int, f func(*instance) error) error {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	places := make(chan struct{}, width)
	for _, in := range l.instances {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := f(in); err != nil {
				err = fmt.Errorf("instance %d: %w", in.id, err)
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *loader) do(words []string) (any, error) {
	switch words[0] {
	case "arrivals":
		of, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return nil, err
		}
		return l.arrivals(stamp(of))
	case "rejoin":
		return l.rejoin(slices.Contains(words, "jitter"), slices.Contains(words, "resume"))
	}
	return nil, fmt.Errorf("unknown command")
}

// patience is how long a change may take.
const patience = time.Minute

// arrivals waits until a commit is everywhere.
func (l *loader) arrivals(of stamp) (*arrivals, error) {
	deadline := time.Now().Add(patience)
	for i := range l.slots {
		s := &l.slots[i]
		for s.receivedOf.Load() != int64(of) || l.system.engine && s.appliedOf.Load() != int64(of) {
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("stream %d did not get a change within %v", i, patience)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	a := &arrivals{}
	for i := range l.slots {
		s := &l.slots[i]
		a.Received = append(a.Received, s.received.Load()-int64(of))
		if l.system.engine {
			a.Applied = append(a.Applied, s.applied.Load()-int64(of))
		}
	}
	return a, nil
}

// portsPerAddress stays far below the 28,000 that there are.
const portsPerAddress = 4000

// dial takes another source address for every few thousand connections. Its port is chosen
// on connecting, when ports that other servers' connections used count as free.
func dial(addr string, id int) (net.Conn, error) {
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+id/portsPerAddress))},
		KeepAlive: -1,
		Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			})
			return errors.Join(err, failed)
		},
	}
	return d.Dial("tcp", addr)
}

func (l *loader) connectRaw(size int) error {
	for i := range l.slots {
		c, err := dial(l.addr, i)
		if err != nil {
			return err
		}
		var served [1]byte
		if _, err := io.ReadFull(c, served[:]); err != nil {
			return err
		}
		go readRaw(c, size, &l.slots[i])
	}
	return nil
}

// came is what the return of all instances was like.
type came struct {
	Took    time.Duration // until the last one was up to date
	Spread  time.Duration // the longest that an instance waited of its own will
	Refused int64
	Bytes   int64 // that the server sent, all in all
}

// rejoin cuts all connections at once and lets the instances come back.
func (l *loader) rejoin(jitter, resume bool) (*came, error) {
	for _, in := range l.instances {
		in.cut()
	}
	r := &rejoin{jitter: jitter, resume: resume}
	start := time.Now()
	if err := l.together(len(l.instances), func(in *instance) error { return in.join(r) }); err != nil {
		return nil, err
	}
	c := &came{Took: time.Since(start), Spread: time.Duration(r.spread.Load()), Refused: r.refused.Load()}
	for _, in := range l.instances {
		c.Bytes += in.greeting
	}
	return c, nil
}
