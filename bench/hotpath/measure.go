// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A subject is one row of the tables.
type subject struct {
	name string
	// worker returns the call for one goroutine to make again and again.
	worker func() func()
	// wide: on all processors at once.
	wide bool
}

// sample is what a subject did in one round, per call.
type sample struct {
	ns, cpu       float64 // cpu includes the collector's
	allocs, bytes float64
}

// results holds the samples of all rounds, by subject.
type results struct {
	order   []string
	samples map[string][]sample
	calls   map[string]int // in a round
}

// measure lets all subjects take turns.
func measure(subjects []subject, rounds int, each time.Duration) results {
	r := results{samples: map[string][]sample{}, calls: map[string]int{}}
	calls := make([]int, len(subjects))
	for i, s := range subjects {
		r.order = append(r.order, s.name)
		calls[i] = s.fit(each)
		r.calls[s.name] = calls[i]
	}
	for range rounds {
		for i, s := range subjects {
			r.samples[s.name] = append(r.samples[s.name], s.round(calls[i]))
		}
	}
	return r
}

// fit returns the number of calls that take about that long.
func (s *subject) fit(each time.Duration) int {
	for n := 1; ; n *= 4 {
		took := time.Duration(math.MaxInt64)
		for range 5 { // the machine may be busy otherwise
			began := time.Now()
			s.spin(n)
			took = min(took, time.Since(began))
		}
		if took >= each/16 {
			return max(1, int(float64(n)*float64(each)/float64(took)))
		}
	}
}

func (s *subject) round(n int) sample {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, began := processorTime(), time.Now()
	s.spin(n)
	took, used := time.Since(began), processorTime()-cpu
	runtime.ReadMemStats(&after)
	of := float64(n)
	return sample{
		ns: float64(took) / of, cpu: float64(used) / of,
		allocs: float64(after.Mallocs-before.Mallocs) / of, bytes: float64(after.TotalAlloc-before.TotalAlloc) / of,
	}
}

// spin makes n calls.
func (s *subject) spin(n int) {
	if !s.wide {
		loop(s.worker(), n)
		return
	}
	workers := runtime.GOMAXPROCS(0)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { loop(s.worker(), n/workers+1) })
	}
	all.Wait()
}

func loop(call func(), n int) {
	for range n {
		call()
	}
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// middle is the median of one figure of a subject.
func (r *results) middle(name string, figure func(sample) float64) float64 {
	all := make([]float64, 0, len(r.samples[name]))
	for _, s := range r.samples[name] {
		all = append(all, figure(s))
	}
	return median(all)
}

func (r *results) best(name string) float64 {
	return slices.MinFunc(r.samples[name], func(a, b sample) int {
		if a.ns < b.ns {
			return -1
		}
		return 1
	}).ns
}

// paired is the median, over the rounds, of f of two subjects' times in the same round.
func (r *results) paired(of, to string, f func(a, b float64) float64) float64 {
	a, b := r.samples[of], r.samples[to]
	all := make([]float64, 0, len(a))
	for i := range a {
		all = append(all, f(a[i].ns, b[i].ns))
	}
	return median(all)
}

func (r *results) ratio(of, to string) float64 {
	return r.paired(of, to, func(a, b float64) float64 { return a / b })
}

// adds is how many ns more one takes than another.
func (r *results) adds(of, to string) float64 {
	return r.paired(of, to, func(a, b float64) float64 { return a - b })
}

// allocs is rounded: clocks and collectors of other subjects allocate now and then as well.
func (r *results) allocs(name string) float64 {
	return math.Round(r.middle(name, func(s sample) float64 { return s.allocs }))
}
