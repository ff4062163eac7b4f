// SPDX-License-Identifier: Apache-2.0

// Package seam is how the companion packages of this module reach the parts of package
// policyd that applications have no use for. Package policyd fills it in while it is
// initialised; nothing changes afterwards.
package seam

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Core is what package policyd offers. A client is a *policyd.Client, a list of options a
// []policyd.Option: their types are not known here.
type Core struct {
	// Fake makes a client that reads no environment, opens no connection and obeys Control.
	Fake func(FakeConfig) (client any, control Control)
	// Lenient makes a client; what is wrong in the options is logged and left out.
	Lenient func(options any) (client any)
	// Call prepares a gRPC call; a nil client stands for that of the context, else Default.
	Call func(ctx context.Context, client any, m Method) Call
	// Target tells where a request goes that a transport of a client, Client.Transport, is
	// to send; TargetNamed, where a call by name does.
	Target      func(transport http.RoundTripper, req *http.Request) Target
	TargetNamed func(ctx context.Context, client any, name string, unmatched bool) Target
	// Resending returns a context whose next call is that of a kept one.
	Resending func(ctx context.Context, r *Resend) context.Context
	// AddQueue has the calls of an endpoint that wait counted in the client's figures, until
	// remove. Concurrent.
	AddQueue func(client any, count func(endpoint string, unmatched bool) int) (remove func())
}

var core Core //nolint:gochecknoglobals // written once, while package policyd is initialised

// Provide takes what package policyd offers.
func Provide(c Core) struct{} {
	core = c
	return struct{}{}
}

// Of returns what package policyd offers.
func Of() *Core { return &core }

// FakeConfig configures a client for tests.
type FakeConfig struct {
	Log *slog.Logger
	// Sent is told of each attempt as it starts. Concurrent.
	Sent func(endpoint string, s Sent)
	// Random returns uniform random numbers. Concurrent.
	Random func() uint64
}

// Sent is a policyd.Attempt.
type Sent struct {
	Number, Max int
	Key         string
	Hedge       bool
}

// Control is how a test plays policyd.
type Control interface {
	// Use puts documents and switches in force before it returns.
	Use(revision int64, documents []engine.Document, switches []engine.Switch) error
	// Link says whether policyd can be reached.
	Link(up bool)
	// Open opens the breaker of an endpoint for d.
	Open(endpoint string, d time.Duration) error
}

// Method is what a gRPC call calls.
type Method struct {
	Name string // full: /package.Service/Method
	Host string // of the target, perhaps with a port
	// Repeats reports whether a method is declared safe to repeat.
	Repeats func(name string) bool
}

// Call is one gRPC call on its way under the policy of its endpoint. One goroutine at a
// time may use it.
type Call interface {
	// Begin asks for the first attempt; the error says why it is refused.
	Begin() error
	// Open readies the attempt in progress. Its time limit is a deadline of its context
	// or, for a stream, cancels it unless the answer has arrived.
	Open(stream bool) Attempt
	// Settle takes the end of the attempt in progress and, when there is to be another one,
	// waits until it may go out. Otherwise the call is over and err its result.
	Settle(r Result) (again bool, err error)
	// Race is nil unless the attempt in progress may get others beside it.
	Race() Race
	// Drop releases what the call holds. It comes last, also after a call that is over; one
	// that is not counts as left by its caller, or as failed if that panicked.
	Drop(panicked bool)
}

// Race is Open, send and Settle in one for a unary attempt and others beside it. send is called
// for each, at once and perhaps longer than the race lasts; made readies it on the caller's
// goroutine. of is what the attempt came to that decides.
type Race func(made func(Attempt) (send func() Result)) (of Result, again bool, err error)

// Attempt is one send of a call.
type Attempt struct {
	Context context.Context //nolint:containedctx // handed over
	Number  int
	// Header and Key: metadata to be added, "" for none.
	Header, Key string
	// Baggage replaces the caller's, given the values of that and Number; nil leaves it as it is.
	Baggage func(values []string, number int) (string, bool)
	// Arrived lifts the time limit of a stream; nil without one. Concurrent.
	Arrived func() bool
	// Replay: another attempt may follow, so that what is sent is to be kept.
	Replay bool
}

// Result is how an attempt ended.
type Result struct {
	Err error // nil or a gRPC status
	// NotSent: nothing reached the server.
	NotSent bool
	// Committed: the caller has seen a part of the answer, so no attempt may follow.
	Committed bool
	// Lost: what was sent was not kept.
	Lost bool
	// Server is the wait that the server asks for.
	Server engine.ServerWait
	// Own is the sender's.
	Own any
}

// Target is the endpoint that a call goes to, and what its caller said.
type Target struct {
	Name      string
	Unmatched bool           // Name is a host or a service
	Policy    *engine.Policy // must not be changed
	Acts      bool           // decisions act, unless the policy is observed only
	Inner     bool           // an attempt of another call is in progress around it
	Key       string         // the caller's idempotency key, "" for none
}

// Resend is one send of a call that was kept.
type Resend struct {
	Name      string
	Unmatched bool
	Key       string
	// Paid: the send is a retry, which the budget pays for.
	Paid bool
	// Settled is told how the send ended, unless it was refused or its context ended;
	// repeats: the policy repeats such an outcome.
	Settled func(o engine.Outcome, repeats bool)
}
