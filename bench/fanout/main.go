// SPDX-License-Identifier: Apache-2.0

// Command fanout measures how fast one change of a document reaches many instances and what
// that costs the server, beside a floor that writes the same bytes to as many TCP
// connections, and beside peers.
//
//	go run ./fanout -n 1000                                     one table
//	go run ./fanout -n 1000,5000,10000,19000 -out DIR           tables, JSON and plots
//	go run ./fanout -n 10000 -systems none -scenarios all       policyd in hard moments
//	go run ./fanout -n 1000,5000,10000 -turns 2 -rounds 10 -scenarios all -transport policyd,policyd-lean -write ../docs/performance.md
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
	"github.com/policyd/policyd/bench/fanout/results"
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

// mostInScenarios is the number of streams that the goals of scenarios name.
const mostInScenarios = 10_000

// pause is how long to wait after a change until the next one: policyd gathers edits that
// follow each other closely, the longer the more streams there are.
func (o *options) pause() time.Duration {
	const perStream, most = 130 * time.Microsecond, 2100 * time.Millisecond
	return max(o.Pause, min(time.Duration(o.Streams)*perStream, most))
}

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
	flag.DurationVar(&o.Pause, "pause", 100*time.Millisecond, "between two changes, at the least: the time in which policyd gathers edits passes too")
	flag.StringVar(&o.Profile, "profile", "", "write CPU profiles of the servers, while changes go out, to files that start so")
	chosen := flag.String("systems", "all", "comma-separated: all, none or "+strings.Join(names(), ", "))
	scenarios := flag.String("scenarios", "none", "comma-separated: all, none or "+strings.Join(scenarioNames(), ", "))
	carrier := flag.String("transport", hub, "comma-separated, what scenarios run on: "+hub+", "+lean)
	hardAt := flag.Int("scenarios-n", 0, "number of streams in scenarios; 0: the largest of -n up to 10000, or the smallest")
	write := flag.String("write", "", "put the tables into this Markdown file, between its marks, and the plots beside it")
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
	carriers, err := choose(*carrier, []string{hub, lean})
	if err != nil {
		return err
	}
	if *hardAt == 0 {
		*hardAt = slices.Min(ns)
		for _, n := range ns {
			if n <= mostInScenarios {
				*hardAt = max(*hardAt, n)
			}
		}
	}
	o.Accept = acceptAll
	r := &report{results.New(o.Size, o.Turns, o.Rounds, o.Pause)}
	for _, n := range ns {
		o.Streams = n
		if err = errors.Join(r.compare(systems, o), r.Save(*out)); err != nil {
			break // what there is, is shown
		}
	}
	if err == nil {
		o.Streams = *hardAt
		err = errors.Join(r.measure(hard, carriers, o), r.Save(*out))
	}
	if err == nil && *write != "" {
		return r.Into(*write)
	}
	if !*asJSON {
		r.Print(os.Stdout)
		return err
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return errors.Join(err, e.Encode(r.Report))
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
