// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
)

// durationFlag is a flag like in documents: 30m, 1h30m; a bare number is refused.
type durationFlag struct{ d *time.Duration }

func durationVar(f *pflag.FlagSet, d *time.Duration, name string, def time.Duration, usage string) {
	*d = def
	f.Var(&durationFlag{d}, name, usage)
}

func (f *durationFlag) String() string {
	if f.d == nil || *f.d == 0 {
		return ""
	}
	return engine.FormatDuration(*f.d)
}

func (f *durationFlag) Type() string { return "duration" }

func (f *durationFlag) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" && !strings.HasPrefix(s, "-") {
		return fmt.Errorf("which unit? try %sm", s)
	}
	d, err := document.ParseDuration(s)
	if err != nil {
		return err
	}
	*f.d = d
	return nil
}

// shareFlag is a number from 0 to 1, in millionths; it knows whether it was given.
type shareFlag struct {
	micro int64
	given bool
}

func (f *shareFlag) String() string {
	if !f.given {
		return ""
	}
	return engine.Micro(f.micro).String()
}

func (f *shareFlag) Type() string { return "0..1" }

func (f *shareFlag) Set(s string) error {
	v, err := document.ParseDecimal(s, true)
	if err != nil {
		return err
	}
	if v.Int < 0 || v.Int > engine.Million {
		return fmt.Errorf("use a number from 0 to 1")
	}
	f.micro, f.given = v.Int, true
	return nil
}

// scope checks a scope that an operator typed.
func scopeArg(s string) (engine.Scope, error) {
	scope, err := engine.ParseScope(s)
	if err != nil {
		f := usagef("%s", err)
		if low := strings.ToLower(strings.Trim(s, "/ ")); low != s {
			if _, err := engine.ParseScope(low); err == nil {
				f.add("Did you mean %s?", low)
			}
		}
		return "", f
	}
	return scope, nil
}

// optionalScope is the only argument, or "" without one.
func optionalScope(args []string) (engine.Scope, error) {
	if len(args) == 0 {
		return "", nil
	}
	return scopeArg(args[0])
}

// shortDuration has at most two units: 4s, 24m12s, 3h5m, 12d.
func shortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return engine.FormatDuration(d.Round(100 * time.Millisecond))
	case d < time.Hour:
		return engine.FormatDuration(d.Round(time.Second))
	case d < 48*time.Hour:
		return engine.FormatDuration(d.Round(time.Minute))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// age has one unit: 4s, 3m, 1h, 12d.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// ago is how long t lies back.
func (a *app) ago(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return age(a.env.Now().Sub(t))
}

// count writes a whole number with separators: 1,204.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// rate writes calls per second: 52,300 or 0.4.
func rate(r float64) string {
	if r == 0 || math.Abs(r) >= 9.95 {
		return count(int64(math.Round(r)))
	}
	return strconv.FormatFloat(r, 'f', 1, 64)
}

// percent writes a share with one digit after the point.
func percent(share float64) string {
	if math.IsNaN(share) || math.IsInf(share, 0) {
		share = 0
	}
	return strconv.FormatFloat(share*100, 'f', 1, 64) + " %"
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return clean(s)
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// wrap breaks text into lines of at most width.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
