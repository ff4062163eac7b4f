// SPDX-License-Identifier: Apache-2.0

// Command fanout measures how fast one change of a document reaches many instances and what
// that costs the server, beside a floor that writes the same bytes to as many TCP
// connections, and beside peers.
//
//	go run ./fanout -n 1000                                     one table
//	go run ./fanout -n 1000,5000,10000,19000 -out DIR           tables, JSON and plots
//	go run ./fanout -n 10000 -systems none -scenarios all       policyd in hard moments
//
// Server and load are processes of their own, N streams are N connections. The load side is
// the same for all: one HTTP/2 client that speaks each system's messages, and one place
// where arrivals are timed. A change carries the time of its commit: taken before the call
// that makes the change known to the system. Figures are of one machine; ratios count.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/policyd/policyd/bench/fanout/payload"
)

// options hold for server and load.
type options struct {
	Streams int
	Rounds  int
	Turns   int
	Size    int
	Pause   time.Duration
	// Accept is how many streams policyd takes per second.
	Accept int
	// Revision, if set, and At are what the server had before it was started again.
	Revision int64
	At       payload.Stamp
	Profile  string
}

// acceptAll keeps the limit of new streams out of what is not about it.
const acceptAll = 50_000

// job is what a child process is told to do.
type job struct {
	Role, System, Addr string
	Options            options
}

func main() {
	if err := mainErr(); err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

func mainErr() error {
	var o options
	sizes := flag.String("n", "1000", "numbers of streams, comma-separated; each stream has a connection of its own")
	flag.IntVar(&o.Rounds, "rounds", 15, "changes per turn")
	flag.IntVar(&o.Turns, "turns", 3, "turns of each system; systems take turns")
	flag.IntVar(&o.Size, "size", 1000, "bytes of the document that changes")
	flag.DurationVar(&o.Pause, "pause", 100*time.Millisecond, "between two changes")
	flag.StringVar(&o.Profile, "profile", "", "write CPU profiles of the servers, while changes go out, to files that start so")
	chosen := flag.String("systems", "all", "comma-separated: all, none or "+strings.Join(names(), ", "))
	scenarios := flag.String("scenarios", "none", "comma-separated: all, none or "+strings.Join(scenarioNames(), ", "))
	carrier := flag.String("transport", hub, "what scenarios run on: "+hub+" or "+lean)
	asJSON := flag.Bool("json", false, "print JSON instead of tables")
	out := flag.String("out", "", "directory for fanout.json, fanout.txt and the plots")
	child := flag.String("child", "", "internal: the job of a child process")
	flag.Parse()

	if *child != "" {
		var j job
		if err := json.Unmarshal([]byte(*child), &j); err != nil {
			return err
		}
		return j.do()
	}
	ns, err := parseSizes(*sizes)
	if err != nil {
		return err
	}
	systems, err := choose(*chosen, names())
	if err != nil {
		return err
	}
	if len(systems) > 0 && !slices.Contains(systems, floor) {
		systems = append([]string{floor}, systems...)
	}
	hard, err := choose(*scenarios, scenarioNames())
	if err != nil {
		return err
	}
	if *carrier != hub && *carrier != lean {
		return fmt.Errorf("-transport %s: scenarios run on %s or %s", *carrier, hub, lean)
	}
	o.Accept = acceptAll
	r := newReport(o)
	for _, n := range ns {
		o.Streams = n
		err = errors.Join(r.measure(systems, hard, *carrier, o), r.save(*out))
		if err != nil {
			break // what there is, is shown
		}
	}
	if !*asJSON {
		r.print(os.Stdout)
		return err
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return errors.Join(err, e.Encode(r))
}

func (j job) do() error {
	switch j.Role {
	case "server":
		return serve(j.System, j.Addr, j.Options)
	case "load":
		return loadOn(j.System, j.Addr, j.Options)
	case "start":
		return start(j.System, j.Addr)
	}
	return fmt.Errorf("unknown role %q", j.Role)
}

// spareFiles is what a process opens besides the connections.
const spareFiles = 100

func parseSizes(list string) ([]int, error) {
	var ns []int
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-n %s: not a number of streams", part)
		}
		limit, err := openFiles()
		if err != nil {
			return nil, err
		}
		if n+spareFiles > limit {
			return nil, fmt.Errorf("-n %d: a process may have %d files open here, so at most %d streams", n, limit, limit-spareFiles)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func choose(list string, all []string) ([]string, error) {
	switch list {
	case "all":
		return all, nil
	case "none", "":
		return nil, nil
	}
	var chosen []string
	var errs []error
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(all, name) {
			errs = append(errs, fmt.Errorf("%q is none of %s", name, strings.Join(all, ", ")))
		}
		chosen = append(chosen, name)
	}
	return chosen, errors.Join(errs...)
}
