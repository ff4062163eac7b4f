// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// conditions is what figures hold under.
type conditions struct {
	rounds        int
	each          time.Duration
	peers         []string
	before, after string
}

func newConditions(rounds int, each time.Duration) conditions {
	c := conditions{rounds: rounds, each: each, before: loadAverage()}
	wanted := []string{"gobreaker", "failsafe-go", "sentinel-golang", "hystrix-go", "goresilience", "go-retryablehttp", "google.golang.org/grpc"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.ContainsFunc(wanted, func(w string) bool { return strings.Contains(m.Path+"/", w+"/") }) {
				c.peers = append(c.peers, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
	}
	return c
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// lines tells the conditions; calls is how many a subject made in a round.
func (c *conditions) lines(r *results) []string {
	least, most := 1<<62, 0
	for _, n := range r.calls {
		least, most = min(least, n), max(most, n)
	}
	return []string{
		fmt.Sprintf("%s %s/%s, %d cores, %s. %d rounds of %s for each subject in turn, %d to %d calls in a round. Load average %s before, %s after.",
			runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), time.Now().UTC().Format(time.DateOnly),
			c.rounds, c.each, least, most, c.before, c.after),
		strings.Join(c.peers, ", ") + ".",
	}
}

// report is everything that was found.
type report struct {
	conditions conditions
	results    results
	memory     []perEndpoint
}

var columns = []string{"", "ns", "fastest", "CPU ns", "allocs", "bytes", "× gobreaker", "× failsafe-go"}

// rows are the figures of all subjects.
func (r *report) rows() [][]string {
	rows := make([][]string, 0, len(r.results.order))
	for _, name := range r.results.order {
		of := &r.results
		rows = append(rows, []string{
			name,
			fmt.Sprintf("%.1f", of.middle(name, func(s sample) float64 { return s.ns })),
			fmt.Sprintf("%.1f", of.best(name)),
			fmt.Sprintf("%.0f", of.middle(name, func(s sample) float64 { return s.cpu })),
			fmt.Sprintf("%.0f", of.allocs(name)),
			fmt.Sprintf("%.0f", of.middle(name, func(s sample) float64 { return s.bytes })),
			fmt.Sprintf("%.2f", of.ratio(name, gobreakerCall)),
			fmt.Sprintf("%.3f", of.ratio(name, failsafeCall)),
		})
	}
	return rows
}

// goals are the goals with what was measured.
func (r *report) goals() [][]string {
	of := &r.results
	var rows [][]string
	row := func(name string, measured, wanted float64, atLeast bool, format string) {
		sign, met := "≤", measured <= wanted
		if atLeast {
			sign, met = "≥", measured >= wanted
		}
		verdict := "met"
		if !met {
			verdict = "**missed**"
		}
		rows = append(rows, []string{name, fmt.Sprintf(sign+" "+format, wanted), fmt.Sprintf(format, measured), verdict})
	}
	row("success × gobreaker's breaker", of.ratio(success, gobreakerCall), 0.35, false, "%.2f")
	row("success × failsafe-go, retry + breaker", of.ratio(success, failsafeCall), 0.08, false, "%.3f")
	row("success, allocations", of.allocs(success), 0, false, "%.0f")
	row("throughput on all cores × one core", of.ratio(success, success+onAll), 1.4, true, "%.2f")
	row("refused × gobreaker's refusal", of.ratio(rejected, gobreakerRefused), 0.25, false, "%.2f")
	row("forced open × gobreaker's refusal", of.ratio(rejectedForced, gobreakerRefused), 0.25, false, "%.2f")
	row("refused, allocations", max(of.allocs(rejected), of.allocs(rejectedForced)), 0, false, "%.0f")
	row("by name among 1,000 adds, ns", of.adds(byName, success), 40, false, "%.0f")
	row("`http.RoundTripper` adds, ns", of.adds(httpPolicyd, httpBare), 400, false, "%.0f")
	row("`http.RoundTripper` adds, allocations", of.allocs(httpPolicyd)-of.allocs(httpBare), 3, false, "%.0f")
	row("gRPC interceptor × grpc-go's own retry policy", of.ratio(grpcPolicyd, grpcOwn), 1, false, "%.3f")
	for _, m := range r.memory {
		if m.name == ownPolicy {
			row("memory per endpoint, bytes", m.bytes, 1536, false, "%.0f")
		}
	}
	return rows
}

func (r *report) sizes() [][]string {
	rows := make([][]string, 0, len(r.memory))
	for _, m := range r.memory {
		rows = append(rows, []string{m.name, fmt.Sprintf("%.0f", m.bytes)})
	}
	return rows
}

// text writes the tables for a terminal.
func (r *report) text(out io.Writer) error {
	for _, line := range r.conditions.lines(&r.results) {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	for _, t := range r.tables() {
		fmt.Fprintln(out)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{t.head}, t.rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

type tableOf struct {
	head []string
	rows [][]string
}

func (r *report) tables() []tableOf {
	return []tableOf{
		{columns, r.rows()},
		{[]string{"one more endpoint", "bytes"}, r.sizes()},
		{[]string{"goal", "wanted", "measured", ""}, r.goals()},
	}
}

// markdown writes the tables for a document.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	for _, line := range r.conditions.lines(&r.results) {
		fmt.Fprintf(&b, "%s\n\n", line)
	}
	for i, t := range r.tables() {
		if i > 0 {
			b.WriteByte('\n')
		}
		for k, row := range append([][]string{t.head, slices.Repeat([]string{"---"}, len(t.head))}, t.rows...) {
			if k == 1 {
				fmt.Fprintf(&b, "|%s|\n", strings.Join(row, "|"))
				continue
			}
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return b.Bytes()
}

// Marks that stand around the tables in a document.
const (
	begins = "<!-- hotpath: written by go run ./hotpath -write -->\n"
	ends   = "<!-- hotpath: end -->\n"
)

// into replaces the tables of a Markdown file.
func (r *report) into(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(old, []byte(begins))
	_, after, ended := bytes.Cut(rest, []byte(ends))
	if !begun || !ended {
		return errors.New(path + " lacks the marks that the tables go between")
	}
	return os.WriteFile(path, slices.Concat(before, []byte(begins), r.markdown(), []byte(ends), after), 0o644) //nolint:gosec // a document
}
