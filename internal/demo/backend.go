// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// callHeader carries an id that an application makes once per call, so that the backend
// counts retries by itself.
const callHeader = "Demo-Call"

// settings of the backend. The zero value always answers at once.
type settings struct {
	Fail     float64       // share answered 503
	Latency  time.Duration // before each answer
	Capacity int           // answers per second; more get 503 at once; 0: no bound
}

func defaultSettings() settings { return settings{Fail: 0.05, Latency: 20 * time.Millisecond} }

// second is what arrived in one second.
type second struct {
	at                     int64
	calls, retries, failed int
}

// counted is how long a count reaches back, and how long a call's id is remembered.
const counted = 10

type backend struct {
	mu       sync.Mutex
	settings settings
	seconds  [counted]second
	totals   second
	// ids of calls seen in this period and the one before
	ids, oldIDs map[string]struct{}
	turned      time.Time
	now         func() time.Time
}

func newBackend() *backend {
	return &backend{settings: defaultSettings(), ids: map[string]struct{}{}, now: time.Now}
}

// serve answers one call of the fleet.
func (b *backend) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
	fails, wait := b.arrive(r.Header.Get(callHeader))
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if fails {
		http.Error(w, `{"error":"backend is unwell"}`, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"ok":true}`+"\n")
}

// arrive counts a request and decides its fate.
func (b *backend) arrive(id string) (fails bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if now.Sub(b.turned) > counted*time.Second {
		b.ids, b.oldIDs, b.turned = map[string]struct{}{}, b.ids, now
	}
	s := &b.seconds[now.Unix()%counted]
	if s.at != now.Unix() {
		*s = second{at: now.Unix()}
	}
	_, inNew := b.ids[id]
	_, inOld := b.oldIDs[id]
	retry := id != "" && (inNew || inOld)
	b.ids[id] = struct{}{}

	full := b.settings.Capacity > 0 && s.calls+s.retries >= b.settings.Capacity
	fails = full || rand.Float64() < b.settings.Fail //nolint:gosec // a demo's dice
	for _, c := range []*second{s, &b.totals} {
		if retry {
			c.retries++
		} else {
			c.calls++
		}
		if fails {
			c.failed++
		}
	}
	if full {
		return true, 0
	}
	return fails, b.settings.Latency
}

// counts of the last full second and since start.
type counts struct {
	CallsPerSecond   int      `json:"callsPerSecond"`
	RetriesPerSecond int      `json:"retriesPerSecond"`
	FailedPerSecond  int      `json:"failedPerSecond"`
	Calls            int      `json:"calls"`
	Retries          int      `json:"retries"`
	Failed           int      `json:"failed"`
	Settings         settings `json:"settings"`
}

func (b *backend) counts() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.now().Unix() - 1
	c := counts{Settings: b.settings, Calls: b.totals.calls, Retries: b.totals.retries, Failed: b.totals.failed}
	if s := b.seconds[last%counted]; s.at == last {
		c.CallsPerSecond, c.RetriesPerSecond, c.FailedPerSecond = s.calls, s.retries, s.failed
	}
	return c
}

func (c counts) String() string {
	capacity := "off"
	if c.Settings.Capacity > 0 {
		capacity = strconv.Itoa(c.Settings.Capacity) + "/s"
	}
	return fmt.Sprintf("calls %d/s  retries %d/s  failed %d/s   fail=%g latency=%s capacity=%s\n",
		c.CallsPerSecond, c.RetriesPerSecond, c.FailedPerSecond, c.Settings.Fail, c.Settings.Latency, capacity)
}

// turn changes the settings that the query names; on an error none.
func (b *backend) turn(query map[string][]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.settings
	for key, values := range query {
		v := values[len(values)-1]
		var err error
		switch key {
		case "fail":
			next.Fail, err = strconv.ParseFloat(v, 64)
			if err == nil && !(next.Fail >= 0 && next.Fail <= 1) {
				err = fmt.Errorf("must be from 0 to 1")
			}
		case "latency":
			next.Latency, err = time.ParseDuration(v)
			if err == nil && (next.Latency < 0 || next.Latency > time.Minute) {
				err = fmt.Errorf("must be from 0s to 1m")
			}
		case "capacity":
			next.Capacity, err = strconv.Atoi(v)
			if err == nil && next.Capacity < 0 {
				err = fmt.Errorf("must not be negative; 0 means no bound")
			}
		default:
			err = fmt.Errorf("unknown setting (fail, latency, capacity)")
		}
		if err != nil {
			return fmt.Errorf("%s=%s: %w", key, v, err)
		}
	}
	b.settings = next
	return nil
}
