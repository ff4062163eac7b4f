// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// load opens the streams, and then says for each change how long it took to each of them.
func load(system, addr string, o options) error {
	l := &loader{quiet: system == hubQuiet, ready: make(chan error, o.Streams), got: make(chan arrival, o.Streams)}
	var starting sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range o.Streams {
		slots <- struct{}{}
		starting.Go(func() {
			defer func() { <-slots }()
			c, err := net.Dial("tcp", addr)
			if err != nil {
				l.ready <- err
				return
			}
			if system == floor {
				l.ready <- nil
				go l.readRaw(c, o.Size)
				return
			}
			go l.watch(c, i)
		})
	}
	starting.Wait()
	for range o.Streams {
		if err := <-l.ready; err != nil {
			return err
		}
	}
	answer(o.Streams)

	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		// One change at a time, and each stream sees each change once.
		got := arrivals{After: make([]int64, 0, o.Streams)}
		for range o.Streams {
			a := <-l.got
			got.After = append(got.After, a.at-a.sent)
		}
		answer(got)
	}
	return in.Err()
}

type arrival struct{ sent, at int64 }

type loader struct {
	quiet bool
	ready chan error
	got   chan arrival
}

func (l *loader) readRaw(c net.Conn, size int) {
	b := make([]byte, max(size, len(mark)+markDigits))
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		l.note(b)
	}
}

// note looks for the time of commit in what arrived.
func (l *loader) note(b []byte) {
	at := time.Now().UnixNano()
	i := bytes.Index(b, []byte(mark))
	if i < 0 {
		return
	}
	digits := b[i+len(mark):]
	sent, err := strconv.ParseInt(string(digits[:markDigits]), 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fanout: unreadable time:", err)
		return
	}
	l.got <- arrival{sent: sent, at: at}
}
