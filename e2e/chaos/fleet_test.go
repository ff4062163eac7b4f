// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
)

// event is one line of the history of an instance.
type event struct {
	Instance int
	At       int64 // nanoseconds since 1970
	// open, closed: a connection. hello: what the SDK holds. ack, rejected, mismatch: what it
	// confirms, confirms in part, cannot use. older, unfit, unreadable: a message of policyd.
	// snapshot, switch: content of one. policy: the SDK says what is in force. on, off: it
	// says so of a switch. start: the process began. answer: to a question.
	Kind     string
	Epoch    string
	Revision int64
	Hash     uint64
	// HasHash: Hash is that of the state confirmed; Folded: it was computed from all that was
	// sent, not taken from the message.
	HasHash, Folded bool
	Ends            int64 // of a switch; 0 once it ended
	Count           int
	Text            string
	Values          map[string]int64 // of an answer: backoff.base by endpoint
	On              []string         // of an answer: switches in force

	n int // counts the events of the instance, from 1
}

func (e event) String() string {
	s := fmt.Sprintf("%s %-8s", time.Unix(0, e.At).UTC().Format("15:04:05.000"), e.Kind)
	if e.Epoch != "" || e.Revision != 0 {
		s += fmt.Sprintf(" epoch %.6s rev %d", e.Epoch, e.Revision)
	}
	if e.Hash != 0 {
		s += fmt.Sprintf(" hash %016x", e.Hash)
	}
	if e.Ends != 0 {
		s += " ends " + time.Unix(0, e.Ends).UTC().Format("15:04:05.000")
	}
	if e.Count != 0 {
		s += fmt.Sprintf(" count %d", e.Count)
	}
	return s + " " + e.Text
}

// fleetConfig is what a fleet process is told on its standard input.
type fleetConfig struct {
	First, Count int
	// Addrs of policyd, separated by commas.
	Addrs string
	// Targets of each group of instances; instance i is of group i modulo their number.
	Targets [][]string
	Cache   string
	Watched []string // endpoints whose effective policy is asked for
}

// question asks a fleet process for what is in force in all of its instances, or for its size,
// or has it step its clock.
type question struct {
	Size bool
	Step time.Duration
}

// cached reports whether an instance keeps a disk cache; every other one of them cannot
// write it, as with a full disk.
func cached(i int) (keeps, broken bool) { return i%4 == 0, i%8 == 4 }

// runFleet is the main function of a fleet process: SDK clients in one process that tell all
// they see on standard output, until standard input ends.
func runFleet(in io.Reader, out io.Writer) error {
	commands := gob.NewDecoder(in)
	var cfg fleetConfig
	if err := commands.Decode(&cfg); err != nil {
		return err
	}
	t := newTeller(out)
	clients := make([]*policyd.Client, cfg.Count)
	for i := range clients {
		client, err := newInstance(cfg, cfg.First+i, t)
		if err != nil {
			return err
		}
		clients[i] = client
		defer client.Close(context.Background())
		// Endpoints in use are what a revision must reach before it is confirmed.
		for _, name := range cfg.Watched[:3] {
			_, _ = policyd.Do(context.Background(), name, func(context.Context) (int, error) { return 0, nil }, policyd.Using(client))
		}
	}
	for {
		var q question
		if err := commands.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if q.Step != 0 {
			stepClock(q.Step)
			t.stepped.Store(int64(q.Step))
			continue
		}
		if q.Size {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			t.tell(event{Kind: "size", Instance: cfg.First, Count: runtime.NumGoroutine(), Revision: int64(m.HeapAlloc)})
			continue
		}
		for i, client := range clients {
			t.tell(answer(client, cfg, cfg.First+i))
		}
	}
}

func newInstance(cfg fleetConfig, i int, t *teller) (*policyd.Client, error) {
	tell := func(e event) { e.Instance = i; t.tell(e) }
	tell(event{Kind: "start"})
	dir := ""
	if keeps, broken := cached(i); broken {
		dir = filepath.Join(os.DevNull, "cache")
	} else if keeps {
		dir = filepath.Join(cfg.Cache, fmt.Sprint(i))
	}
	return policyd.New(
		policyd.WithAddr(cfg.Addrs), policyd.WithService("fleet", fmt.Sprintf("s%d", i%10)),
		policyd.WithInstance(instanceName(i)), policyd.WithTargets(cfg.Targets[i%len(cfg.Targets)]...),
		policyd.WithCacheDir(dir), policyd.WithTransportCredentials(newTap(&ear{tell: tell})),
		policyd.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)).With("instance", i)),
		policyd.WithHooks(policyd.Hooks{
			OnPolicy: func(e policyd.PolicyEvent) { tell(event{Kind: "policy", Revision: e.Revision}) },
			OnSwitch: func(s policyd.Switch, on bool) {
				kind := "off"
				if on {
					kind = "on"
				}
				tell(event{Kind: kind, Text: s.ID, Ends: t.moment(s.ExpiresAt).UnixNano()})
			},
		}))
}

func instanceName(i int) string { return fmt.Sprintf("i%03d", i) }

func answer(c *policyd.Client, cfg fleetConfig, i int) event {
	status := c.Status()
	e := event{Kind: "answer", Instance: i, Revision: status.Offered, Text: string(status.State), Values: map[string]int64{}}
	for _, name := range cfg.Watched {
		if v, ok := c.Effective(name).Values["backoff.base"].Value.(time.Duration); ok {
			e.Values[name] = int64(v)
		}
	}
	for _, sw := range status.Switches {
		e.On = append(e.On, sw.ID)
	}
	return e
}

// teller writes events in order. Many are told at once, so that the pipe is flushed by a
// goroutine of its own.
type teller struct {
	mu    sync.Mutex
	out   *bufio.Writer
	gob   *gob.Encoder
	dirty chan struct{}
	start time.Time
	// stepped is the last step of the clock.
	stepped atomic.Int64
}

// moment returns a near time of the SDK on the clock of the test, whatever was done to that of
// this process.
func (t *teller) moment(at time.Time) time.Time {
	left := time.Until(at)
	if left.Abs() > 5*time.Minute { // no switch is that long: the clock was stepped since the SDK read it
		left += time.Duration(t.stepped.Load())
	}
	return t.now().Add(left)
}

// now is the time of day as it was at the start, and what has passed since.
func (t *teller) now() time.Time { return t.start.Add(time.Since(t.start)) }

func newTeller(out io.Writer) *teller {
	t := &teller{out: bufio.NewWriterSize(out, 1<<16), dirty: make(chan struct{}, 1), start: time.Now()}
	t.gob = gob.NewEncoder(t.out)
	go func() {
		for range t.dirty {
			t.mu.Lock()
			_ = t.out.Flush() // who listened is gone: so is this process, soon
			t.mu.Unlock()
		}
	}()
	return t
}

func (t *teller) tell(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.At = t.now().UnixNano()
	_ = t.gob.Encode(e)
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}
