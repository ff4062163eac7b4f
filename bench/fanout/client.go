// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
)

// loadOn opens the streams and does what the parent asks for.
func loadOn(name, addr string, o options) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	l, err := load.Connect(s.load, addr, o.Streams, len(payload.Encoded(payload.Document(0, o.Size))))
	if err != nil {
		return err
	}
	answer(o.Streams)
	return answerAll(func(words []string) (any, error) {
		switch words[0] {
		case "arrivals":
			of, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return nil, err
			}
			return l.Arrivals(payload.Stamp(of))
		case "rejoin":
			return l.Rejoin(words[1] == "resume")
		case "survive":
			return l.Survive(words[1] == "spread")
		}
		return nil, fmt.Errorf("unknown command")
	})
}
