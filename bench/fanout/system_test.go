// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"testing"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
)

func TestSystems_bring_each_change_to_every_stream(t *testing.T) {
	const streams = 20
	for _, s := range systems() {
		t.Run(s.name, func(t *testing.T) {
			o := options{Streams: streams, Size: 1000, Accept: acceptAll}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			running, err := s.serve(l, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(running.dir) })
			addr := running.addr
			if addr == "" {
				addr = l.Addr().String()
			}
			instances, err := load.Connect(s.load, addr, streams, len(payload.Encoded(payload.Document(0, o.Size))))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				at := payload.Now()
				if err := running.commit(at); err != nil {
					t.Fatal(err)
				}
				got, err := instances.Arrivals(at)
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Received) != streams || s.load.Engine != (len(got.Applied) == streams) {
					t.Fatalf("%d received and %d applied, want %d", len(got.Received), len(got.Applied), streams)
				}
			}
		})
	}
}
