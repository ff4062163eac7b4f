// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bufio"
	"context"
	"strings"
)

// say prints what is neither data nor an error.
func (a *app) say(format string, args ...any) {
	if !a.global.quiet {
		a.err.printf(format, args...)
	}
}

// done prints that something was done.
func (a *app) done(format string, args ...any) {
	if !a.global.quiet {
		a.out.printf(format, args...)
	}
}

// banner names the environment that a write goes to.
func (a *app) banner() error {
	s, err := a.config()
	if err != nil {
		return err
	}
	if !a.human() {
		return nil
	}
	name := s.name()
	if s.critical {
		name = a.err.yellow(name)
	}
	a.say("%s\n", name)
	return nil
}

// interactive reports whether a person can answer.
func (a *app) interactive() bool {
	return !a.global.noInput && isTerminal(a.in) && a.err.tty
}

// confirm asks a yes-or-no question. Without a person to answer it is an error that names
// the flag.
func (a *app) confirm(ctx context.Context, question, flag string) error {
	if !a.interactive() {
		return cannotAsk(flag)
	}
	a.err.printf("\n%s [y/N] ", question)
	line, err := a.readLine(ctx)
	if err != nil {
		return err
	}
	switch strings.ToLower(line) {
	case "y", "yes":
		return nil
	}
	return failf(exitFailed, "declined", "not confirmed: nothing was changed")
}

func cannotAsk(flag string) *failure {
	return usagef("this asks before it writes, and there is no terminal to ask on: add %s", flag)
}

// confirmScope asks to type a scope.
func (a *app) confirmScope(ctx context.Context, scope, flag string) error {
	if !a.interactive() {
		return cannotAsk(flag)
	}
	a.err.printf("\nType %s to go on: ", scope)
	line, err := a.readLine(ctx)
	if err != nil {
		return err
	}
	if line != scope {
		return failf(exitFailed, "declined", "%q is not %s: nothing was changed", line, scope)
	}
	return nil
}

// readLine reads a line, or ends with ctx. The reader is left behind then: the program ends.
func (a *app) readLine(ctx context.Context) (string, error) {
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(a.in).ReadString('\n')
		answers <- answer{strings.TrimSpace(line), err}
	}()
	select {
	case <-ctx.Done():
		a.err.printf("\n")
		return "", failf(exitInterrupted, "interrupted", "interrupted: nothing was changed")
	case got := <-answers:
		if got.err != nil && got.line == "" {
			return "", failf(exitFailed, "declined", "no answer: nothing was changed")
		}
		return got.line, nil
	}
}
