// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// exit is the code that policyctl ends with.
type exit int

// Exit codes; `policyctl help exit-codes` prints them.
const (
	exitDone        exit = 0
	exitFailed      exit = 1
	exitUsage       exit = 2
	exitDifferent   exit = 3
	exitDenied      exit = 4
	exitNotFound    exit = 5
	exitConflict    exit = 6
	exitRefused     exit = 7
	exitUnavailable exit = 8
	exitNotInForce  exit = 9
	exitRejected    exit = 10
	exitInterrupted exit = 130
)

// exitOf maps what a caller can do about a failure to an exit code.
func exitOf(k fault.Kind) exit {
	switch k {
	case fault.Invalid, fault.Refused, fault.Exhausted:
		return exitRefused
	case fault.NotFound:
		return exitNotFound
	case fault.Conflict:
		return exitConflict
	case fault.Denied, fault.Unauthenticated:
		return exitDenied
	case fault.Unavailable:
		return exitUnavailable
	case fault.Canceled:
		return exitInterrupted
	case fault.Internal:
	}
	return exitFailed
}

// failure is an error as policyctl shows it: what failed and why, what to do, and the code.
type failure struct {
	exit      exit
	code      string // for machines
	reason    string // of policyd, more precise
	message   string
	hints     []string
	requestID string
	details   []detail
	scope     string // of a conflict
}

type detail struct {
	Scope string `json:"scope,omitempty"`
	Path  string `json:"path,omitempty"`
	Value string `json:"value,omitempty"`
	Rule  string `json:"rule"`
	Fix   string `json:"fix,omitempty"`
}

func (f *failure) Error() string { return f.message }

// add adds a line that says what to do.
func (f *failure) add(format string, args ...any) {
	f.hints = append(f.hints, fmt.Sprintf(format, args...))
}

// hint adds a line that says what to do and returns f.
func (f *failure) hint(format string, args ...any) *failure {
	f.add(format, args...)
	return f
}

func failf(code exit, kind, format string, args ...any) *failure {
	return &failure{exit: code, code: kind, message: fmt.Sprintf(format, args...)}
}

func usagef(format string, args ...any) *failure {
	return failf(exitUsage, "usage", format, args...)
}

// exitError ends with a code after everything was said.
type exitError exit

func (q exitError) Error() string { return fmt.Sprintf("exit code %d", int(q)) }

// flagError turns what the flag parser says into our words.
func flagError(cmd *cobra.Command, err error) error {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	message := strings.TrimPrefix(err.Error(), "invalid argument ")
	if message != err.Error() {
		// "x" for "--for" flag: why
		if value, rest, ok := strings.Cut(message, " for "); ok {
			if flag, why, ok := strings.Cut(rest, " flag: "); ok {
				if strings.HasPrefix(why, "strconv.") {
					why = "a whole number is due"
				}
				message = strings.Trim(flag, `"`) + " " + strings.Trim(value, `"`) + ": " + why
			}
		}
	}
	return usagef("%s", message).hint("See:  %s -h", progName(cmd))
}

// finish says what went wrong, if anything did, and returns the exit code.
func (a *app) finish(ctx context.Context, err error) int {
	if err == nil {
		return int(exitDone)
	}
	var quiet exitError
	if errors.As(err, &quiet) {
		return int(quiet)
	}
	f := a.describe(err)
	if ctx.Err() != nil && f.exit != exitInterrupted {
		f = &failure{exit: exitInterrupted, code: "interrupted", message: "interrupted: " + f.message, hints: f.hints}
	}
	if a.global.output == "json" || a.global.output == "jsonl" || a.global.jq != "" {
		a.printJSONError(f)
	} else {
		a.printError(f)
	}
	return int(f.exit)
}

func (a *app) describe(err error) *failure {
	var f *failure
	var known *fault.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &known):
		return fromFault(known)
	case errors.Is(err, context.Canceled):
		return failf(exitInterrupted, "interrupted", "interrupted")
	}
	return failf(exitFailed, "internal", "%s", err)
}

func fromFault(known *fault.Error) *failure {
	f := failf(exitOf(known.Kind), known.Kind.String(), "%s", known.Error())
	if known.Hint != "" {
		f.add("%s", known.Hint)
	}
	for _, v := range known.Violations {
		f.details = append(f.details, detail{Scope: v.Scope, Path: v.Path, Value: v.Value, Rule: v.Rule, Fix: v.Fix})
	}
	return f
}

func (a *app) printError(f *failure) {
	const indent = "       "
	for i, line := range strings.Split(f.message, "\n") {
		lead := indent
		if i == 0 {
			lead = a.err.red("error:") + " "
		}
		a.err.printf("%s%s\n", lead, clean(line))
	}
	for _, h := range f.hints {
		a.err.printf("%s%s\n", indent, clean(h))
	}
	if f.requestID != "" && (f.exit == exitFailed || a.global.verbose) {
		a.err.printf("%sRequest id:  %s\n", indent, clean(f.requestID))
	}
}

func (a *app) printJSONError(f *failure) {
	type body struct {
		Code      string   `json:"code"`
		ExitCode  int      `json:"exitCode"`
		Message   string   `json:"message"`
		Hint      string   `json:"hint,omitempty"`
		RequestID string   `json:"requestId,omitempty"`
		Details   []detail `json:"details,omitempty"`
	}
	text, err := json.Marshal(map[string]body{"error": {
		f.code, int(f.exit), f.message, strings.Join(f.hints, "\n"), f.requestID, f.details,
	}})
	if err != nil {
		a.err.printf("error: %s\n", clean(f.message))
		return
	}
	a.err.printf("%s\n", text)
}

// fromStatus turns the answer of policyd into a failure.
func (a *app) fromStatus(err error) *failure {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if e, ok := d.(*policydv1.ErrorDetail); ok {
			return a.fromDetail(st.Message(), e)
		}
	}
	switch st.Code() {
	case codes.Canceled:
		return failf(exitInterrupted, "interrupted", "interrupted")
	case codes.DeadlineExceeded:
		return failf(exitUnavailable, "unavailable", "no answer from policyd at %s within %s", a.addr(), shortDuration(a.global.timeout)).
			hint("Give it more time:  --timeout 30s")
	case codes.Unavailable:
		return failf(exitUnavailable, "unavailable", "the connection to policyd at %s broke", a.addr())
	case codes.Unimplemented:
		return failf(exitFailed, "unimplemented", "policyd at %s does not know this request: it is older than this policyctl", a.addr())
	case codes.Unauthenticated, codes.PermissionDenied:
		return failf(exitDenied, "denied", "%s", st.Message())
	default:
		return failf(exitFailed, "internal", "%s", st.Message())
	}
}

func (a *app) fromDetail(message string, d *policydv1.ErrorDetail) *failure {
	code := exitFailed
	for _, k := range fault.Kinds() {
		if k.String() == d.GetKind() {
			code = exitOf(k)
		}
	}
	f := failf(code, d.GetKind(), "%s", message)
	f.requestID, f.reason = d.GetRequestId(), d.GetReason()
	if d.GetReason() == "bug" || d.GetKind() == "" {
		f.code = "internal"
	}
	if c := d.GetConflict(); c != nil && c.GetScope() != "" {
		a.describeConflict(f, c)
	} else if d.GetHint() != "" {
		f.add("%s", d.GetHint())
	}
	for _, v := range d.GetViolations() {
		f.details = append(f.details, detail{Scope: v.GetScope(), Path: v.GetPath(), Value: v.GetValue(), Rule: v.GetRule(), Fix: v.GetFix()})
	}
	if len(f.details) > 1 {
		lines := make([]string, 0, len(f.details))
		for _, v := range f.details {
			lines = append(lines, v.line())
		}
		f.message = strings.Join(lines, "\n")
	} else if len(f.details) == 1 && f.details[0].Fix != "" && len(f.hints) == 0 {
		f.add("%s.", upperFirst(strings.TrimSuffix(f.details[0].Fix, ".")))
	}
	return f
}

func (d detail) line() string {
	line := d.Path
	if d.Scope != "" {
		line = d.Scope + ": " + line
	}
	if d.Value != "" {
		line += " " + d.Value
	}
	line += ": " + d.Rule
	if d.Fix != "" {
		line += " (" + d.Fix + ")"
	}
	return line
}

// describeConflict says who moved the revision, when, and how to go on.
func (a *app) describeConflict(f *failure, c *policydv1.Conflict) {
	who := c.GetBy().GetName()
	if who == "" {
		who = "someone"
	}
	when := ""
	if c.GetAt() != nil {
		when = " " + a.ago(c.GetAt().AsTime()) + " ago"
	}
	scope := c.GetScope()
	f.scope = scope
	switch {
	case c.GetCurrentRevision() == 0:
		f.message = fmt.Sprintf("revision moved: you started from %d of %s, it was deleted since", c.GetExpectedRevision(), scope)
	case c.GetExpectedRevision() == 0:
		f.message = fmt.Sprintf("%s exists already: %s saved revision %d%s", scope, who, c.GetCurrentRevision(), when)
	default:
		f.message = fmt.Sprintf("revision moved: you started from %d of %s, %s saved %d%s", c.GetExpectedRevision(), scope, who, c.GetCurrentRevision(), when)
	}
	f.add("Nothing was changed.")
	f.add("See theirs:  policyctl get policy %s", scope)
	f.add("Then:        run the same command again; it starts from the newest revision")
}
