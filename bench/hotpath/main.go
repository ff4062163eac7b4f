// SPDX-License-Identifier: Apache-2.0

// Command hotpath measures what a call costs under policyd's Go SDK, beside its peers, and
// prints ratios: figures of one run on one machine. All subjects take turns in many short
// rounds, so that what else the machine does hits them alike; a ratio is the median of the
// rounds' own ratios.
//
//	go run ./hotpath                                     # tables to read
//	go run ./hotpath -write ../docs/performance.md       # puts them into the document
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hotpath:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("hotpath", flag.ContinueOnError)
	rounds := flags.Int("rounds", 30, "rounds that every subject takes part in")
	each := flags.Duration("time", 40*time.Millisecond, "time of a subject in a round")
	write := flags.String("write", "", "put the tables into this Markdown file, between its marks")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || *each <= 0 {
		return fmt.Errorf("rounds and time have to be positive")
	}
	l, err := newLab()
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.check(); err != nil {
		return err
	}
	c := newConditions(*rounds, *each)
	r := measure(l.subjects, *rounds, *each)
	if err := l.failed(); err != nil {
		return err
	}
	memory, err := endpointBytes()
	if err != nil {
		return err
	}
	c.after = loadAverage()
	rep := report{c, r, memory}
	if *write != "" {
		return rep.into(*write)
	}
	return rep.text(out)
}
