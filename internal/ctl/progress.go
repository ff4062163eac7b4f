// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// goal is when a change counts as in force.
type goal struct {
	text string
	// percent of the instances it reaches; connected leaves the stale ones out.
	percent   int64
	connected bool
}

// goalFlag is connected, all or a percentage.
type goalFlag struct{ g *goal }

func connectedGoal() goal { return goal{text: "connected", percent: 100, connected: true} }

func (f *goalFlag) String() string {
	if f.g == nil {
		return ""
	}
	return f.g.text
}

func (f *goalFlag) Type() string { return "connected|95%|all" }

func (f *goalFlag) Set(s string) error {
	switch s {
	case "connected":
		*f.g = connectedGoal()
		return nil
	case "all":
		*f.g = goal{text: s, percent: 100}
		return nil
	}
	digits, ok := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || n > 100 {
		return fmt.Errorf("use connected, all, or a percentage such as 95%%")
	}
	*f.g = goal{text: s, percent: int64(n)}
	return nil
}

func (g goal) reached(p *policydv1.Progress) bool {
	if p.GetSilentPeers() > 0 {
		return false // nobody knows what is connected there
	}
	target := p.GetTarget()
	if g.connected {
		target -= p.GetStale()
	}
	return p.GetInForce()*100 >= target*g.percent
}

// lost reports whether waiting longer cannot help: all that is missing was refused.
func (g goal) lost(p *policydv1.Progress) bool {
	return !g.reached(p) && p.GetSilentPeers() == 0 && p.GetRejected() > 0 && p.GetBehind() == 0 && (g.connected || p.GetStale() == 0)
}

// outcome is how waiting ended.
type outcome struct {
	last        *policydv1.WatchProgressResponse
	reached     bool
	interrupted bool
	// err is set where policyd could not be asked to the end.
	err  error
	took time.Duration // until it was reached, or given up
}

func (o *outcome) progress() *policydv1.Progress { return o.last.GetProgress() }

// exit is nil when the goal was reached.
func (o *outcome) exit() error {
	switch {
	case o.reached:
		return nil
	case o.interrupted:
		return exitError(exitInterrupted)
	case o.progress().GetRejected() > 0:
		return exitError(exitRejected)
	}
	return exitError(exitNotInForce)
}

// await follows a change until it is in force as far as g wants, for a.global.timeout.
// Connections that break meanwhile are made again.
func (a *app) await(ctx context.Context, subject *policydv1.WatchProgressRequest, g goal, meter *meter) (*outcome, error) {
	limit, cancel := context.WithTimeout(ctx, a.global.timeout)
	defer cancel()
	start := time.Now()
	o := &outcome{}
	meter.start(ctx)
	defer meter.end()
	for {
		err := a.follow(limit, subject, func(r *policydv1.WatchProgressResponse) bool {
			o.last, o.took, o.err = r, time.Since(start), nil
			o.reached = g.reached(r.GetProgress())
			meter.update(r.GetProgress())
			return o.reached || g.lost(r.GetProgress())
		})
		switch {
		case o.reached || o.last != nil && g.lost(o.progress()):
		case ctx.Err() != nil:
			o.interrupted = true
		case limit.Err() != nil:
		default:
			var f *failure
			if errors.As(err, &f) && f.exit != exitUnavailable {
				return nil, err
			}
			o.err = err
			meter.note(ctx, "lost the connection to policyd, trying again")
			if pause(limit, 300*time.Millisecond) {
				continue
			}
			o.interrupted = ctx.Err() != nil
		}
		if !o.reached {
			o.took = time.Since(start)
		}
		return o, nil
	}
}

// follow streams progress into each until it says enough (nil) or the stream ends.
func (a *app) follow(ctx context.Context, subject *policydv1.WatchProgressRequest, each func(*policydv1.WatchProgressResponse) (enough bool)) error {
	c, err := a.connected(ctx)
	if err != nil {
		return err
	}
	// The server is not told of the deadline: it would race us to it, and its answer would
	// look like a lost connection.
	streamCtx, cancel := context.WithCancel(a.outgoing(context.WithoutCancel(ctx)))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	stream, err := c.WatchProgress(streamCtx, subject)
	if err != nil {
		return a.fromStatus(err)
	}
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return failf(exitUnavailable, "unavailable", "policyd ended the stream")
		case err != nil:
			return a.fromStatus(err)
		case each(r):
			return nil
		}
	}
}

// pause waits and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// meter shows progress on stderr: a bar on a terminal, else a line per change.
type meter struct {
	a     *app
	label string
	goal  goal // named when it is reached
	off   bool

	stop func() // ends the drawing of the bar
	last string // line that was printed last

	mu sync.Mutex // guards what the bar shows
	p  *policydv1.Progress
}

const (
	barWidth = 24
	// Work that takes less is not worth a bar.
	barAfter = 300 * time.Millisecond
	barEvery = 100 * time.Millisecond
)

func (a *app) meter(label string, g goal) *meter {
	return &meter{a: a, label: label, goal: g, off: a.global.quiet || !a.human(), stop: func() {}}
}

// start draws the bar from time to time until end.
func (m *meter) start(ctx context.Context) {
	if m.off || !m.a.err.tty {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.draw(ctx)
	}()
	m.stop = func() { cancel(); <-done }
}

func (m *meter) draw(ctx context.Context) {
	began, shown := time.Now(), false
	for wait := barAfter; pause(ctx, wait); wait = barEvery {
		m.mu.Lock()
		p := m.p
		m.mu.Unlock()
		if p == nil {
			m.a.err.printf("\r\x1b[K  waiting for policyd  %s", shortDuration(time.Since(began)))
		} else {
			m.a.err.printf("\r\x1b[K  in force  %s/%s  %s  %s", count(p.GetInForce()), count(p.GetTarget()), bar(p), shortDuration(time.Since(began)))
		}
		shown = true
	}
	if shown {
		m.a.err.printf("\r\x1b[K")
	}
}

func (m *meter) update(p *policydv1.Progress) {
	m.mu.Lock()
	m.p = p
	m.mu.Unlock()
	if m.off || m.a.err.tty {
		return
	}
	reached := m.goal.reached(p)
	line := fmt.Sprintf("%s  %s/%s in force", m.label, count(p.GetInForce()), count(p.GetTarget()))
	if line == m.last && !reached {
		return
	}
	m.last = line
	if reached {
		line += "  " + m.goal.text + " reached"
	}
	m.a.err.printf("%s\n", line)
}

func (m *meter) note(ctx context.Context, text string) {
	if m.off {
		return
	}
	m.end()
	if m.last != text {
		m.a.err.printf("%s\n", text)
	}
	m.last = text
	m.start(ctx)
}

// end takes the bar away; what counts is printed by the command.
func (m *meter) end() {
	m.stop()
	m.stop = func() {}
}

func bar(p *policydv1.Progress) string {
	full := barWidth
	if t := p.GetTarget(); t > 0 {
		full = int(p.GetInForce() * barWidth / t)
	}
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
}

// report prints where a change is in force and who is missing.
func (a *app) report(o *outcome) {
	if a.global.quiet && o.reached {
		return
	}
	p := o.progress()
	if o.last == nil {
		a.out.printf("  in force  not known: %s\n", describeLost(o))
		return
	}
	line := fmt.Sprintf("%s/%s", count(p.GetInForce()), count(p.GetTarget()))
	if p.GetTarget() == 0 {
		line = "no instance is there to see it"
	}
	a.out.printf("  in force  %s  %s\n", a.paintProgress(p, line), shortDuration(o.took))
	for _, group := range []struct {
		word  string
		n     int64
		state policydv1.InstanceState
	}{
		{"behind", p.GetBehind(), policydv1.InstanceState_INSTANCE_STATE_BEHIND},
		{"rejected", p.GetRejected(), policydv1.InstanceState_INSTANCE_STATE_REJECTED},
		{"stale", p.GetStale(), policydv1.InstanceState_INSTANCE_STATE_STALE},
	} {
		if group.n > 0 {
			a.out.printf("  %-8s  %-8s %s\n", group.word, count(group.n), a.missing(o.last.GetMissing(), group.state))
		}
	}
	if n := p.GetSilentPeers(); n > 0 {
		a.out.printf("  unknown   %s, so what is connected there is not counted\n", silence(n))
	}
	if o.err != nil {
		a.out.printf("  then      %s\n", describeLost(o))
	}
}

// silence says that n replicas of policyd do not answer.
func silence(n int64) string {
	if n == 1 {
		return "1 other policyd does not answer"
	}
	return count(n) + " other policyds do not answer"
}

func describeLost(o *outcome) string {
	if o.err != nil {
		return o.err.Error()
	}
	return "policyd did not answer in time"
}

func (a *app) paintProgress(p *policydv1.Progress, text string) string {
	if p.GetInForce() == p.GetTarget() && p.GetSilentPeers() == 0 {
		return a.out.green(text)
	}
	return a.out.yellow(text)
}

// missing names the instances in a state, a few of them.
func (a *app) missing(all []*policydv1.Instance, state policydv1.InstanceState) string {
	const most = 5
	var names []string
	note, more := "", 0
	for _, in := range all {
		if in.GetState() != state {
			continue
		}
		if len(names) == most {
			more++
			continue
		}
		names = append(names, clean(in.GetId()))
		if note == "" {
			note = a.missingNote(in)
		}
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if note != "" {
		text += " (" + note + ")"
	}
	return text
}

func (a *app) missingNote(in *policydv1.Instance) string {
	switch in.GetState() {
	case policydv1.InstanceState_INSTANCE_STATE_STALE:
		if at := in.GetLastSeen(); at != nil {
			return "last seen " + a.ago(at.AsTime()) + " ago"
		}
	case policydv1.InstanceState_INSTANCE_STATE_BEHIND:
		return fmt.Sprintf("revision %d", in.GetRevision())
	case policydv1.InstanceState_INSTANCE_STATE_REJECTED:
		if r := in.GetRejected(); len(r) > 0 {
			return clean(r[0].GetScope() + " " + r[0].GetField() + ": " + r[0].GetReason())
		}
	case policydv1.InstanceState_INSTANCE_STATE_LIVE, policydv1.InstanceState_INSTANCE_STATE_UNSPECIFIED:
	}
	return ""
}
