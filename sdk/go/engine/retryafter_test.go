// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestRetryAfter_vectors(t *testing.T) {
	type asked struct {
		Value string
		Asks  json.RawMessage
	}
	var vectors struct {
		scriptFile
		Now                string
		Headers, Pushbacks []asked
	}
	readVectors(t, "retry-after.json", &vectors)
	now, err := time.Parse(time.RFC1123, vectors.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range vectors.Headers {
		want := engine.ServerWait{}
		if string(h.Asks) != "null" {
			want = engine.ServerWait{Kind: engine.AskedRetryAfter, For: vectorDuration(t, h.Asks)}
		}
		if got := engine.ParseRetryAfter(h.Value, now); got != want {
			t.Errorf("Retry-After %q asks %+v, want %+v", h.Value, got, want)
		}
	}
	for _, p := range vectors.Pushbacks {
		want := engine.ServerWait{Kind: engine.AskedStop}
		if string(p.Asks) != `"stop"` {
			want = engine.ServerWait{Kind: engine.AskedPushback, For: vectorDuration(t, p.Asks)}
		}
		if got := engine.ParsePushback(p.Value); got != want {
			t.Errorf("pushback %q asks %+v, want %+v", p.Value, got, want)
		}
	}
	runCases(t, &vectors.scriptFile)
}

func retryAfterCases(t *testing.T, id string) {
	t.Helper()
	var vectors struct {
		scriptFile
		Now                string
		Headers, Pushbacks json.RawMessage
	}
	readVectors(t, "retry-after.json", &vectors)
	runCases(t, &vectors.scriptFile, id)
}

func TestO_RT_01_a_huge_wait_is_never_a_short_one(t *testing.T)  { retryAfterCases(t, "O-RT-01") }
func TestO_RT_02_more_than_the_limit_ends_the_call(t *testing.T) { retryAfterCases(t, "O-RT-02") }
func TestO_RT_03_dates_and_nonsense(t *testing.T)                { retryAfterCases(t, "O-RT-03") }
func TestO_RT_04_zero_is_not_stop(t *testing.T)                  { retryAfterCases(t, "O-RT-04") }
func TestO_RT_06_not_honoured_not_obeyed(t *testing.T)           { retryAfterCases(t, "O-RT-06") }
func TestO_RT_12_no_wait_past_the_end(t *testing.T)              { retryAfterCases(t, "O-RT-12") }
func TestO_RT_14_pushback(t *testing.T)                          { retryAfterCases(t, "O-RT-14") }

func TestO_RT_05_the_wait_is_spread_upward(t *testing.T) {
	retryAfterCases(t, "O-RT-05")
	r := newRig(t, map[engine.Field]engine.Value{
		engine.RetryAfterMax: engine.Duration(30 * time.Second), engine.BackoffMax: engine.Duration(3 * time.Second),
	})
	r.random = rand.New(rand.NewPCG(7, 8)).Uint64
	seen := map[time.Duration]bool{}
	for range 1000 {
		c := r.begin(0)
		d := c.Settle(0, engine.Outcome{
			Kind: engine.OutcomeHTTP, Code: 503,
			Server: engine.ServerWait{Kind: engine.AskedRetryAfter, For: 2 * time.Second},
		})
		if !d.Retry || d.Wait < 2*time.Second || d.Wait > 2200*time.Millisecond {
			t.Fatalf("%+v", *d)
		}
		seen[d.Wait] = true
	}
	if len(seen) < 900 {
		t.Errorf("%d different waits", len(seen))
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "120", "-1", "Wed, 21 Oct 2015 07:28:00 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", strings.Repeat("9", 40)} {
		f.Add(s)
	}
	now := time.Date(2015, 10, 21, 7, 28, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		if w := engine.ParseRetryAfter(s, now); w.For < 0 || w.Kind != engine.AskedNothing && w.Kind != engine.AskedRetryAfter {
			t.Errorf("%q asks %+v", s, w)
		}
		if w := engine.ParsePushback(s); w.For < 0 || w.Kind != engine.AskedStop && w.Kind != engine.AskedPushback {
			t.Errorf("%q pushes back %+v", s, w)
		}
	})
}
