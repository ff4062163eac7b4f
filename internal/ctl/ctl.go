// SPDX-License-Identifier: Apache-2.0

// Package ctl is policyctl: one file per verb, each with its options, a constructor of the
// command that only parses, and a function that only works. Data goes to stdout, everything
// else to stderr; nothing is dialled before it is needed.
package ctl

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// Env is what policyctl takes from its surroundings.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Lookup returns a variable of the environment.
	Lookup func(name string) (string, bool)
	// Dir is the working directory.
	Dir string
	// Now is the clock for ages; nil: time.Now.
	Now func() time.Time
}

// Main runs policyctl with args, the program's name left out, and returns its exit code.
// When ctx ends, waiting ends; what is saved stays saved.
func Main(ctx context.Context, args []string, env Env) int {
	a := newApp(env)
	defer a.close()
	root := newRoot(a) //nolint:contextcheck // cobra hands the context to commands
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	return a.finish(ctx, root.ExecuteContext(ctx))
}

// app is what commands share: streams, settings, the connection. Not safe for concurrent use.
type app struct {
	in       io.Reader
	out, err terminal
	env      Env

	// flags of every command
	global globalFlags
	// fromEnv names the flags whose value is from the environment.
	fromEnv map[string]bool
	// settings and client are made on first use
	settings *settings
	client   *client
}

type globalFlags struct {
	addr      string
	output    string
	jq        string
	noHeaders bool
	quiet     bool
	verbose   bool
	noColor   bool
	color     string
	noInput   bool
	timeout   time.Duration
	requestID string
}

func newApp(env Env) *app {
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Lookup == nil {
		env.Lookup = func(string) (string, bool) { return "", false }
	}
	a := &app{in: env.In, env: env, fromEnv: make(map[string]bool)}
	a.out, a.err = newTerminal(env.Out, env), newTerminal(env.Err, env)
	return a
}

func (a *app) close() {
	if a.client != nil {
		a.client.close()
	}
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "policyctl",
		Short:         "Control retries, retry budgets and circuit breakers of a fleet",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.rootArgs,
		RunE: func(*cobra.Command, []string) error {
			a.overview()
			return nil
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd, err) })
	a.globalFlags(root)
	root.AddCommand(
		newStatusCmd(a), newSwitchCmd(a),
		newGetCmd(a), newEffectiveCmd(a), newExplainCmd(a), newDiffCmd(a), newValidateCmd(a), newApplyCmd(a),
		newEditCmd(a), newDeleteCmd(a), newInitCmd(a), newExportCmd(a),
		newFleetCmd(a), newInstanceCmd(a), newWaitCmd(a),
		newCompletionCmd(a), newVersionCmd(a),
	)
	root.SetHelpCommand(newHelpCmd(a))
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(helpTemplate)
	root.InitDefaultHelpFlag()
	return root
}

func (a *app) globalFlags(root *cobra.Command) {
	f, g := root.PersistentFlags(), &a.global
	f.StringVar(&g.addr, "addr", "", "address of policyd, host:port (default "+defaultAddr+")")
	f.StringVarP(&g.output, "output", "o", "table", "table, wide, json, yaml, jsonl or name")
	f.StringVar(&g.jq, "jq", "", "filter the JSON output with a jq expression")
	f.BoolVar(&g.noHeaders, "no-headers", false, "leave the header line of tables out")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "print nothing but data that was asked for and errors")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "print each request with its time on stderr")
	f.BoolVar(&g.noColor, "no-color", false, "never use colour")
	f.StringVar(&g.color, "color", "auto", "auto, always or never")
	f.BoolVar(&g.noInput, "no-input", false, "never ask; a missing answer is an error")
	durationVar(f, &g.timeout, "timeout", defaultTimeout, "longest time for a request, and for being in force")
	f.StringVar(&g.requestID, "request-id", "", "id of the requests, for the logs of policyd")
	_ = root.RegisterFlagCompletionFunc("output", words(outputs()...))
	_ = root.RegisterFlagCompletionFunc("color", words("auto", "always", "never"))
}

const defaultTimeout = 10 * time.Second

// prepare runs before every command, after its flags are parsed.
func (a *app) prepare(cmd *cobra.Command) error {
	if err := a.flagsFromEnv(cmd.Flags()); err != nil {
		return err
	}
	if err := a.checkOutput(cmd); err != nil {
		return err
	}
	switch a.global.color {
	case "auto", "always", "never":
	default:
		return usagef("--color %s: use auto, always or never", a.global.color)
	}
	a.out.setColor(&a.global, a.env)
	a.err.setColor(&a.global, a.env)
	return nil
}

// progName of a command as typed: "policyctl switch list".
func progName(cmd *cobra.Command) string {
	if cmd == nil {
		return "policyctl"
	}
	return cmd.CommandPath()
}

func (a *app) rootArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownCommand(cmd, args[0])
}

func unknownCommand(cmd *cobra.Command, word string) error {
	f := usagef("unknown command %q for %s", word, progName(cmd))
	cmd.SuggestionsMinimumDistance = 2
	for _, s := range cmd.SuggestionsFor(word) {
		f.add("Did you mean:  %s %s", progName(cmd), s)
	}
	if len(f.hints) == 0 {
		f.add("See:  %s -h", progName(cmd))
	}
	return f
}

// noCommand is the Args of commands that only group others.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return usagef("%s needs a command", progName(cmd)).hint("See:  %s -h", progName(cmd))
}

// group returns a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: noCommand,
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// exactArgs wants one argument per name.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(args) < len(names) {
			return usagef("%s is missing", names[len(args)]).hint("Usage:  %s", cmd.UseLine())
		}
		return usagef("unexpected argument %q", args[len(names)]).hint("Usage:  %s", cmd.UseLine())
	}
}

// maxArgs accepts up to n arguments.
func maxArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		return usagef("unexpected argument %q", args[n]).hint("Usage:  %s", cmd.UseLine())
	}
}
