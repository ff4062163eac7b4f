// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal is one output stream and what it can show.
type terminal struct {
	w     io.Writer
	tty   bool
	utf8  bool
	color bool
}

// Writers that are no files may say that they are terminals; tests do.
type ttyWriter interface{ IsTerminal() bool }

func isTerminal(v any) bool {
	switch t := v.(type) {
	case ttyWriter:
		return t.IsTerminal()
	case *os.File:
		return term.IsTerminal(int(t.Fd()))
	}
	return false
}

func newTerminal(w io.Writer, env Env) terminal {
	return terminal{w: w, tty: isTerminal(w), utf8: isUTF8(env)}
}

// isUTF8 reports whether the locale is one where every character can be shown.
func isUTF8(env Env) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v, _ := env.Lookup(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

func (t *terminal) setColor(g *globalFlags, env Env) {
	noColor, _ := env.Lookup("NO_COLOR")
	force, _ := env.Lookup("CLICOLOR_FORCE")
	term, _ := env.Lookup("TERM")
	switch {
	case g.noColor || g.color == "never":
		t.color = false
	case g.color == "always":
		t.color = true
	case noColor != "":
		t.color = false
	case force != "" && force != "0":
		t.color = true
	default:
		t.color = t.tty && term != "dumb"
	}
}

func (t *terminal) printf(format string, args ...any) {
	_, _ = io.WriteString(t.w, t.plain(fmt.Sprintf(format, args...))) // nobody is left to tell
}

func (t *terminal) paint(code, s string) string {
	if !t.color || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *terminal) red(s string) string    { return t.paint("31", s) }
func (t *terminal) green(s string) string  { return t.paint("32", s) }
func (t *terminal) yellow(s string) string { return t.paint("33", s) }

// ascii replaces the signs that we use where the locale cannot show them.
var ascii = strings.NewReplacer( //nolint:gochecknoglobals // a table
	"▲", "!", "✓", "OK", "⚠", "!", "✕", "x", "→", "->", "–", "-", "×", "x", "█", "#", "░", ".", "…", "...", "≥", ">=", "·", "-",
)

func (t *terminal) plain(s string) string {
	if t.utf8 {
		return s
	}
	return ascii.Replace(s)
}

// clean replaces what could drive a terminal in text from elsewhere.
func clean(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}
