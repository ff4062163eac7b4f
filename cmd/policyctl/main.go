// SPDX-License-Identifier: Apache-2.0

// Policyctl is the command line of policyd.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/policyd/policyd/internal/ctl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default comes back: a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	dir, _ := os.Getwd() // without it no file of the directory is looked for
	code := ctl.Main(ctx, os.Args[1:], ctl.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Lookup: os.LookupEnv, Dir: dir,
	})
	stop()
	os.Exit(code)
}
