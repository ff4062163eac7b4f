// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
	"github.com/policyd/policyd/bench/fanout/results"
)

// acceptDefault is policyd's own limit of streams per second.
const acceptDefault = 2000

// comeback is one that is under way.
type comeback struct{ results.Comeback }

// counting counts the connections that it accepts.
type counting struct {
	net.Listener
	accepted atomic.Int64
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

const (
	everyMoment = 100 * time.Millisecond
	mostMoments = 600
)

// watchSelf looks at this process for a minute.
func watchSelf(l *counting) func() []results.Moment {
	var mu sync.Mutex
	var all []results.Moment
	look := func() {
		rss, _ := statusBytes("VmRSS:") // 0 shows in the plot
		cpu, _ := cpuTime()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, results.Moment{At: time.Now().UnixNano(), Accepted: l.accepted.Load(), RSS: rss, CPU: cpu})
	}
	go func() {
		tick := time.NewTicker(everyMoment)
		defer tick.Stop()
		for range mostMoments {
			look()
			<-tick.C
		}
	}()
	return func() []results.Moment {
		mu.Lock()
		defer mu.Unlock()
		return append([]results.Moment(nil), all...)
	}
}

// spreads are how instances wait: as the SDK does, and with its random shares taken out.
var spreads = []struct{ word, title string }{{"spread", "the SDK's waits"}, {"even", "its waits, not random"}}

// reconnect kills the server and starts it again, where it was and with what it had.
func reconnect(r *report, system string, o options) error {
	o.Accept = acceptDefault
	for _, how := range spreads {
		c := comeback{results.Comeback{System: system, How: how.title, N: o.Streams}}
		if err := c.run(r, how.word, o); err != nil {
			return fmt.Errorf("%s: %w", how.title, err)
		}
		r.Comebacks = append(r.Comebacks, c.Comeback)
	}
	return nil
}

func (c *comeback) run(r *report, how string, o options) error {
	b, err := setUp(c.System, o)
	if err != nil {
		return err
	}
	defer func() { b.tearDown() }()
	var at payload.Stamp
	if err := b.server.ask("change", &at); err != nil {
		return err
	}
	got := load.Arrivals{Of: at}
	if err := b.load.ask(fmt.Sprint("arrivals ", at), &got); err != nil {
		return err
	}
	if _, err := b.settle(&got); err != nil {
		return err
	}
	o.At = at
	if err := b.server.ask("revision", &o.Revision); err != nil {
		return err
	}
	back := make(chan error, 1)
	var ret load.Return
	go func() { back <- b.load.ask("survive "+how, &ret) }()
	c.Killed = time.Now().UnixNano()
	b.server.kill()
	if b.server, err = spawn(job{Role: "server", System: c.System, Addr: b.addr, Options: o}); err != nil {
		return err
	}
	if err := b.server.ask("", &b.addr); err != nil {
		return err
	}
	if err := <-back; err != nil {
		return err
	}
	var highest int64
	if err := b.server.ask("peak", &highest); err != nil {
		return err
	}
	time.Sleep(time.Second) // what follows belongs to the picture
	if err := b.server.ask("moments", &c.Moments); err != nil {
		return err
	}
	c.InForce = ret.InForce
	c.note(r, &ret, float64(highest)/float64(b.idle.Now))
	return nil
}

func (c *comeback) note(r *report, ret *load.Return, memory float64) {
	took := float64(maxOf(c.InForce)-c.Killed) / float64(time.Second)
	within := 0.0
	if c.How == spreads[0].title {
		within = 1.5
	}
	f := results.Figure{Scenario: "server killed and started again, " + c.How, System: c.System, N: c.N}
	f.What, f.Value, f.Unit = "all in force after", took, "s"
	r.Note(f, 0)
	f.What, f.Value = "longest that one waited of its own or as asked", ret.Spread.Seconds()
	r.Note(f, 0)
	f.What, f.Value, f.Unit = "ratio of the two", took/ret.Spread.Seconds(), "×"
	r.Note(f, within)
	f.What, f.Value, f.Unit = "attempts that found nobody", float64(ret.Failed), ""
	r.Note(f, 0)
	f.What, f.Value = "streams refused for now", float64(ret.Refused)
	r.Note(f, 0)
	f.What, f.Value, f.Unit = "most connections accepted in 0.1 s", c.MostAccepted(), ""
	r.Note(f, 0)
	f.What, f.Value, f.Unit = "highest RSS of the server ÷ steady", memory, "×"
	r.Note(f, within)
}

func maxOf(all []int64) (most int64) {
	for _, v := range all {
		most = max(most, v)
	}
	return most
}
