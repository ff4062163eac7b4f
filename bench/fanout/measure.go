// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
)

// bench is one server and one load process with all its streams.
type bench struct {
	system       string
	o            options
	server, load *child
	addr         string
	empty, idle  memory
}

func setUp(system string, o options) (*bench, error) {
	b := &bench{system: system, o: o}
	if err := b.start(); err != nil {
		b.tearDown()
		return nil, fmt.Errorf("%s with %d streams: %w", system, o.Streams, err)
	}
	return b, nil
}

func (b *bench) start() (err error) {
	if b.server, err = spawn(job{Role: "server", System: b.system, Options: b.o}); err != nil {
		return err
	}
	if err := b.server.ask("", &b.addr); err != nil {
		return err
	}
	if err := b.server.ask("memory", &b.empty); err != nil {
		return err
	}
	if b.load, err = spawn(job{Role: "load", System: b.system, Addr: b.addr, Options: b.o}); err != nil {
		return err
	}
	var connected int
	if err := b.load.ask("", &connected); err != nil {
		return err
	}
	// A first change warms both sides up.
	if got, err := b.change("change"); err != nil {
		return err
	} else if _, err := b.settle(got); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	return b.server.ask("memory", &b.idle)
}

func (b *bench) tearDown() {
	if b.load != nil {
		b.load.stop()
	}
	if b.server != nil {
		b.server.stop()
	}
}

func (b *bench) perStream(n int64) float64 { return float64(n) / float64(b.o.Streams) }

// change asks the server for something that ends in a commit, and says how long that took
// to each stream.
func (b *bench) change(what string) (*load.Arrivals, error) {
	var at payload.Stamp
	if err := b.server.ask(what, &at); err != nil {
		return nil, err
	}
	got := load.Arrivals{Of: at}
	return &got, b.load.ask(fmt.Sprint("arrivals ", at), &got)
}

// settle waits until a change that has arrived everywhere is confirmed, and returns how long
// that took from its commit; 0 where nothing is confirmed.
func (b *bench) settle(got *load.Arrivals) (took time.Duration, err error) {
	return took, b.server.ask(fmt.Sprint("confirmed ", got.Of), &took)
}

// times are the quantiles over the streams of each change, in ms.
type times struct {
	P50, P99, Max []float64
}

func (t *times) add(delays []int64) {
	if len(delays) == 0 {
		return
	}
	slices.Sort(delays)
	at := func(q float64) float64 { return float64(quantile(delays, q)) / float64(time.Millisecond) }
	t.P50, t.P99, t.Max = append(t.P50, at(0.5)), append(t.P99, at(0.99)), append(t.Max, at(1))
}

// quantile of what is sorted.
func quantile[T any](sorted []T, q float64) T {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median[T cmp.Ordered](all []T) T {
	var zero T
	if len(all) == 0 {
		return zero
	}
	return quantile(slices.Sorted(slices.Values(all)), 0.5)
}

// sample is everything that was measured of a system at one number of streams.
type sample struct {
	received, applied times
	confirmed         []float64 // ms from commit until the server knew it of all, by change
	cpu               []float64 // ns of the server per delivery, by turn
	held, now         []float64 // bytes of the server per stream, by turn
}

// turn adds a turn of a system.
func (s *sample) turn(system string, o options) error {
	b, err := setUp(system, o)
	if err != nil {
		return err
	}
	defer b.tearDown()
	s.held = append(s.held, b.perStream(b.idle.Held-b.empty.Held))
	s.now = append(s.now, b.perStream(b.idle.Now-b.empty.Held))
	var profiling bool
	if err := b.server.ask("profile", &profiling); err != nil {
		return err
	}
	var before, after time.Duration
	if err := b.server.ask("cpu", &before); err != nil {
		return err
	}
	for range o.Rounds {
		got, err := b.change("change")
		if err != nil {
			return err
		}
		s.received.add(got.Received)
		s.applied.add(got.Applied)
		took, err := b.settle(got)
		if err != nil {
			return err
		}
		s.confirmed = append(s.confirmed, float64(took)/float64(time.Millisecond))
		time.Sleep(o.pause())
	}
	if err := b.server.ask("cpu", &after); err != nil {
		return err
	}
	s.cpu = append(s.cpu, float64(after-before)/float64(o.Rounds*o.Streams))
	return nil
}
