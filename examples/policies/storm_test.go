// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

// numbers are random and the same in each run.
func numbers(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// lossy is a link on which messages take their time and get lost. Nobody is told of a loss:
// the caller waits until its time-out.
type lossy struct {
	base          http.RoundTripper
	delay, jitter time.Duration // of a round trip
	loss          float64       // share
	perDirection  bool          // loss is of each direction, else of the round trip

	mu     sync.Mutex
	random *rand.Rand // guarded by mu
}

func (l *lossy) draw() (delay time.Duration, there, back bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delay = l.delay + time.Duration((2*l.random.Float64()-1)*float64(l.jitter))
	there, back = l.random.Float64() >= l.loss, l.random.Float64() >= l.loss
	if !l.perDirection {
		back = there || l.random.Float64() < 0.5 // what is lost is one of both
		there = there || !back
	}
	return delay, there, back
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	delay, there, back := l.draw()
	err := sleep(r.Context(), delay/2)
	if err == nil && !there {
		<-r.Context().Done()
		err = r.Context().Err()
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	resp, err := l.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if back {
		if err = sleep(r.Context(), delay/2); err == nil {
			return resp, nil
		}
	} else {
		<-r.Context().Done()
		err = r.Context().Err()
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return nil, err
}

// sleep waits for d, or less if ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storm is an outage under load: clients that call steadily, and a server that can bear so
// much and, for a while, less. Time is virtual, numbers come from the seed: a run repeats.
type storm struct {
	clients, callsPerSecond int // calls of each client
	// limit is what the server answers per second; slow is that during the outage. It works
	// off what came first, also what its client gave up on, and refuses with 503 what would
	// have to wait for longer than two seconds.
	limit, slow float64
	failures    float64       // share of answers that are 503 in any case
	outage      time.Duration // begins after 5 s
	lasts       time.Duration
	seed        uint64
}

const outageBegins = 5 * time.Second

// caller makes the calls of one client.
type caller func(ctx context.Context, send func(context.Context) error) error

// clients makes the nth client.
type clients struct {
	name string
	make func(t *testing.T, n int) caller
}

// fixed retries at once, so many times.
func fixed(retries int, timeout time.Duration) clients {
	return clients{fmt.Sprintf("%d retries at once, time-out %s", retries, timeout), func(*testing.T, int) caller {
		return func(ctx context.Context, send func(context.Context) error) error {
			_, err := fixedRetries(ctx, retries, timeout, send)
			return err
		}
	}}
}

// under calls under a document of this folder.
func under(file, endpoint string) clients {
	return clients{file, func(t *testing.T, n int) caller {
		f := load(t, file)
		f.Seed(uint64(n))
		return func(ctx context.Context, send func(context.Context) error) error {
			_, err := policyd.Do(ctx, endpoint, func(ctx context.Context) (struct{}, error) { return struct{}{}, send(ctx) }, policyd.Using(f.Client()))
			return err
		}
	}}
}

// result is what a storm did.
type result struct {
	name           string
	calls, sends   int
	inOutage       float64 // sends ÷ calls during the outage
	worstSecond    float64 // sends ÷ calls in the worst second
	failed, during int     // calls that failed at all, and that began during the outage and failed
	recovers       bool    // in the last 5 s nearly all calls succeed
	recoveredAfter time.Duration
}

func (r result) String() string {
	back := "never"
	if r.recovers {
		back = r.recoveredAfter.String()
	}
	return fmt.Sprintf("| %s | %d | %d | %.2f | %.2f | %.2f | %d | %d | %s |", r.name, r.calls, r.sends,
		float64(r.sends)/float64(r.calls), r.inOutage, r.worstSecond, r.during, r.failed-r.during, back)
}

// server is the one that is under load.
type server struct {
	storm
	began time.Time

	mu     sync.Mutex
	random *rand.Rand    // guarded by mu
	busy   time.Duration // guarded by mu; until when, from the start
	sends  []int         // guarded by mu; by second
}

// send is one attempt.
func (s *server) send(ctx context.Context) error {
	const mostWait = 2 * time.Second
	s.mu.Lock()
	now := time.Since(s.began)
	s.sends[int(now/time.Second)]++
	fails := s.random.Float64() < s.failures
	limit := s.limit
	start := max(now, s.busy)
	if ends := outageBegins + s.outage; start >= outageBegins && start < ends {
		if limit = s.slow; limit == 0 {
			start, limit = ends, s.limit
		}
	}
	if start-now > mostWait {
		s.mu.Unlock()
		return errors.Join(sleep(ctx, time.Millisecond), statusError(http.StatusServiceUnavailable))
	}
	s.busy = start + time.Duration(float64(time.Second)/limit)
	answered := s.busy
	s.mu.Unlock()
	if err := sleep(ctx, answered-now); err != nil {
		return err
	}
	if fails {
		return statusError(http.StatusServiceUnavailable)
	}
	return nil
}

// run lets the clients call, in a bubble of its own.
func (s storm) run(t *testing.T, who clients) (r result) {
	t.Helper()
	r.name = who.name
	synctest.Test(t, func(t *testing.T) {
		var callers []caller
		for n := range s.clients {
			callers = append(callers, who.make(t, n))
		}
		srv := &server{storm: s, began: time.Now(), random: numbers(s.seed), sends: make([]int, s.lasts/time.Second+60)}
		var mu sync.Mutex
		var all sync.WaitGroup
		failedIn := make([]int, s.lasts/time.Second) // by second
		perClient := s.callsPerSecond * int(s.lasts/time.Second)
		random := numbers(s.seed + 1)
		for n := range s.clients {
			interval := time.Second / time.Duration(s.callsPerSecond)
			starts := make([]time.Duration, perClient)
			for k := range starts {
				// Each at a moment of its own, so that the order of events is always the same.
				starts[k] = time.Duration(k)*interval + time.Duration(random.Int64N(int64(interval)))
			}
			for _, start := range starts {
				all.Go(func() {
					time.Sleep(start)
					err := callers[n](t.Context(), srv.send)
					mu.Lock()
					defer mu.Unlock()
					if r.calls++; err == nil {
						return
					}
					r.failed++
					if start >= outageBegins && start < outageBegins+s.outage {
						r.during++
					}
					failedIn[start/time.Second]++
				})
			}
		}
		all.Wait()
		for second, n := range srv.sends {
			r.sends += n
			if at := time.Duration(second) * time.Second; at >= outageBegins && at < outageBegins+s.outage {
				r.inOutage += float64(n) / float64(s.clients*s.callsPerSecond) / s.outage.Seconds()
			}
			r.worstSecond = max(r.worstSecond, float64(n)/float64(s.clients*s.callsPerSecond))
		}
		// A second is bad when more than twice the failures that there are in any case, and
		// than 2 % beside, were met in it.
		var lastBad time.Duration
		for second, n := range failedIn {
			if float64(n) > (2*s.failures+0.02)*float64(s.clients*s.callsPerSecond) {
				lastBad = time.Duration(second+1) * time.Second
			}
		}
		r.recovers = lastBad <= s.lasts-5*time.Second
		r.recoveredAfter = max(0, lastBad-(outageBegins+s.outage).Truncate(time.Second))
	})
	return r
}
