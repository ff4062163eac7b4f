// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// step is one fault of a schedule: it is made, held, and undone.
type step struct {
	fault string
	a, b  int // whom it strikes
	how   condition
	hold  time.Duration
	rest  time.Duration // before the next one of the lane
}

func (s step) String() string {
	return fmt.Sprintf("%s(%d,%d,%s) for %v, then %v", s.fault, s.a, s.b, []string{"passing", "silent", "refusing", "crawling"}[s.how], s.hold, s.rest)
}

// lanes are faults that do not strike at once: those of one lane follow each other.
func lanes() [][]string {
	return [][]string{
		{
			"kill a member", "kill the leader", "stop a member", "cut off a member", "kill a majority",
			"compact", "defragment", "fill up", "restore", "put back",
		},
		{
			"kill a policyd", "end a policyd", "stop a policyd", "cut a policyd from one member", "cut a policyd from etcd",
			"kill every policyd",
		},
		{
			"cut a fleet from a policyd", "cut a fleet from every policyd", "slow readers", "truncate", "truncate", "stop a fleet", "kill a fleet",
		},
		{"step a clock"},
	}
}

// schedule is what a seed makes of the faults of a lane: every one before any comes again. A
// restore, which matters most, comes early: a slow machine may not get through all.
func schedule(rng *rand.Rand, faults []string, total, longest time.Duration) []step {
	var steps []step
	var at time.Duration
	for at < total {
		deck := append([]string(nil), faults...)
		rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		if i := slices.Index(deck, "restore"); i >= 0 && at == 0 {
			k := slices.Index(deck, "put back")
			if rng.IntN(2) == 0 {
				i = k
			}
			j := 1 + rng.IntN(2)
			deck[i], deck[j] = deck[j], deck[i]
		}
		for _, fault := range deck {
			s := step{
				fault: fault, a: rng.IntN(12), b: rng.IntN(12), how: silent + condition(rng.IntN(2)),
				hold: 200*time.Millisecond + time.Duration(rng.Int64N(int64(longest))),
				rest: time.Duration(rng.Int64N(int64(longest))),
			}
			steps = append(steps, s)
			if at += s.hold + s.rest; at >= total {
				break
			}
		}
	}
	return steps
}

// breaker makes faults in a world.
type breaker struct {
	w *world
	o *operator
	// snapshot is the path of the one that a restore goes back to.
	snapshot string

	mu    sync.Mutex
	stops [][2]time.Time // when fleets were stopped; guarded by mu
}

// stopped returns when fleets were stopped.
func (b *breaker) stopped() [][2]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.stops)
}

// lane makes the faults of one lane until ctx ends; every fault is undone.
func (b *breaker) lane(ctx context.Context, name string, steps []step) {
	for _, s := range steps {
		if ctx.Err() != nil {
			return
		}
		b.w.t.Logf("%s lane %s: %s", time.Now().UTC().Format("15:04:05.000"), name, s)
		undo, err := b.make(s)
		if err != nil {
			b.w.t.Errorf("%s: %v", s, err)
		}
		wait(ctx, s.hold)
		if undo != nil {
			undo()
		}
		wait(ctx, s.rest)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (b *breaker) make(s step) (undo func(), err error) {
	w := b.w
	m, p, f := s.a%members, s.a%replicas, s.a%fleets
	kill := func(victims ...*process) func() {
		for _, v := range victims {
			v.kill()
		}
		return func() {
			for _, v := range victims {
				if err := v.start(); err != nil {
					w.t.Error(err)
				}
			}
		}
	}
	stop := func(v *process) func() {
		v.signal(syscall.SIGSTOP)
		return func() { v.signal(syscall.SIGCONT) }
	}
	cut := func(how condition, links ...*link) func() {
		for _, l := range links {
			l.set(how)
		}
		return func() {
			for _, l := range links {
				l.set(passing)
			}
		}
	}
	switch s.fault {
	case "kill a member":
		return kill(w.etcds[m]), nil
	case "kill the leader":
		return kill(w.etcds[w.leader(m)]), nil
	case "kill a majority":
		return kill(w.etcds[m], w.etcds[(m+1)%members]), nil
	case "stop a member":
		return stop(w.etcds[m]), nil
	case "cut off a member":
		return b.isolate(m, s.how), nil
	case "compact":
		return nil, b.compact()
	case "defragment":
		return nil, b.defragment()
	case "fill up":
		return b.fill()
	case "restore":
		return nil, b.restore(true)
	case "put back":
		return nil, b.restore(false)
	case "kill a policyd":
		return kill(w.policyds[p]), nil
	case "kill every policyd":
		return kill(w.policyds...), nil
	case "end a policyd":
		if !w.policyds[p].finish(15 * time.Second) {
			w.t.Errorf("%s: policyd %d did not within 15s", ruleShutdown, p)
		}
		return kill(w.policyds[p]), nil
	case "stop a policyd":
		return stop(w.policyds[p]), nil
	case "cut a policyd from one member":
		return cut(s.how, w.stores[p][s.b%members]), nil
	case "cut a policyd from etcd":
		return cut(s.how, w.stores[p]...), nil
	case "cut a fleet from a policyd":
		return cut(s.how, w.watches[f][s.b%replicas]), nil
	case "cut a fleet from every policyd":
		return cut(s.how, w.watches[f]...), nil
	case "slow readers":
		return cut(crawling, w.watches[f]...), nil
	case "truncate":
		for _, l := range w.watches[f] {
			l.cut(1 + (s.b*37)%300)
		}
		return nil, nil
	case "stop a fleet":
		from, undo := time.Now(), stop(w.fleet[f])
		return func() {
			undo()
			b.mu.Lock()
			defer b.mu.Unlock()
			b.stops = append(b.stops, [2]time.Time{from, time.Now()})
		}, nil
	case "kill a fleet":
		return kill(w.fleet[f]), nil
	case "step a clock":
		// To and fro by up to ten hours.
		w.question(f, question{Step: time.Duration(s.a*12+s.b-71) * 500 * time.Second})
		return nil, nil
	}
	return nil, errors.New("unknown fault")
}

func (w *world) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	got, err := w.etcd.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return got.Members, nil
}

// leader returns the index of the leader, or another if there is none.
func (w *world) leader(other int) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for i, endpoint := range w.direct {
		if got, err := w.etcd.Status(ctx, endpoint); err == nil && got.Leader == got.Header.GetMemberId() {
			return i
		}
	}
	return other
}

// isolate cuts a member off from the others; policyd still reaches it.
func (b *breaker) isolate(m int, how condition) func() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	all, err := b.w.members(ctx)
	if err != nil {
		return nil // no quorum at the moment: there is nothing to cut
	}
	own := ""
	for _, member := range all {
		if member.Name == b.w.member(m) {
			own = fmt.Sprintf("%x", member.ID)
		}
	}
	set := func(how condition) {
		b.w.peers[m].set(how)
		for i, l := range b.w.peers {
			if i != m {
				l.setPeer(own, how)
			}
		}
	}
	set(how)
	return func() { set(passing) }
}

// compact forgets what the record knows already.
func (b *breaker) compact() error {
	r := b.w.record
	r.mu.Lock()
	l := r.lives[len(r.lives)-1]
	at := l.seen
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := b.w.etcd.Compact(ctx, at, clientv3.WithCompactPhysical()); err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "compacted") {
		b.w.t.Logf("compact at %d: %v", at, err)
	}
	return nil
}

func (b *breaker) defragment() error {
	for _, endpoint := range b.w.direct {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err := b.w.etcd.Defragment(ctx, endpoint); err != nil {
			b.w.t.Logf("defragment %s: %v", endpoint, err)
		}
		cancel()
	}
	return nil
}

// fill writes until etcd has no space; undone, there is space again.
func (b *breaker) fill() (func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	full := false
	junk := strings.Repeat("x", 1<<20)
	for i := 0; i < 3*quotaBytes>>20 && !full && ctx.Err() == nil; i++ {
		_, err := b.w.etcd.Put(ctx, fmt.Sprintf("/junk/%d", i), junk)
		full = err != nil && strings.Contains(err.Error(), "space")
	}
	if !full {
		b.w.t.Log("etcd did not fill up in time")
	}
	return b.empty, nil
}

// empty makes space as the hint of policyd says: compact, defragment, disarm.
func (b *breaker) empty() {
	b.w.await("etcd has space again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := b.w.etcd.Delete(ctx, "/junk/", clientv3.WithPrefix()); err != nil {
			return false
		}
		_ = b.compact()
		_ = b.defragment()
		_, err := b.w.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		if err != nil {
			return false
		}
		_, err = b.w.etcd.Put(ctx, "/junk/last", "x")
		return err == nil
	})
}

// restore goes back to the snapshot before the last, as an operator does after the loss of
// the data: every member gets the old data, in a cluster of a new name or, as happens when
// the name is left at its default, in one that cannot be told from the old one.
func (b *breaker) restore(renamed bool) error {
	w := b.w
	if b.snapshot == "" {
		return b.save()
	}
	b.o.pause.Lock()
	defer b.o.pause.Unlock()
	// The record must hold what was acknowledged.
	w.sync()
	for _, p := range w.etcds {
		p.kill()
	}
	w.follow()
	if w.lives.Add(1); renamed {
		w.names.Add(1)
	}
	for i := range members {
		out, err := exec.Command(filepath.Join(etcdBin, "etcdutl"), "snapshot", "restore", b.snapshot, "--name", w.member(i),
			"--initial-cluster", w.initial(), "--initial-cluster-token", w.token(),
			"--initial-advertise-peer-urls", "http://"+w.peers[i].addr(), "--data-dir", w.data(i)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("etcdutl: %w: %s", err, out)
		}
	}
	for i, p := range w.etcds {
		_ = os.RemoveAll(w.dataOf(i, w.lives.Load()-1))
		if err := p.start(); err != nil {
			return err
		}
	}
	w.await("etcd has a leader after the restore", w.quorum)
	w.read()
	return b.save()
}

// save takes a snapshot for the next restore.
func (b *breaker) save() error {
	path := filepath.Join(b.w.dir, fmt.Sprintf("snapshot-%d.db", time.Now().UnixNano()))
	var err error
	for i := range members {
		if err = download(b.w.direct[i], path); err == nil {
			b.snapshot = path
			return nil
		}
	}
	return fmt.Errorf("snapshot: %w", err)
}

// download takes the snapshot of one member.
func download(endpoint, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	got, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return err
	}
	defer got.Snapshot.Close()
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = out.ReadFrom(got.Snapshot)
	return err
}

// heal undoes whatever may be left of faults.
func (w *world) heal() error {
	for _, l := range w.links() {
		l.restore()
	}
	var all []*process
	for _, group := range [][]*process{w.etcds, w.policyds, w.fleet} {
		all = append(all, group...)
	}
	for _, p := range all {
		p.signal(syscall.SIGCONT)
		if p.ended() {
			return fmt.Errorf("%s ended by itself; see %s", p.name, p.log)
		}
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) links() []*link {
	all := append([]*link(nil), w.peers...)
	for _, some := range append(append([][]*link{}, w.stores...), w.watches...) {
		all = append(all, some...)
	}
	return all
}
