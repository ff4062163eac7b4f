// SPDX-License-Identifier: Apache-2.0

package ctl_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// eventually waits for what another goroutine does; how long it takes is not tested.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 20*time.Second, 5*time.Millisecond, what)
}

// background is a run of policyctl that goes on until it is stopped.
type background struct {
	out, err *screen
	stop     context.CancelFunc
	code     chan int
}

func start(t *testing.T, h *house, o options, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{out: &screen{tty: o.tty}, err: &screen{tty: o.tty}, stop: cancel, code: make(chan int, 1)}
	o.ctx = ctx
	go func() { b.code <- runTo(t, h, o, b.out, b.err, args...) }()
	t.Cleanup(cancel)
	return b
}

type event struct {
	Type     string
	Revision int64
	Object   struct {
		Metadata struct{ Name string }
		Status   struct{ Phase string }
	}
}

func (b *background) events(t *testing.T) []event {
	t.Helper()
	var all []event
	for line := range strings.Lines(b.out.String()) {
		if !strings.HasSuffix(line, "\n") {
			break // still being written
		}
		var e event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		all = append(all, e)
	}
	return all
}

func TestWatch_prints_events_and_survives_policyd_going_away(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--id", "one", "--reason", "x", "--yes", "-q")
	b := start(t, h, options{}, "switch", "list", "-w", "-o", "jsonl")
	has := func(kind, name string) func() bool {
		return func() bool {
			for _, e := range b.events(t) {
				if e.Type == kind && e.Object.Metadata.Name == name {
					return true
				}
			}
			return false
		}
	}
	eventually(t, "what is there is added", has("added", "one"))
	eventually(t, "then comes a bookmark", has("bookmark", ""))
	must(t, h, 0, "switch", "extend", "one", "--for", "10m", "-q")
	eventually(t, "an extension is a change", has("changed", "one"))

	h.stop()
	eventually(t, "the loss is said", func() bool { return strings.Contains(b.err.String(), "trying again") })
	h.start(t, h.addr)
	must(t, h, 0, "switch", "force-open", "shop/payments", "--id", "two", "--reason", "x", "--yes", "-q")
	eventually(t, "the new one is added", has("added", "two"))
	require.Contains(t, b.err.String(), "connected again")

	b.stop()
	require.Equal(t, 130, <-b.code)
}

func TestWatch_prints_lines_where_there_is_no_terminal_and_redraws_where_there_is(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	lines := start(t, h, options{}, "fleet", "-w")
	eventually(t, "the table comes first", func() bool { return strings.Contains(lines.out.String(), "checkout-2") })
	screen := start(t, h, options{tty: true}, "fleet", "-w")
	eventually(t, "the table is drawn", func() bool { return strings.Contains(screen.out.String(), "checkout-2") })
	status := start(t, h, options{tty: true}, "status", "-w")
	eventually(t, "the status is drawn", func() bool { return strings.Contains(status.out.String(), "4 of 4 in force") })

	h.set("cart-2", "stale", "")
	eventually(t, "one line for the change", func() bool { return strings.Contains(lines.out.String(), "changed  cart-2") })
	eventually(t, "drawn again", func() bool { return strings.Contains(screen.out.String(), "stale") })
	require.NotContains(t, lines.out.String(), "\x1b[")
	require.Contains(t, screen.out.String(), "\x1b[2J")

	h.stop()
	eventually(t, "age of the data", func() bool { return strings.Contains(screen.out.String(), " ago: cannot reach policyd") })
	for _, b := range []*background{lines, screen, status} {
		b.stop()
		require.Equal(t, 130, <-b.code)
	}
}

func TestSwitch_waits_through_a_restart_of_policyd(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.set("cart-1", "behind", "")
	b := start(t, h, options{}, "switch", "disable-retries", "shop/payments", "--id", "one", "--reason", "x", "--yes", "--timeout", "60s")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "3/4 in force") })
	h.stop()
	eventually(t, "it says so", func() bool { return strings.Contains(b.err.String(), "lost the connection") })
	h.start(t, h.addr)
	h.set("cart-1", "live", "")
	require.Zero(t, <-b.code, b.err.String())
	require.Contains(t, b.out.String(), "in force  4/4")
}

func TestSwitch_interrupted_while_waiting_stays_on(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.set("cart-1", "behind", "")
	b := start(t, h, options{}, "switch", "disable-retries", "shop/payments", "--id", "one", "--reason", "x", "--yes", "--timeout", "60s")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "3/4 in force") })
	b.stop()
	require.Equal(t, 130, <-b.code)
	require.Contains(t, b.err.String(), "the switch is on and stays on")
	require.Contains(t, b.out.String(), "Revert  policyctl switch revert one")
	require.Len(t, h.store.View().Switches, 1)
}

func TestApply_interrupted_while_waiting_says_what_is_saved(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.set("cart-1", "behind", "")
	b := start(t, h, options{}, "apply", "-f", write(t, document("shop", "{maxAttempts: 2}")), "--yes", "--timeout", "60s")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "3/4 in force") })
	b.stop()
	require.Equal(t, 130, <-b.code)
	require.Contains(t, b.err.String(), "revision 2 is saved and stays so")
}

func TestPrompts_on_a_terminal(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		typed string
		args  []string
		code  int
		asks  string
		on    int // switches or policies there afterwards
	}{
		"yes switches on":              {"y\n", []string{"switch", "disable-retries", "shop/payments", "--reason", "x", "--no-wait"}, 0, "Switch on? [y/N]", 1},
		"nothing typed is no":          {"\n", []string{"switch", "disable-retries", "shop/payments", "--reason", "x"}, 1, "Switch on? [y/N]", 0},
		"end of input is no":           {"", []string{"switch", "disable-retries", "shop/payments", "--reason", "x"}, 1, "Switch on? [y/N]", 0},
		"a namespace is typed":         {"shop\n", []string{"switch", "disable-retries", "shop", "--reason", "x", "--yes", "--no-wait"}, 0, "Type shop to go on:", 1},
		"a namespace typed wrong":      {"y\n", []string{"switch", "disable-retries", "shop", "--reason", "x", "--yes"}, 1, "Type shop to go on:", 0},
		"global is typed":              {"global\n", []string{"switch", "disable-retries", "global", "--reason", "x", "--incident", "INC-1", "--no-wait"}, 0, "Type global to go on:", 1},
		"global needs an incident":     {"global\n", []string{"switch", "disable-retries", "global", "--reason", "x"}, 2, "", 0},
		"the reason is asked for":      {"why not\n", []string{"switch", "disable-retries", "shop/payments", "--yes", "--no-wait"}, 0, "Reason:", 1},
		"no input although a terminal": {"y\n", []string{"switch", "disable-retries", "shop/payments", "--reason", "x", "--no-input"}, 2, "add --yes", 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			r := run(t, h, options{tty: true, stdin: tc.typed}, tc.args...)
			require.Equal(t, tc.code, r.code, r.err)
			require.Contains(t, r.err, tc.asks)
			require.Len(t, h.store.View().Switches, tc.on)
		})
	}
}

func TestPrompts_for_deleting(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "apply", "-f", write(t, document("shop", "{maxAttempts: 2}")), "--yes")
	r := run(t, h, options{tty: true, stdin: "no\n"}, "delete", "policy", "shop")
	require.Equal(t, 1, r.code)
	require.Equal(t, 1, h.policies())
	r = run(t, h, options{tty: true, stdin: "shop\n"}, "delete", "policy", "shop")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "1 of the 1 policies of shop")
	require.Zero(t, h.policies())
}

func TestMeter_is_a_bar_on_a_terminal(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.set("cart-1", "behind", "")
	b := start(t, h, options{tty: true}, "switch", "disable-retries", "shop/payments", "--id", "one", "--reason", "x", "--yes", "--timeout", "60s")
	eventually(t, "the bar", func() bool { return strings.Contains(b.err.String(), "█") })
	h.set("cart-1", "live", "")
	require.Zero(t, <-b.code)
	require.True(t, strings.HasSuffix(b.err.String(), "\r\x1b[K"), "the bar is taken away")
}

func TestColour_only_where_it_is_wanted(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	cases := map[string]struct {
		tty  bool
		env  map[string]string
		args []string
		want bool
	}{
		"a terminal":             {true, map[string]string{"NO_COLOR": ""}, nil, true},
		"a pipe":                 {false, map[string]string{"NO_COLOR": ""}, nil, false},
		"NO_COLOR":               {true, map[string]string{"NO_COLOR": "1"}, nil, false},
		"TERM=dumb":              {true, map[string]string{"NO_COLOR": "", "TERM": "dumb"}, nil, false},
		"--no-color":             {true, map[string]string{"NO_COLOR": ""}, []string{"--no-color"}, false},
		"--color always":         {false, map[string]string{"NO_COLOR": "1"}, []string{"--color", "always"}, true},
		"CLICOLOR_FORCE":         {false, map[string]string{"NO_COLOR": "", "CLICOLOR_FORCE": "1"}, nil, true},
		"NO_COLOR wins of FORCE": {false, map[string]string{"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, nil, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := run(t, h, options{tty: tc.tty, env: tc.env}, append([]string{"fleet"}, tc.args...)...)
			require.Zero(t, r.code, r.err)
			require.Equal(t, tc.want, strings.Contains(r.stdout, "\x1b["), r.stdout)
		})
	}
}

func TestCompletion_offers_scopes_level_by_level_and_ids(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "apply", "-f", write(t, document("shop", "{maxAttempts: 2}")+"---\n"+document("shop/payments/charges.create", "{maxAttempts: 2}")), "--yes")
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--id", "one", "--reason", "x", "--yes")
	complete := func(args ...string) []string {
		r := run(t, h, options{}, append([]string{"__complete"}, args...)...)
		require.Zero(t, r.code, r.err)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		return lines[:len(lines)-1] // the last is the directive
	}
	require.Equal(t, []string{"shop", "shop/"}, complete("effective", "s"))
	require.Equal(t, []string{"shop/payments", "shop/payments/"}, complete("effective", "shop/"))
	require.Equal(t, []string{"shop/payments/charges.create"}, complete("effective", "shop/payments/"))
	require.Contains(t, complete("switch", "revert", "")[0], "one\tdisable-retries shop/payments, ")
	require.Contains(t, complete("instance", "show", ""), "cart-1\tshop/cart, live")
	require.Contains(t, complete("explain", "policy.budget."), "policy.budget.ratio")
	require.Equal(t, []string{"live", "behind", "rejected", "stale"}, complete("fleet", "--state", ""))
	require.Contains(t, complete("switch", ""), "force-open\tHold breakers open: calls are refused")

	h.stop()
	require.Equal(t, []string{"global"}, complete("effective", "g"), "without policyd static words, no error text")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, must(t, h, 0, "completion", shell).stdout, "policyctl")
	}
}

func TestCompletion_gives_up_on_a_policyd_that_does_not_answer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	r := run(t, nil, options{env: map[string]string{"POLICYCTL_ADDR": listener.Addr().String()}}, "__complete", "effective", "")
	require.Zero(t, r.code)
	require.True(t, strings.HasPrefix(r.stdout, "global\n"), r.stdout)
}

func TestStatus_of_a_policyd_that_does_not_answer_ends(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	r := run(t, nil, options{env: map[string]string{"POLICYCTL_ADDR": listener.Addr().String()}}, "status", "--timeout", "500ms")
	require.Equal(t, 8, r.code, r.err)
	require.Contains(t, r.err, "Nothing was changed")
}

func TestVerbose_prints_each_request(t *testing.T) {
	t.Parallel()
	r := must(t, newHouse(t), 0, "status", "-v", "--request-id", "abc")
	require.Regexp(t, `GetStatus OK \d+`, r.err)
}

func TestStatus_shows_a_stale_store(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.store.SetStale(true)
	require.Contains(t, must(t, h, 0, "status").stdout, "STORE      no quorum")
}

func TestUntil_is_a_time_of_day_or_a_moment(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	soon := time.Now().UTC().Add(90 * time.Minute)
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--id", "a", "--until", soon.Format("15:04"), "--reason", "x", "--yes")
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--id", "b", "--until", soon.Format(time.RFC3339), "--reason", "x", "--yes")
	for _, id := range []string{"a", "b"} {
		require.WithinDuration(t, soon, h.store.View().Switches[id].Ends, time.Minute)
	}
	must(t, h, 2, "switch", "disable-retries", "shop/payments", "--until", "noon", "--reason", "x", "--yes")
	must(t, h, 2, "switch", "disable-retries", "shop/payments", "--until", "14:30", "--for", "5m", "--reason", "x", "--yes")
	must(t, h, 7, "switch", "disable-retries", "shop/payments", "--until", "2001-01-01T00:00:00Z", "--reason", "x", "--yes")
}
