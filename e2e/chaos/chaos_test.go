// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// inForceWithin is the promise: after the last fault is gone, and a stream is there, this
	// long until what was acknowledged is in force.
	inForceWithin = 5 * time.Second
	// backWithin bounds the wait of an SDK that has lost its stream: the longest backoff, and
	// a try that meets a silence.
	backWithin = 31 * time.Second
	// cachedWithin bounds how long an epoch that was left may be missing in the disk cache.
	cachedWithin = 5 * time.Second
	// onTime is how late a switch may end on an instance that has a processor.
	onTime = time.Second
	// sweptWithin bounds how long the store may call a switch active after its end: the
	// longest pause of the sweeper after an outage, and a try.
	sweptWithin = 36 * time.Second
)

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of processes")
	}
	total, longest, round := shortForm, time.Second, shortForm
	if *duration > 0 {
		total, longest, round = *duration, 5*time.Second, 40*time.Second
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	t.Logf("seed %d: repeat with -chaos.seed=%d -chaos.duration=%v -chaos.transport=%q", *seed, *seed, *duration, *transport)
	s := &suite{world: newWorld(t), load: &pressure{}}
	s.operator = &operator{w: s.world}
	s.breaker = &breaker{w: s.world, o: s.operator}
	sampling, stop := context.WithCancel(context.Background())
	defer stop()
	go s.load.run(sampling)
	t.Logf("logs are in %s, transports are %v", s.dir, s.transports)
	for i := range instances {
		s.orders = append(s.orders, &order{instance: i, remembers: s.remembers(i)})
	}

	s.begin()
	require.NoError(t, s.breaker.save())
	before := s.sizes()
	rounds := int((total + round - 1) / round)
	for n := 0; n < rounds || len(s.operator.done()) < *edits; n++ {
		s.round(n, min(round, total), longest)
		s.settle()
		s.check()
		if t.Failed() {
			t.Fatalf("seed %d, round %d of %d; logs are in %s", *seed, n+1, rounds, s.dir)
		}
		s.says.forget()
	}
	s.await("switches have ended in the store", func() bool { return len(s.activeSwitches()) == 0 })
	s.settle()
	s.check()
	s.grown(before, s.sizes())
	s.summary()
}

type suite struct {
	*world
	operator *operator
	breaker  *breaker
	load     *pressure

	orders    []*order // of each instance
	healed    time.Time
	latencies []time.Duration
	compared  struct{ states, transactions, switches, values int }
}

// round edits and breaks for a while.
func (s *suite) round(n int, total, longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), total)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { s.operator.run(ctx, rand.New(rand.NewPCG(*seed, uint64(n)<<8))) })
	for i, faults := range lanes() {
		if !steps && slices.Contains(faults, "step a clock") {
			continue
		}
		rng := rand.New(rand.NewPCG(*seed, uint64(n)<<8+uint64(i)+1))
		plan := schedule(rng, faults, total, longest)
		all.Go(func() { s.breaker.lane(ctx, string(rune('a'+i)), plan) })
	}
	all.Wait()
}

// settle ends all faults and waits until everything acknowledged is in force everywhere.
func (s *suite) settle() {
	s.t.Helper()
	require.NoError(s.t, s.heal())
	s.await("etcd answers", s.quorum)
	s.await("every policyd serves", func() bool { return s.up(0) && s.up(1) && s.up(2) })
	s.healed = time.Now()
	s.sync()
	goals := s.record.goals()
	s.await("what was acknowledged is in force everywhere", func() bool { return len(s.lagging()) == 0 })
	for i := range instances {
		s.judgeLatency(i, goals[i%len(goals)])
	}
	s.askAll()
}

// judgeLatency checks how long after the healing an instance had a goal.
func (s *suite) judgeLatency(i int, g goal) {
	s.says.mu.Lock()
	defer s.says.mu.Unlock()
	from := s.healed
	for _, e := range s.says.all[i] {
		at := time.Unix(0, e.At)
		switch {
		case e.Kind == "hello" && at.After(from):
			if late := at.Sub(s.healed) - s.load.between(s.healed, at); from.Equal(s.healed) && late > backWithin {
				s.t.Errorf("%s: %s was without a stream for %v", ruleInForce, instanceName(i), late)
			}
			from = at
		case e.Kind == "ack" && (e.Epoch == g.epoch && e.Revision >= g.revision || !slices.Contains(s.record.lives[len(s.record.lives)-1].epochs, g.epoch)):
			took := max(0, at.Sub(s.healed))
			s.latencies = append(s.latencies, took)
			if late := at.Sub(from) - s.load.between(from, at); late > inForceWithin {
				s.t.Errorf("%s: %s had it %v after the healing or its stream, %v of it without a processor\n", ruleInForce, instanceName(i), at.Sub(from), s.load.between(from, at))
			}
			return
		}
	}
}

// askAll waits for the answer of every instance about what is in force, and compares it.
func (s *suite) askAll() {
	s.t.Helper()
	var answers []event
	s.await("every instance is live and has answered", func() bool {
		if len(s.lagging()) > 0 {
			return false // one that lost its stream just now comes back by its own backoff
		}
		answers = s.ask()
		return !slices.ContainsFunc(answers, func(e event) bool { return e.Text != "live" })
	})
	for _, e := range answers {
		s.compared.values += len(e.Values)
		s.report(checkEffective(e, watched(), s.record))
	}
}

// ask returns an answer of every instance.
func (s *suite) ask() (answers []event) {
	s.t.Helper()
	asked := time.Now()
	for f := range fleets {
		s.question(f, question{})
	}
	s.await("every fleet has answered", func() bool {
		s.says.mu.Lock()
		defer s.says.mu.Unlock()
		answers = slices.Clone(s.says.answers)
		return !slices.ContainsFunc(answers, func(e event) bool { return time.Unix(0, e.At).Before(asked) })
	})
	return answers
}

// check judges everything that was said and written so far.
func (s *suite) check() {
	s.t.Helper()
	s.sync()
	now := time.Now()
	allowed := func(from, to time.Time) time.Duration {
		return onTime + s.load.between(from, to) + s.stoppedWithin(from, to)
	}
	for i := range instances {
		history := s.says.history(i)
		s.report(s.orders[i].feed(history))
		found, n := checkHashes(i, history, s.record)
		s.report(found)
		s.compared.states += n
		found, n = checkSwitches(i, history, now, allowed)
		s.report(found)
		s.compared.switches += n
	}
	found, n := checkAudit(s.record)
	s.report(found)
	s.compared.transactions = n
	s.report(checkEdits(s.operator.done(), s.record))
	s.report(checkEnds(s.record, now, sweptWithin))
	s.report(checkEpochs(s.record, true))
	for _, group := range [][]*process{s.policyds, s.fleet} {
		for _, p := range group {
			log, err := os.ReadFile(p.log)
			require.NoError(s.t, err)
			s.report(checkLog(p.name, string(log)))
		}
	}
}

// remembers says what the disk cache of an instance knows when its process starts again.
func (s *suite) remembers(i int) func(left, start time.Time) bool {
	keeps, broken := cached(i)
	return func(left, start time.Time) bool {
		return keeps && !broken && start.Sub(left) > cachedWithin+s.load.between(left, start)+s.stoppedWithin(left, start)
	}
}

// stoppedWithin is how long fleets were stopped in a time.
func (s *suite) stoppedWithin(from, to time.Time) (sum time.Duration) {
	for _, stop := range s.breaker.stopped() {
		if start, end := later(stop[0], from), stop[1]; end.After(start) && to.After(start) {
			sum += min(end.Sub(start), to.Sub(start))
		}
	}
	return sum
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// report fails the test for the first violations, with the history of whom they concern.
func (s *suite) report(found []violation) {
	s.t.Helper()
	const most = 5
	for n, v := range found {
		if n == most {
			s.t.Errorf("and %d more", len(found)-most)
			return
		}
		s.t.Errorf("%s", v)
		if v.instance >= 0 && n == 0 {
			s.t.Log(s.historyText(v.instance))
		}
	}
}

func (s *suite) activeSwitches() []string {
	return s.operator.keys(func(_ string, d live) bool { return d.active })
}

// size is what must not grow.
type size struct{ goroutines, heap, streams float64 }

// sizes adds up the replicas, then the fleets.
func (s *suite) sizes() [2]size {
	s.t.Helper()
	var sum [2]size
	for p := range replicas {
		for name, at := range map[string]*float64{
			"go_goroutines": &sum[0].goroutines, "process_resident_memory_bytes": &sum[0].heap, "policyd_push_streams": &sum[0].streams,
		} {
			n, err := s.metric(p, name)
			require.NoError(s.t, err)
			*at += n
		}
	}
	s.says.mu.Lock()
	clear(s.says.sizes)
	s.says.mu.Unlock()
	for f := range fleets {
		s.question(f, question{Size: true})
	}
	s.await("every fleet tells its size", func() bool {
		s.says.mu.Lock()
		defer s.says.mu.Unlock()
		return len(s.says.sizes) == fleets
	})
	s.says.mu.Lock()
	defer s.says.mu.Unlock()
	for _, e := range s.says.sizes {
		sum[1].goroutines += float64(e.Count)
		sum[1].heap += float64(e.Revision)
	}
	return sum
}

// grown compares sizes. The documents of a run fit into the spare memory many times.
func (s *suite) grown(before, after [2]size) {
	const mib = 1 << 20
	s.t.Logf("sizes before %+v, after %+v", before, after)
	// Streams move between replicas, and between transports that need more and fewer of them.
	s.report(checkGrowth("goroutines of policyd, by streams", after[0].streams, after[0].goroutines, 4.5, 200))
	s.report(checkGrowth("memory of policyd", before[0].heap, after[0].heap, 1.5, 96*mib))
	s.report(checkGrowth("streams", before[0].streams, after[0].streams, 1, 0))
	s.report(checkGrowth("goroutines of SDKs", before[1].goroutines, after[1].goroutines, 1.1, 40))
	s.report(checkGrowth("memory of SDKs", before[1].heap, after[1].heap, 1.5, 32*mib))
}

func (s *suite) summary() {
	counts := map[string]int{}
	for _, e := range s.operator.done() {
		counts[[]string{"acknowledged", "refused", "unknown", "unchanged"}[e.outcome]]++
	}
	slices.Sort(s.latencies)
	at := func(q float64) time.Duration {
		return s.latencies[int(q*float64(len(s.latencies)-1))].Round(time.Millisecond)
	}
	reasons := map[string]int{}
	for _, e := range s.operator.done() {
		if e.outcome != acknowledged {
			reasons[e.why]++
		}
	}
	s.t.Logf("edits that were not acknowledged: %v", reasons)
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d: edits %v; compared %d states, %d transactions, %d ends of switches, %d values; lives of the store %d; ",
		*seed, counts, s.compared.states, s.compared.transactions, s.compared.switches, s.compared.values, len(s.record.lives))
	fmt.Fprintf(&text, "from healing to in force p50 %v p99 %v max %v", at(0.5), at(0.99), at(1))
	s.t.Log(text.String())
}
