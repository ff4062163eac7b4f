// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
	"github.com/policyd/policyd/bench/fanout/results"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/store/etcdembed"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// scenario is a hard moment of policyd.
type scenario struct {
	name string
	run  func(r *report, system string, o options) error
}

// aloneScenario has no streams.
const aloneScenario = "start"

func scenarios() []scenario {
	return []scenario{
		{"burst", burst},
		{"switch", switchAmongEdits},
		{"reconnect", reconnect},
		{"resume", resume},
		{aloneScenario, startWithPolicies},
	}
}

func scenarioNames() []string {
	var list []string
	for _, s := range scenarios() {
		list = append(list, s.name)
	}
	return list
}

func (r *report) endure(name, system string, o options) error {
	for _, s := range scenarios() {
		if s.name == name {
			progress("%d streams, scenario %s on %s", o.Streams, name, system)
			return s.run(r, system, o)
		}
	}
	return fmt.Errorf("no scenario %q", name)
}

// burst is 100 edits back to back: how long until the last of them is everywhere.
func burst(r *report, system string, o options) error {
	b, err := setUp(system, o)
	if err != nil {
		return err
	}
	defer b.tearDown()
	var alone, last times
	var cpu time.Duration
	for range o.Rounds {
		got, err := b.change("change")
		if err != nil {
			return err
		}
		alone.add(got.Received)
		if _, err := b.settle(got); err != nil {
			return err
		}
		time.Sleep(o.pause())
		var before, after time.Duration
		if err := b.server.ask("cpu", &before); err != nil {
			return err
		}
		if got, err = b.change("burst 100"); err != nil {
			return err
		}
		if err := b.server.ask("cpu", &after); err != nil {
			return err
		}
		cpu += after - before
		last.add(got.Received)
		if _, err := b.settle(got); err != nil {
			return err
		}
		time.Sleep(o.pause())
	}
	f := results.Figure{Scenario: "burst of 100 edits", System: system, N: o.Streams}
	f.What, f.Value, f.Unit = "p99, one edit alone", median(alone.P99), "ms"
	r.Note(f, 0)
	f.What, f.Value = "p99, last edit of the burst", median(last.P99)
	r.Note(f, 0)
	f.What, f.Value, f.Unit = "server CPU of a burst, per edit and stream", float64(cpu.Microseconds())/float64(o.Rounds*o.Streams*100), "µs"
	r.Note(f, 0)
	return nil
}

// switchAmongEdits is a kill switch on its own, and while 100 edits/s go out.
func switchAmongEdits(r *report, system string, o options) error {
	b, err := setUp(system, o)
	if err != nil {
		return err
	}
	defer b.tearDown()
	switches := func(among bool) (t times, err error) {
		for range o.Rounds * 2 {
			got, err := b.change("switch")
			if err != nil {
				return t, err
			}
			t.add(got.Received)
			if among {
				// Edits wait until the switch is confirmed; the next one comes among them again.
				time.Sleep(time.Second + rand.N(time.Second))
			} else if _, err := b.settle(got); err != nil {
				return t, err
			}
			time.Sleep(o.pause())
		}
		return t, nil
	}
	alone, err := switches(false)
	if err != nil {
		return err
	}
	var on bool
	if err := b.server.ask("churn", &on); err != nil {
		return err
	}
	among, err := switches(true)
	if err != nil {
		return err
	}
	f := results.Figure{Scenario: "kill switch", System: system, N: o.Streams, Unit: "ms"}
	f.What, f.Value = "p99 alone", median(alone.P99)
	r.Note(f, 0)
	f.What, f.Value = "p99 during 100 edits/s", median(among.P99)
	r.Note(f, 0)
	f.What, f.Value, f.Unit = "ratio of the two", median(among.P99)/median(alone.P99), "×"
	r.Note(f, 1.2)
	return nil
}

// resume lets all streams come back to an unchanged policyd.
func resume(r *report, system string, o options) error {
	b, err := setUp(system, o)
	if err != nil {
		return err
	}
	defer b.tearDown()
	for _, how := range []string{"resume", "anew"} {
		var c load.Return
		if err := b.load.ask("rejoin "+how, &c); err != nil {
			return err
		}
		f := results.Figure{
			Scenario: "reconnect with nothing changed", System: system, N: o.Streams,
			What:  "bytes per stream, " + map[string]string{"resume": "resumed", "anew": "from nothing"}[how],
			Value: b.perStream(c.Bytes), Unit: "B, HTTP/2 included",
		}
		limit := 0.0
		if how == "resume" {
			limit = 200
		}
		r.Note(f, limit)
	}
	return nil
}

// policies is how many there are at the start.
const policies = 10_000

// startWithPolicies compares the start of policyd with the start of etcd on the same data.
func startWithPolicies(r *report, _ string, o options) error {
	dir, err := os.MkdirTemp("", "fanout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := starting("fill", dir, o); err != nil {
		return err
	}
	var of [2][]float64
	for range o.Turns {
		for i, what := range []string{whole, etcd} {
			took, err := starting(what, dir, o)
			if err != nil {
				return err
			}
			of[i] = append(of[i], took.Seconds())
		}
	}
	f := results.Figure{Scenario: "start with 10,000 policies", System: whole, Unit: "s"}
	f.What, f.Value = "policyd ready", median(of[0])
	r.Note(f, 0)
	f.What, f.Value = "its etcd alone", median(of[1])
	r.Note(f, 0)
	f.What, f.Value = "difference", median(of[0])-median(of[1])
	r.Note(f, 2)
	return nil
}

func starting(what, dir string, o options) (took time.Duration, err error) {
	c, err := spawn(job{Role: "start", System: what, Addr: dir, Options: o})
	if err != nil {
		return 0, err
	}
	defer c.stop()
	return took, c.ask("", &took)
}

// start fills a directory with policies, or starts policyd or its etcd on it.
func start(what, dir string) error {
	begin := time.Now()
	if what == etcd {
		s, err := etcdembed.Start(context.Background(), etcdembed.Config{Dir: dir, Logger: failures(), FastTick: true})
		if err != nil {
			return err
		}
		answer(time.Since(begin))
		return s.Close()
	}
	ctx, stop := context.WithCancel(context.Background())
	addr, ended, err := runDaemon(ctx, dir, 0)
	if err != nil {
		stop()
		return err
	}
	took := time.Since(begin)
	if what == "fill" {
		err = fill(addr)
	}
	if err == nil {
		answer(took)
	}
	stop()
	return errors.Join(err, <-ended)
}

// fill writes policies as an operator would, 100 at a time.
func fill(addr string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	admin := policydv1.NewAdminServiceClient(conn)
	const batch = 100
	for i := 0; i < policies; i += batch {
		req := &policydv1.ApplyPoliciesRequest{Via: "fanout"}
		for j := range batch {
			d := payload.Document(0, 1000)
			d.Scope = fmt.Sprintf("%s/service-%d/endpoint-%d", payload.Scope, i/batch, j)
			req.Changes = append(req.Changes, &policydv1.PolicyChange{Policy: d, ExpectedRevision: proto.Int64(0)})
		}
		if _, err := admin.ApplyPolicies(context.Background(), req); err != nil {
			return err
		}
	}
	return nil
}
