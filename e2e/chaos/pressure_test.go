// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pressure samples how long something waited for a processor, so that slowness of the machine
// is not taken for slowness of policyd.
type pressure struct {
	mu    sync.Mutex
	at    []time.Time
	total []time.Duration
	extra time.Duration // where the kernel does not tell: lateness of the sampler itself
}

const sampleEvery = 50 * time.Millisecond

func (p *pressure) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		p.extra += max(0, now.Sub(last)-2*sampleEvery)
		last = now
		p.mu.Lock()
		p.at, p.total = append(p.at, now), append(p.total, p.read())
		p.mu.Unlock()
	}
}

func (p *pressure) read() time.Duration {
	raw, err := os.ReadFile("/proc/pressure/cpu")
	if _, rest, ok := strings.Cut(string(raw), "total="); err == nil && ok {
		if n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
			return time.Duration(n) * time.Microsecond
		}
	}
	return p.extra
}

// between is how long of the time between two moments something had to wait.
func (p *pressure) between(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var low, high time.Duration
	for i, at := range p.at {
		if at.Before(from) || i == 0 {
			low = p.total[i]
		}
		high = p.total[i]
		if at.After(to) {
			break
		}
	}
	return high - low
}
