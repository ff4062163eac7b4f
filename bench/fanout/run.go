// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/policyd/policyd/bench/fanout/results"
)

// report takes what the parts of a run find.
type report struct{ *results.Report }

// measure takes policyd in hard moments.
func (r *report) measure(scenarios, carriers []string, o options) error {
	defer func() { r.Conditions.LoadAfter = results.LoadAverage() }()
	for _, name := range scenarios {
		for _, carrier := range carriers {
			if err := r.endure(name, carrier, o); err != nil {
				return fmt.Errorf("scenario %s on %s: %w", name, carrier, err)
			}
			if name == aloneScenario {
				break // it is about no transport
			}
		}
	}
	return nil
}

// compare measures systems at one number of streams. They take turns, so that what else the
// machine does meets all of them.
func (r *report) compare(chosen []string, o options) error {
	defer func() { r.Conditions.LoadAfter = results.LoadAverage() }()
	samples := make(map[string]*sample)
	for turn := range o.Turns {
		for _, name := range chosen {
			progress("%d streams, turn %d of %d: %s", o.Streams, turn+1, o.Turns, name)
			if samples[name] == nil {
				samples[name] = &sample{}
			}
			if err := samples[name].turn(name, o); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for _, name := range chosen {
		s, base := samples[name], samples[floor]
		sys, err := find(name)
		if err != nil {
			return err
		}
		x := results.Row{
			System: name, Title: sys.title, N: o.Streams, Received: s.received.medians(),
			TimesFloor: median(s.received.P99) / median(base.received.P99),
			Confirmed:  median(s.confirmed),
			CPU:        median(s.cpu) / 1000, CPUTimesFloor: median(s.cpu) / median(base.cpu),
			HeldKB: median(s.held) / 1024, AsIsKB: median(s.now) / 1024,
			EveryP99Of: s.received.P99, EveryAppliedP99: s.applied.P99,
		}
		if len(s.applied.P99) > 0 {
			m := s.applied.medians()
			x.Applied = &m
		}
		r.Rows = append(r.Rows, x)
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "fanout: "+format+"\n", args...)
}

func (t *times) medians() results.MS {
	return results.MS{P50: median(t.P50), P99: median(t.P99), Max: median(t.Max)}
}
