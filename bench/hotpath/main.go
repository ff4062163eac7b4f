// SPDX-License-Identifier: Apache-2.0

// Command hotpath measures what a call through policyd's engine costs, beside the peers,
// and prints ratios: figures of one run on one machine. The cases take turns in many short
// rounds, and the fastest round of each counts: what else the machine does only ever slows
// a round down.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/policyd/policyd/sdk/go/engine"
)

func main() {
	rounds := flag.Int("rounds", 60, "rounds; the fastest counts")
	each := flag.Duration("time", 0, "time of each case in each round (default 10ms)")
	testing.Init()
	flag.Parse()
	benchtime := "10ms"
	if *each > 0 {
		benchtime = each.String()
	}
	if err := flag.Set("test.benchtime", benchtime); err != nil {
		fmt.Fprintln(os.Stderr, "hotpath:", err)
		os.Exit(1)
	}
	conditions(os.Stdout, *rounds, benchtime)
	r := measure(*rounds)
	r.table(os.Stdout)
	r.goals(os.Stdout)
}

func conditions(w io.Writer, rounds int, benchtime string) {
	fmt.Fprintf(w, "%s %s/%s, GOMAXPROCS %d, %d rounds of %s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), rounds, benchtime)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if strings.Contains(m.Path, "gobreaker") || strings.Contains(m.Path, "failsafe") {
				fmt.Fprintf(w, "%s %s\n", m.Path, m.Version)
			}
		}
	}
	fmt.Fprintln(w)
}

// results holds ns per operation of each round, by case.
type results struct {
	order  []string
	ns     map[string][]float64
	allocs map[string]int64
}

func measure(rounds int) results {
	r := results{ns: map[string][]float64{}, allocs: map[string]int64{}}
	all := benchmarks()
	for _, c := range all {
		r.order = append(r.order, c.name)
	}
	for range rounds {
		for _, c := range all {
			got := testing.Benchmark(c.run)
			r.ns[c.name] = append(r.ns[c.name], float64(got.T.Nanoseconds())/float64(max(got.N, 1)))
			r.allocs[c.name] = max(r.allocs[c.name], got.AllocsPerOp())
		}
	}
	return r
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// best is the fastest round of a case, in ns per operation.
func (r results) best(name string) float64 { return slices.Min(r.ns[name]) }

func (r results) ratio(of, over string) float64 { return r.best(of) / r.best(over) }

func (r results) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "ns\tmedian\tallocs\t× gobreaker\t× failsafe-go\t  case\t")
	for _, name := range r.order {
		fmt.Fprintf(t, "%.1f\t%.1f\t%d\t%.2f\t%.3f\t  %s\t\n", r.best(name), median(r.ns[name]), r.allocs[name],
			r.ratio(name, gobreakerSuccess), r.ratio(name, failsafeBreaker), name)
	}
	_ = t.Flush()
}

func (r results) goals(w io.Writer) {
	perEndpoint := endpointBytes()
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "goal\twanted\tmeasured\t")
	row := func(name string, measured, wanted float64, atLeast bool, format string) {
		sign, met := "≤", measured <= wanted
		if atLeast {
			sign, met = "≥", measured >= wanted
		}
		verdict := "met"
		if !met {
			verdict = "missed"
		}
		fmt.Fprintf(t, "%s\t%s "+format+"\t"+format+"\t%s\t\n", name, sign, wanted, measured, verdict)
	}
	row("success × gobreaker's breaker", r.ratio(success, gobreakerSuccess), 0.35, false, "%.2f")
	row("success × failsafe-go retry + breaker", r.ratio(success, failsafeBreaker), 0.08, false, "%.3f")
	row("success, allocations", float64(r.allocs[success]), 0, false, "%.0f")
	row("throughput on all cores × one core", r.ratio(success, successParallel), 1.4, true, "%.2f")
	row("refused × gobreaker's refusal", r.ratio(rejected, gobreakerRejected), 0.25, false, "%.2f")
	row("refused × gobreaker's refusal, clock not counted", r.ratio(rejectedDecision, gobreakerRejected), 0.25, false, "%.2f")
	row("refused, allocations", float64(max(r.allocs[rejected], r.allocs[rejectedForced])), 0, false, "%.0f")
	row("by name among 1,000 adds, ns", r.best(byName)-r.best(success), 40, false, "%.0f")
	row("bytes per endpoint, a policy of its own included", perEndpoint, 1536, false, "%.0f")
	_ = t.Flush()
}

// endpointBytes is what an endpoint with a policy of its own takes on the heap.
func endpointBytes() float64 {
	const n = 10_000
	kept := make([]*engine.Endpoint, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range kept {
		kept[i] = endpoint(policy(), engine.Overlay{})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return float64(after.HeapAlloc-before.HeapAlloc) / n
}
