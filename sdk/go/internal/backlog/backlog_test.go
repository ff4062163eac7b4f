// SPDX-License-Identifier: Apache-2.0

package backlog_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/backlog"
)

type span time.Duration

func (s *span) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	*s = span(d)
	return err
}

type rules struct {
	Off             bool
	MaxItems        int
	TTL, Pace, Look span
}

func (r rules) rules() backlog.Rules {
	return backlog.Rules{On: !r.Off, MaxItems: r.MaxItems, TTL: time.Duration(r.TTL), Pace: time.Duration(r.Pace), Look: time.Duration(r.Look)}
}

type step struct {
	At          span
	Add         uint64
	Sent, Joins bool
	Queued      *span
	Next        bool
	Done        string
	Asked       span
	RetryAt     span
	Shut        bool
	Remove      uint64
	Alive, Wake bool
	Rules       *rules
	Want        string
}

type vectors struct {
	Codes []struct {
		Name  string
		Code  engine.Code
		Keeps bool
	}
	Endings []struct {
		Name, Outcome, Want string
		Repeats             bool
	}
	Lanes []struct {
		Name  string
		Rules rules
		Draws []uint64
		Steps []step
	}
	Presets, Cases json.RawMessage // of package engine
}

func read(t *testing.T) (v vectors) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "spec", "vectors", "offline-queue.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestKeeps_vectors(t *testing.T) {
	named := map[engine.Code]bool{}
	for _, c := range read(t).Codes {
		named[c.Code] = true
		if got := backlog.Keeps(c.Code); got != c.Keeps {
			t.Errorf("%s: %s is kept: %v", c.Name, c.Code, got)
		}
	}
	for _, c := range engine.Codes() {
		if !named[c] {
			t.Errorf("no vector for %s", c)
		}
	}
}

var endings = map[backlog.Ending]string{backlog.Answered: "answered", backlog.Failed: "failed", backlog.Doubtful: "doubtful", backlog.Refused: "refused"}

func TestEndingOf_vectors(t *testing.T) {
	kinds := map[string]engine.Outcome{
		"ok": {}, "error": {Kind: engine.OutcomeError}, "retryable": {Kind: engine.OutcomeRetryable}, "panic": {Kind: engine.OutcomePanic},
		"permanent": {Kind: engine.OutcomePermanent}, "cancelled": {Kind: engine.OutcomeCancelled},
		"connect": {Kind: engine.OutcomeNetwork, Network: engine.NetworkConnect}, "timeout": {Kind: engine.OutcomeNetwork, Network: engine.NetworkTimeout},
	}
	for _, c := range read(t).Endings {
		o, ok := kinds[c.Outcome]
		if word, code, two := strings.Cut(c.Outcome, " "); two {
			n, err := strconv.Atoi(code)
			if err != nil {
				t.Fatal(err)
			}
			ok, o = true, engine.Outcome{Kind: engine.OutcomeHTTP, Code: n}
			if word == "grpc" {
				o.Kind = engine.OutcomeGRPC
			}
		}
		if !ok {
			t.Fatalf("outcome %q", c.Outcome)
		}
		if got := endings[backlog.EndingOf(o, c.Repeats)]; got != c.Want {
			t.Errorf("%s: %s is %s, want %s", c.Name, c.Outcome, got, c.Want)
		}
	}
}

// run is a lane that is driven by steps.
type run struct {
	t     *testing.T
	rules backlog.Rules
	lane  backlog.Lane
	draws []uint64
	drawn int
}

func (r *run) random() uint64 {
	if len(r.draws) == 0 {
		return 0
	}
	r.drawn++
	return r.draws[(r.drawn-1)%len(r.draws)] << 32
}

func TestLane_vectors(t *testing.T) {
	for _, c := range read(t).Lanes {
		t.Run(c.Name, func(t *testing.T) {
			r := &run{t: t, rules: c.Rules.rules(), draws: c.Draws}
			for i, s := range c.Steps {
				if got := r.step(&s); s.Want != "" && got != s.Want {
					t.Fatalf("step %d at %s: %s, want %s", i+1, time.Duration(s.At), got, s.Want)
				}
			}
		})
	}
}

func (r *run) step(s *step) string {
	now := engine.Instant(s.At)
	switch {
	case s.Add > 0:
		if !r.lane.Room(r.rules, 0) {
			return "full"
		}
		it := backlog.Item{ID: s.Add, Queued: now, TTL: r.rules.TTL, Sent: s.Sent}
		if s.Queued != nil {
			it.Queued = engine.Instant(*s.Queued)
		}
		r.lane.Add(r.rules, it, s.Joins, now, r.random)
		return "kept"
	case s.Next:
		return say(r.lane.Next(r.rules, now))
	case s.Done != "":
		res := backlog.Result{Asked: time.Duration(s.Asked), RetryAt: engine.Instant(s.RetryAt), Shut: s.Shut}
		for ending, word := range endings {
			if word == s.Done {
				res.Ending = ending
			}
		}
		if r.lane.Done(r.rules, res, now, r.random) {
			return "over"
		}
		return "waits"
	case s.Remove > 0:
		if r.lane.Remove(s.Remove) {
			return "removed"
		}
		return "not there"
	case s.Alive:
		r.lane.Alive(r.rules, now, r.random)
	case s.Wake:
		r.lane.Wake(now)
	case s.Rules != nil:
		r.rules = s.Rules.rules()
	default:
		r.t.Fatalf("empty step %+v", s)
	}
	return ""
}

func say(s backlog.Step) string {
	switch s.Do {
	case backlog.Rest:
		return "rest " + time.Duration(s.Until).String()
	case backlog.Expire:
		return fmt.Sprint("expire ", s.Item.ID)
	case backlog.Send:
		if s.Paid {
			return fmt.Sprint("send ", s.Item.ID, " paid")
		}
		return fmt.Sprint("send ", s.Item.ID)
	default:
		return "nothing"
	}
}

// Whatever happens: every call that was added comes out once, in the order of adding; one is
// sent at a time; sends that a joining call pays for are no more than the calls that joined;
// nothing is sent that has expired.
func TestLane_properties(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var l backlog.Lane
		r := backlog.Rules{On: true, MaxItems: 20, TTL: time.Hour, Pace: time.Second, Look: time.Second}
		var now engine.Instant
		var id, last uint64
		var sending *backlog.Item
		joined, free, in, out := 0, 0, 0, 0
		for range 2000 {
			now = now.Add(time.Duration(random.Int64N(int64(time.Minute))))
			switch random.IntN(3) {
			case 0:
				if l.Room(r, 0) {
					id++
					in++
					joins := l.Len() > 0
					if joins {
						joined++
					}
					l.Add(r, backlog.Item{ID: id, Queued: now, TTL: r.TTL, Sent: random.IntN(2) == 0}, joins, now, random.Uint64)
				} else if l.Len() < r.MaxItems {
					t.Fatalf("seed %d: full with %d", seed, l.Len())
				}
			case 1:
				s := l.Next(r, now)
				switch {
				case s.Do == backlog.Send && sending != nil:
					t.Fatalf("seed %d: two at once", seed)
				case s.Do == backlog.Send:
					if s.Item.ID <= last {
						t.Fatalf("seed %d: %d after %d", seed, s.Item.ID, last)
					}
					if now.Sub(s.Item.Queued) >= r.TTL {
						t.Fatalf("seed %d: sent after its ttl", seed)
					}
					if !s.Paid {
						free++
					}
					sending = &s.Item
				case s.Do == backlog.Expire:
					if now.Sub(s.Item.Queued) < r.TTL {
						t.Fatalf("seed %d: expired before its ttl", seed)
					}
					out++
				case s.Do == backlog.Rest && s.Until <= now:
					t.Fatalf("seed %d: rests until the past", seed)
				}
			default:
				if sending == nil {
					continue
				}
				res := backlog.Result{Ending: backlog.Ending(random.IntN(4)), Shut: random.IntN(2) == 0}
				if l.Done(r, res, now, random.Uint64) {
					out++
					last = sending.ID
				}
				sending = nil
			}
		}
		if in != out+l.Len() || free > joined {
			t.Fatalf("seed %d: %d in, %d out, %d left; %d free for %d that joined", seed, in, out, l.Len(), free, joined)
		}
	}
}
