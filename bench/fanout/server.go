// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/policyd/policyd/bench/fanout/payload"
	"github.com/policyd/policyd/bench/fanout/results"
)

// serve runs a system and does what the parent asks for.
func serve(name, addr string, o options) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	l := &counting{Listener: tcp}
	moments := watchSelf(l)
	running, err := s.serve(l, o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(running.dir)
	if running.addr == "" {
		running.addr = l.Addr().String()
	}
	answer(running.addr)
	c := control{served: running, profile: func() (func(), error) { return profile(o.Profile, name) }, stop: func() {}, moments: moments}
	defer func() { c.stop() }()
	return answerAll(c.do)
}

type control struct {
	*served
	churn   sync.Once
	profile func() (stop func(), err error)
	stop    func() // of the profile
	moments func() []results.Moment
}

func (c *control) do(words []string) (any, error) {
	switch words[0] {
	case "profile":
		stop, err := c.profile()
		if err != nil {
			return nil, err
		}
		c.stop = stop
		return true, nil
	case "cpu":
		return cpuTime()
	case "memory":
		return memoryUsed()
	case "revision":
		return c.revision(), nil
	case "moments":
		return c.moments(), nil
	case "peak":
		return peak()
	case "change":
		at := payload.Now()
		return at, c.commit(at)
	case "switch":
		at := payload.Now()
		return at, c.turn(at)
	case "confirmed":
		of, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return nil, err
		}
		return c.settle(payload.Stamp(of))
	case "burst":
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		var at payload.Stamp
		for range n {
			at = payload.Now()
			if err := c.commit(at); err != nil {
				return nil, err
			}
		}
		return at, nil
	case "churn":
		c.churn.Do(func() { go edits(c.commit, 10*time.Millisecond) })
		return true, nil
	}
	return nil, fmt.Errorf("unknown command")
}

// settle waits until all instances have confirmed what was committed, and returns the time
// since a commit.
func (c *control) settle(of payload.Stamp) (time.Duration, error) {
	if c.confirmed == nil {
		return 0, nil
	}
	const (
		patience = time.Minute
		every    = 10 * time.Millisecond
	)
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(every) {
		done, err := c.confirmed()
		if done || err != nil {
			return time.Duration(payload.Now() - of), err
		}
	}
	return 0, fmt.Errorf("not everything was confirmed within %v", patience)
}

// edits commits documents that are not timed, for as long as the process lives.
func edits(commit func(payload.Stamp) error, every time.Duration) {
	for range time.Tick(every) {
		if err := commit(0); err != nil {
			panic(err)
		}
	}
}

// serveRaw writes the same bytes to all connections, from two goroutines.
func serveRaw(l net.Listener, o options) (*served, error) {
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			_, _ = c.Write([]byte{0}) // says that it will be written to
		}
	}()
	return &served{commit: func(at payload.Stamp) error {
		mu.Lock()
		defer mu.Unlock()
		b := payload.Encoded(payload.Document(at, o.Size))
		for half := range 2 {
			go func() {
				for i := half; i < len(conns); i += 2 {
					_, _ = conns[i].Write(b) // a connection that ended is missed by the load
				}
			}()
		}
		return nil
	}}, nil
}
