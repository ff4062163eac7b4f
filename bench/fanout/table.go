// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// turn is one server and one load process.
type turn struct {
	delays    [][]int64 // by change
	cpu       float64   // ns of the server per delivery
	perStream float64   // bytes
}

// result gathers the turns of a system. Of times the best turn counts, as what else the
// machine does only ever slows a turn down.
type result struct {
	p50, p99, worst []float64 // of each change, ms
	cpu, perStream  []float64 // of each turn
}

func (r *result) add(t *turn) {
	for _, d := range t.delays {
		slices.Sort(d)
		at := func(q float64) float64 {
			return float64(d[min(int(q*float64(len(d))), len(d)-1)]) / float64(time.Millisecond)
		}
		r.p50, r.p99, r.worst = append(r.p50, at(0.5)), append(r.p99, at(0.99)), append(r.worst, at(1))
	}
	r.cpu = append(r.cpu, t.cpu)
	r.perStream = append(r.perStream, t.perStream)
}

func quantile[T cmp.Ordered](all []T, q float64) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func table(w io.Writer, chosen []string, results map[string]*result) {
	// A quarter of the changes met a quiet machine; the median tells what was usual.
	const quiet, usual = 0.25, 0.5
	base := results[floor]
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "commit → received, ms\tp50\tp99\tmax\tp99, quiet\t× floor\tCPU/delivery\t× floor\tRSS/stream\t")
	for _, s := range chosen {
		r := results[s]
		p99, cpu := quantile(r.p99, quiet), slices.Min(r.cpu)
		perStream := fmt.Sprintf("%.1f KB", quantile(r.perStream, usual)/1024)
		ratio := fmt.Sprintf("%.2f", cpu/slices.Min(base.cpu))
		micros := fmt.Sprintf("%.1f µs", cpu/1000)
		if s == hubSwitch {
			micros, ratio = "-", "-" // the edits cost more than the switch
		}
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%s\t%s\t%s\t\n",
			s, quantile(r.p50, usual), quantile(r.p99, usual), quantile(r.worst, usual), p99,
			p99/quantile(base.p99, quiet), micros, ratio, perStream)
	}
	_ = tw.Flush()
	fmt.Fprintln(w)
	if results[hubSwitch] != nil && results[hub] != nil {
		fmt.Fprintf(w, "A switch among edits: p99 × %.2f of a change alone (goal 0.8 to 1.2).\n",
			quantile(results[hubSwitch].p99, quiet)/quantile(results[hub].p99, quiet))
	}
	fmt.Fprintln(w, "p50, p99 and max: median over the changes. Quiet: the lower quarter, which ratios are made of.")
}
