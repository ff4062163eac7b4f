// SPDX-License-Identifier: Apache-2.0

// Package load is the instances of the benchmark: one client for all systems, and one place
// where arrivals are timed.
package load

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/policyd/policyd/bench/fanout/payload"

	"golang.org/x/sys/unix"
)

// slot says what arrived last at one instance.
type slot struct {
	received, applied     atomic.Int64 // when
	receivedOf, appliedOf atomic.Int64 // which commit, written after when
}

func (s *slot) got(of payload.Stamp) {
	s.received.Store(time.Now().UnixNano())
	s.receivedOf.Store(int64(of))
}

func (s *slot) inForce(of payload.Stamp) {
	s.applied.Store(time.Now().UnixNano())
	s.appliedOf.Store(int64(of))
}

// Arrivals says how long a change took to each stream, in nanoseconds.
type Arrivals struct {
	Of                payload.Stamp
	Received, Applied []int64
}

// Kind is how instances behave.
type Kind struct {
	// Dialect is what they say; nil: bytes without a protocol.
	Dialect *Dialect
	// Engine: they put each document in force.
	Engine bool
	// Prompt: policyd's instances confirm at once, whatever time they are given.
	Prompt bool
}

// Loader is all instances.
type Loader struct {
	kind      Kind
	addr      string
	slots     []slot
	instances []*instance
}

// Connect opens n streams, each on a connection of its own, and returns when all are up to
// date. Without a dialect every change has size bytes.
func Connect(kind Kind, addr string, n, size int) (*Loader, error) {
	l := &Loader{kind: kind, addr: addr, slots: make([]slot, n)}
	if kind.Dialect == nil {
		return l, l.connectRaw(size)
	}
	for id := range l.slots {
		l.instances = append(l.instances, newInstance(l, id))
	}
	return l, l.together(64, func(in *instance) error { return in.join(&rejoin{}) })
}

// together calls f for all instances, so many at a time.
func (l *Loader) together(width int, f func(*instance) error) error {
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

// patience is how long a change may take.
const patience = time.Minute

// Arrivals waits until a commit is everywhere.
func (l *Loader) Arrivals(of payload.Stamp) (*Arrivals, error) {
	deadline := time.Now().Add(patience)
	for i := range l.slots {
		s := &l.slots[i]
		for s.receivedOf.Load() != int64(of) || l.kind.Engine && s.appliedOf.Load() != int64(of) {
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("stream %d did not get a change within %v", i, patience)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	a := &Arrivals{Of: of}
	for i := range l.slots {
		s := &l.slots[i]
		a.Received = append(a.Received, s.received.Load()-int64(of))
		if l.kind.Engine {
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

func (l *Loader) connectRaw(size int) error {
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

// Return is what the return of all instances was like.
type Return struct {
	InForce []int64       // when each instance was up to date, in nanoseconds of Unix
	Spread  time.Duration // the longest that an instance waited of its own will, or as it was asked to
	Refused int64
	Failed  int64
	Bytes   int64 // that the server sent, all in all
}

// Rejoin cuts all connections at once and lets the instances come back without a wait of their
// own, with what they hold as resume point or from nothing.
func (l *Loader) Rejoin(resume bool) (*Return, error) {
	for _, in := range l.instances {
		in.cut()
	}
	return l.back(&rejoin{resume: resume})
}

// Survive waits until the server has cut all connections, and lets the instances come back
// with the waits of the SDK: random ones, or each in the middle of what they are drawn from.
func (l *Loader) Survive(spread bool) (*Return, error) {
	r := &rejoin{resume: true, share: rand.Float64}
	if !spread {
		r.share = func() float64 { return 0.5 }
	}
	return l.back(r)
}

func (l *Loader) back(r *rejoin) (*Return, error) {
	c := &Return{InForce: make([]int64, len(l.instances))}
	err := l.together(len(l.instances), func(in *instance) error {
		<-in.done
		in.cut()
		err := in.join(r)
		c.InForce[in.id] = time.Now().UnixNano()
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Spread, c.Refused, c.Failed = time.Duration(r.spread.Load()), r.refused.Load(), r.failed.Load()
	for _, in := range l.instances {
		c.Bytes += in.greeting
	}
	return c, nil
}
