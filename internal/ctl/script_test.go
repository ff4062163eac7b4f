// SPDX-License-Identifier: Apache-2.0

package ctl_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden parts of testdata anew")

type houseKey struct{}

// TestScripts runs testdata/*.txtar, each against a policyd of its own. What policyctl prints
// is gathered in the file transcript: stdout, then stderr with "2> ", then the exit code if
// it is not 0. Commands:
//
//	ctl [-tty] [-in=FILE] ARG…                    policyctl
//	fleet ID live|behind|stale|rejected [SCOPE]   how an instance behaves
//	report ENDPOINT BREAKER                       every instance reports
//	policyd stop|start
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			h := newHouse(env.T().(testing.TB)) //nolint:forcetypeassert // what testscript.Run promises
			env.Values[houseKey{}] = h
			env.Setenv("POLICYCTL_ADDR", h.addr)
			env.Setenv("LC_ALL", "C.UTF-8")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ctl": scriptCtl, "fleet": scriptFleet, "report": scriptReport, "policyd": scriptPolicyd,
		},
	})
}

func houseOf(ts *testscript.TestScript) *house { return ts.Value(houseKey{}).(*house) } //nolint:forcetypeassert // set above

// What differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(in force  \S+( instances?)?)  [0-9.]+(ms|s|µs)\b`), "$1  TIME"},
	{regexp.MustCompile(`\bks-[0-9a-f]{4,}\b`), "ks-0000"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d UTC`), "HH:MM:SS UTC"},
	{regexp.MustCompile(`\b\d\d:\d\d UTC`), "HH:MM UTC"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIMESTAMP"},
	// As wide as what it stands for: columns beside it keep their place.
	{regexp.MustCompile(`\b3m[23]\ds\b`), "3m3Ns"},
	{regexp.MustCompile(`\b29m59(\.\d)?s\b`), "30m"},
	{regexp.MustCompile(`\b39m5\d(\.\d)?s\b`), "40m"},
	{regexp.MustCompile(`\b(2m5\d|3m[0-9])(\.\d)?s\b`), "3m"},
	{regexp.MustCompile(`\d tr(y|ies) in [0-9.]+(ms|s)`), "N tries in TIME"},
	{regexp.MustCompile(`"epoch":"[^"]*"`), `"epoch":"EPOCH"`},
	{regexp.MustCompile(`"requestId":"[^"]*"`), `"requestId":"ID"`},
	{regexp.MustCompile(`policyctl-([a-z-]+)-\d+\.yaml`), "policyctl-$1-N.yaml"},
	{regexp.MustCompile(`\S*/policyctl-`), "TMP/policyctl-"},
	// Progress on the way depends on timing; how it ended does not.
	{regexp.MustCompile(`(?m)^2> .*  \d+/\d+ in force\n`), ""},
}

func scriptCtl(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("the exit code is in the transcript")
	}
	h, o := houseOf(ts), options{dir: ts.MkAbs("."), env: map[string]string{"HOME": ts.Getenv("HOME"), "POLICYCTL_ADDR": ts.Getenv("POLICYCTL_ADDR")}}
	for len(args) > 0 && strings.HasPrefix(args[0], "-tty") || len(args) > 0 && strings.HasPrefix(args[0], "-in=") {
		if file, ok := strings.CutPrefix(args[0], "-in="); ok {
			o.stdin = ts.ReadFile(file)
		} else {
			o.tty = true
		}
		args = args[1:]
	}
	for _, name := range []string{
		"LC_ALL", "EDITOR", "POLICYCTL_OUTPUT", "POLICYCTL_CONTEXT", "POLICYCTL_FOR", "POLICYCTL_NO_WAIT",
		"XDG_CONFIG_HOME", "TMPDIR", "NO_COLOR", "CLICOLOR_FORCE",
	} {
		if v := ts.Getenv(name); v != "" {
			o.env[name] = v
		}
	}
	r := run(tb{ts}, h, o, args...)
	var b strings.Builder
	fmt.Fprintf(&b, "$ policyctl %s\n%s", quoteArgs(args), r.stdout)
	for line := range strings.Lines(r.err) {
		b.WriteString("2> " + strings.TrimSuffix(line, "\n") + "\n")
	}
	if r.code != 0 {
		fmt.Fprintf(&b, "[exit %d]\n", r.code)
	}
	text := strings.ReplaceAll(b.String(), h.addr, "ADDR")
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "$WORK")
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	f, err := os.OpenFile(ts.MkAbs(ts.Getenv("WORK")+"/transcript"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	ts.Check(err)
	_, err = f.WriteString(text + "\n")
	ts.Check(err)
	ts.Check(f.Close())
}

func quoteArgs(args []string) string {
	quoted := make([]string, 0, len(args))
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " {}|$") {
			a = "'" + a + "'"
		}
		quoted = append(quoted, a)
	}
	return strings.Join(quoted, " ")
}

func scriptFleet(ts *testscript.TestScript, _ bool, args []string) {
	scope := ""
	if len(args) == 3 {
		scope = args[2]
	}
	houseOf(ts).set(args[0], args[1], scope)
}

func scriptReport(ts *testscript.TestScript, _ bool, args []string) {
	houseOf(ts).report(args[0], args[1])
}

func scriptPolicyd(ts *testscript.TestScript, _ bool, args []string) {
	h := houseOf(ts)
	if args[0] == "stop" {
		h.stop()
		return
	}
	h.start(tb{ts}, h.addr)
}

// tb is as much of testing.TB as running policyctl needs, over a script.
type tb struct{ *testscript.TestScript }

func (t tb) Helper() {}

func (t tb) FailNow() { t.Fatalf("failed") }

func (t tb) Errorf(format string, args ...any) { t.Logf(format, args...) }

func (t tb) TempDir() string { return t.Getenv("HOME") }
