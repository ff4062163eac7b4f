// SPDX-License-Identifier: Apache-2.0

// Command fanout measures how fast one change reaches many streams, and what it costs the
// server, beside a floor that writes the same bytes to as many TCP connections. Server and
// load are processes of their own. Figures are of one run on one machine; ratios are what
// counts.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

type options struct {
	Streams int
	Rounds  int
	Size    int
	Turns   int
	Pause   time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.Streams, "n", 1000, "streams, each on a connection of its own")
	flag.IntVar(&o.Rounds, "rounds", 25, "changes per turn")
	flag.IntVar(&o.Turns, "turns", 3, "turns of each system")
	flag.IntVar(&o.Size, "size", 1000, "bytes of the document that changes")
	flag.DurationVar(&o.Pause, "pause", 40*time.Millisecond, "between two changes")
	role := flag.String("role", "", "internal: server or load")
	system := flag.String("system", "", "internal: what to serve or load")
	profile := flag.String("profile", "", "write a CPU profile of each server to this file, the last one stays")
	addr := flag.String("addr", "", "internal: where the server is")
	only := flag.String("only", "", "measure only systems whose name contains this, besides the floor")
	flag.Parse()

	var err error
	switch *role {
	case "server":
		err = profiled(*profile, func() error { return serve(*system, o) })
	case "load":
		err = load(*system, *addr, o)
	default:
		err = run(o, chosen(*only), *profile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

// systems in the order of the table; the first is the floor.
func systems() []string { return []string{floor, hubQuiet, hub, hubSwitch} }

const (
	floor = "raw TCP, shared bytes, 2 writers"
	// hubQuiet measures nearly without acks, as the floor has none.
	hubQuiet  = "policyd, one ack in ten"
	hub       = "policyd"
	hubSwitch = "policyd, a switch among 100 edits/s"
)

func chosen(part string) []string {
	return slices.DeleteFunc(systems(), func(s string) bool { return s != floor && !strings.Contains(s, part) })
}

func run(o options, chosen []string, profile string) error {
	fmt.Printf("%s %s/%s, %d cores shared by server and load, loopback\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "google.golang.org/grpc" {
				fmt.Println(m.Path, m.Version)
			}
		}
	}
	fmt.Printf("%d streams on as many connections, %d-byte document, %d turns of %d changes, %v apart; load average %s\n\n",
		o.Streams, o.Size, o.Turns, o.Rounds, o.Pause, loadAverage())

	results := make(map[string]*result)
	for range o.Turns {
		for _, system := range chosen {
			r, err := measure(system, o, profile)
			if err != nil {
				return fmt.Errorf("%s: %w", system, err)
			}
			if results[system] == nil {
				results[system] = &result{}
			}
			results[system].add(r)
		}
	}
	table(os.Stdout, chosen, results)
	return nil
}

func profiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// child is a process of this program that answers lines with JSON.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func spawn(args ...string) (*child, error) {
	c := &child{cmd: exec.Command(os.Args[0], args...)}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	return c, c.cmd.Start()
}

func (c *child) ask(what string, answer any) error {
	if what != "" {
		if _, err := fmt.Fprintln(c.in, what); err != nil {
			return err
		}
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("ask %q: %w", what, err)
	}
	return json.Unmarshal(line, answer)
}

func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// usage is what a server process has used so far.
type usage struct {
	CPU time.Duration
	RSS int64 // bytes
}

// arrivals says how long a change took to each stream, in nanoseconds.
type arrivals struct {
	After []int64
}

func measure(system string, o options, profile string) (*turn, error) {
	args := []string{
		"-n", fmt.Sprint(o.Streams), "-size", fmt.Sprint(o.Size), "-rounds", fmt.Sprint(o.Rounds), "-system", system,
	}
	server, err := spawn(append(args, "-role", "server", "-profile", profile)...)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	var addr string
	if err := server.ask("", &addr); err != nil {
		return nil, err
	}
	var empty, idle, before, after usage
	if err := server.ask("usage", &empty); err != nil {
		return nil, err
	}
	load, err := spawn(append(args, "-role", "load", "-addr", addr)...)
	if err != nil {
		return nil, err
	}
	defer load.stop()
	var connected int
	if err := load.ask("", &connected); err != nil {
		return nil, err
	}
	time.Sleep(500 * time.Millisecond)
	if err := server.ask("usage", &idle); err != nil {
		return nil, err
	}
	t := &turn{perStream: float64(idle.RSS-empty.RSS) / float64(o.Streams)}
	// A first change warms both sides up.
	for i := range o.Rounds + 1 {
		if i == 1 {
			if err := server.ask("usage", &before); err != nil {
				return nil, err
			}
		}
		var done bool
		var got arrivals
		if err := server.ask("change", &done); err != nil {
			return nil, err
		}
		if err := load.ask("arrivals", &got); err != nil {
			return nil, err
		}
		if i > 0 {
			t.delays = append(t.delays, got.After)
		}
		time.Sleep(o.Pause)
	}
	if err := server.ask("usage", &after); err != nil {
		return nil, err
	}
	t.cpu = float64(after.CPU-before.CPU) / float64(o.Rounds*o.Streams)
	return t, nil
}
