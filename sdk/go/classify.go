// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/netfail"
)

// statusOf returns the HTTP status that an error of fn carries, 0 for none.
func statusOf(err error) int {
	var a interface{ StatusCode() int }
	if errors.As(err, &a) {
		return a.StatusCode()
	}
	var b interface{ HTTPStatusCode() int }
	if errors.As(err, &b) {
		return b.HTTPStatusCode()
	}
	return 0
}

// codeOf returns the gRPC status that an error of fn carries.
func codeOf(err error) (codes.Code, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code(), true
	}
	return codes.OK, false
}

// judgeResponse says what a response means, in the words of the engine.
func judgeResponse(resp *http.Response) engine.Outcome {
	if resp.StatusCode < http.StatusBadRequest {
		return engine.Outcome{}
	}
	return engine.Outcome{
		Kind: engine.OutcomeHTTP, Code: resp.StatusCode, Server: serverWait(resp.Header, time.Now()),
	}
}

// judgeError says what an error of an application's function means.
func judgeError(err error) engine.Outcome {
	var ours *Error
	if errors.As(err, &ours) { // a call inside it gave up: another try would multiply its own
		return engine.Outcome{Kind: engine.OutcomeError}
	}
	if code, ok := codeOf(err); ok {
		return engine.Outcome{Kind: engine.OutcomeGRPC, Code: int(code)}
	}
	if code := statusOf(err); code != 0 {
		return engine.Outcome{Kind: engine.OutcomeHTTP, Code: code}
	}
	if kind, notSent := netfail.Of(err); kind != 0 {
		return engine.Outcome{Kind: engine.OutcomeNetwork, Network: kind, NotSent: notSent}
	}
	return engine.Outcome{Kind: engine.OutcomeError}
}

// outcome is the application's verdict in the words of the engine.
func (e *judgedError) outcome() engine.Outcome {
	o := engine.Outcome{Kind: engine.OutcomeRetryable, NotSent: e.verdict == verdictNotSent}
	if e.verdict == verdictPermanent {
		o.Kind = engine.OutcomePermanent
	}
	if e.asked {
		o.Server = engine.ServerWait{Kind: engine.AskedRetryAfter, For: e.after}
	}
	return o
}

// statusError stands for a response that was judged by its status.
type statusError int

func (s statusError) Error() string {
	text := http.StatusText(int(s))
	if text == "" {
		return strconv.Itoa(int(s))
	}
	return strconv.Itoa(int(s)) + " " + text
}

// StatusCode is how other layers find the status.
func (s statusError) StatusCode() int { return int(s) }
