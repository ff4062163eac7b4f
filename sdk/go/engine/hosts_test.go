// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

func TestBreaker_per_host_vectors(t *testing.T) { runScripts(t, "breaker-host.json") }

func perHost(t *testing.T) *rig {
	t.Helper()
	return newRig(t, map[engine.Field]engine.Value{
		engine.BreakerPer: engine.Enum("host"), engine.BreakerConsecutiveEnabled: engine.Bool(true),
		engine.BreakerConsecutiveFailures: engine.Int(1), engine.BreakerConsecutiveOpenFor: engine.Duration(5 * time.Second),
		engine.BreakerHalfOpenProbes: engine.Int(1), engine.BreakerHalfOpenCloseAfter: engine.Int(1),
	})
}

// changes writes a chain of changes.
func changes(ch *engine.BreakerChange) string {
	var all []string
	for ; ch != nil; ch = ch.Next {
		all = append(all, fmt.Sprintf("%s:%s>%s", ch.Host, ch.From, ch.To))
	}
	return strings.Join(all, " ")
}

func TestBreaker_per_host_changes_are_told_once_each_with_its_host(t *testing.T) {
	r := perHost(t)
	fail := func(host string, at time.Duration) string {
		var c engine.Call
		d := r.Begin(&c, engine.Instant(at), engine.CallOptions{Host: host})
		if said := changes(d.Breaker); said != "" {
			t.Errorf("told %q at the start", said)
		}
		return changes(c.Settle(engine.Instant(at), fails).Breaker)
	}
	if got := fail("a", 0); got != "a:closed>open" {
		t.Errorf("told %q", got)
	}
	if got := fail("b", time.Second); got != "b:closed>open" {
		t.Errorf("told %q", got)
	}
	sw := engine.Compose([]engine.Switch{{ID: "ks-1", Action: engine.ForceOpen, Scope: engine.Global, Percent: 100, Ends: rigOrigin.Add(4 * time.Second)}}, "a/b/c", engine.Standard, "i")
	if got := changes(r.Reload(&r.policy, sw, engine.ModeEnforce, engine.Instant(2*time.Second))); got != ":closed>forced-open" {
		t.Errorf("told %q", got)
	}
	s := r.Stats(engine.Instant(6 * time.Second))
	if got := changes(s.Change); got != "a:open>half-open b:open>half-open :forced-open>closed" {
		t.Errorf("told %q", got)
	}
	s = r.Stats(engine.Instant(6 * time.Second))
	if got := changes(s.Change); got != "" {
		t.Errorf("told again %q", got)
	}
	off := r.policy
	off.Breaker.Enabled = false
	if got := changes(r.Reload(&off, engine.Overlay{}, engine.ModeEnforce, engine.Instant(7*time.Second))); got != "a:half-open>closed b:half-open>closed" {
		t.Errorf("told %q", got)
	}
}

func TestBreaker_per_host_opened_by_hand_is_open_for_every_host(t *testing.T) {
	r := perHost(t)
	for _, host := range []string{"a", ""} {
		var c engine.Call
		r.Begin(&c, 0, engine.CallOptions{Host: host})
		c.Settle(0, succeeds)
	}
	ch, ok := r.Open(0, engine.Instant(time.Minute))
	if got := strings.Fields(changes(ch)); !ok || !slices.Contains(got, "a:closed>open") || !slices.Contains(got, ":closed>open") {
		t.Errorf("told %v, %v", got, ok)
	}
	for _, host := range []string{"a", "", "new"} {
		var c engine.Call
		if d := r.Begin(&c, engine.Instant(time.Minute-1), engine.CallOptions{Host: host}); d.Code != engine.CodeBreaker || d.RetryAt != engine.Instant(time.Minute) {
			t.Errorf("%q: %+v", host, *d)
		}
	}
}

// Hosts come and go while calls to them are under way: the bound holds, no attempt counts
// for another host's breaker, no probe slot is lost.
func TestBreaker_per_host_under_many_hosts_at_once(t *testing.T) {
	r := perHost(t)
	r.random = func() uint64 { return 7 }
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range 3000 {
				var c engine.Call
				host := fmt.Sprint("bad-", g, "-", i)
				if i%3 > 0 {
					host = fmt.Sprint("good-", i%100)
				}
				if !r.Begin(&c, engine.Instant(i), engine.CallOptions{Host: host}).Proceed {
					t.Errorf("%s refused", host)
				}
				o := succeeds
				if i%3 == 0 {
					o = fails
				}
				c.Settle(engine.Instant(i), o)
				if c.Host() != host {
					t.Errorf("%s became %s", host, c.Host())
				}
			}
		})
	}
	wait.Wait()
	s := r.Stats(engine.Instant(time.Second))
	if len(s.Hosts) > 1000 || len(s.Hosts) < 900 || s.Breaker.State != engine.BreakerOpen {
		t.Errorf("%d hosts are not closed, %s", len(s.Hosts), s.Breaker.State)
	}
	for _, h := range s.Hosts {
		if strings.HasPrefix(h.Host, "good") {
			t.Errorf("%s is %s", h.Host, h.State)
		}
	}
}
