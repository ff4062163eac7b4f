// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// serve plays one attempt of a stream: "recv X", "eof", "header", "send X", "pushback V",
// "attempts N", and at the end "unavailable", "internal" or nothing for OK.
func serve(s grpc.ServerStream, ops string) error {
	for op := range strings.SplitSeq(ops, ", ") {
		word, arg, _ := strings.Cut(op, " ")
		var m text
		switch word {
		case "recv":
			if err := s.RecvMsg(&m); err != nil || m.GetValue() != arg {
				return status.Errorf(codes.Internal, "received %q, %v, want %q", m.GetValue(), err, arg)
			}
		case "eof":
			if err := s.RecvMsg(&m); !errors.Is(err, io.EOF) {
				return status.Errorf(codes.Internal, "received %q, %v, want the end", m.GetValue(), err)
			}
		case "header":
			_ = s.SendHeader(metadata.Pairs("x", "y"))
		case "send":
			_ = s.SendMsg(&text{Value: arg})
		case "pushback":
			s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", arg))
		case "attempts":
			md, _ := metadata.FromIncomingContext(s.Context())
			if got := strings.Join(md.Get("grpc-previous-rpc-attempts"), ","); got != arg {
				return status.Errorf(codes.Internal, "%q attempts before, want %q", got, arg)
			}
		case "unavailable":
			return errDown
		case "internal":
			return status.Error(codes.Internal, "broken")
		}
	}
	return nil
}

// play carries out what the client does: "send X", "close", "header", "recv X", "ok" and
// "unavailable" or "internal" for the end.
func play(s grpc.ClientStream, ops string) error {
	for op := range strings.SplitSeq(ops, ", ") {
		word, arg, _ := strings.Cut(op, " ")
		switch word {
		case "send":
			if err := s.SendMsg(&text{Value: arg}); err != nil {
				return fmt.Errorf("%s: %w", op, err)
			}
		case "close":
			_ = s.CloseSend()
		case "header":
			if _, err := s.Header(); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("header: %w", err)
			}
		case "recv":
			m := &text{}
			if err := s.RecvMsg(m); err != nil || m.GetValue() != arg {
				return fmt.Errorf("%s: %q, %w", op, m.GetValue(), err)
			}
		default:
			err := s.RecvMsg(&text{})
			want := map[string]codes.Code{"unavailable": codes.Unavailable, "internal": codes.Internal}[word]
			if word == "ok" && !errors.Is(err, io.EOF) || word != "ok" && status.Code(err) != want {
				return fmt.Errorf("%s: ended with %w", op, err)
			}
		}
	}
	return nil
}

// What the tests of grpc-go's own retries ask of streams.
func TestStream_is_repeated_as_grpc_go_would(t *testing.T) {
	for name, c := range map[string]struct {
		server []string // attempt by attempt
		client string
		took   time.Duration
	}{
		"a code that is not retried":               {[]string{"recv 1, internal"}, "send 1, internal", 0},
		"one retry":                                {[]string{"recv 1, unavailable", "recv 1, attempts 1, send 1"}, "send 1, recv 1, ok", 100 * time.Millisecond},
		"attempts run out, each with its number":   {[]string{"attempts , recv 1, unavailable", "recv 1, attempts 1, unavailable", "attempts 2, recv 1, unavailable", "attempts 3, recv 1, unavailable"}, "send 1, unavailable", 300 * time.Millisecond},
		"several messages":                         {[]string{"recv 1, recv 2, unavailable", "recv 1, recv 2, send 5"}, "send 1, send 2, recv 5, ok", 100 * time.Millisecond},
		"messages that come while it is repeated":  {[]string{"recv 1, unavailable", "recv 1, recv 2, unavailable", "recv 1, recv 2, recv 3, send 5"}, "send 1, send 2, send 3, recv 5, ok", 200 * time.Millisecond},
		"no retry after a message":                 {[]string{"recv 1, unavailable", "recv 1, send 3, unavailable"}, "send 1, recv 3, unavailable", 100 * time.Millisecond},
		"a retry while the header is waited for":   {[]string{"recv 1, unavailable", "recv 1, attempts 1"}, "send 1, header, ok", 100 * time.Millisecond},
		"no retry after the header":                {[]string{"recv 1, header, unavailable"}, "send 1, header, unavailable", 0},
		"the end of sending is repeated":           {[]string{"recv 1, recv 2, eof, unavailable", "recv 1, recv 2, eof, send 1, send 3, send 5"}, "send 1, send 2, close, recv 1, recv 3, recv 5, ok", 100 * time.Millisecond},
		"a negative pushback":                      {[]string{"recv 1, pushback -1, unavailable"}, "send 1, unavailable", 0},
		"a pushback that is no number":             {[]string{"recv 1, pushback xxx, unavailable"}, "send 1, unavailable", 0},
		"several pushbacks":                        {[]string{"recv 1, pushback 100, pushback 10, unavailable"}, "send 1, unavailable", 0},
		"a pushback of a second":                   {[]string{"recv 1, pushback 1000, unavailable", "recv 1, send 2"}, "send 1, recv 2, ok", time.Second},
		"a pushback of nothing":                    {[]string{"recv 1, pushback 0, unavailable", "recv 1, send 2"}, "send 1, recv 2, ok", 0},
		"more than is kept":                        {[]string{"recv " + long + ", unavailable"}, "send " + long + ", unavailable", 0},
		"an answer without a message is an answer": {[]string{"recv 1"}, "send 1, ok", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				s.stream = func(n int, stream grpc.ServerStream) error {
					if n > len(c.server) {
						return status.Error(codes.Internal, "one attempt too many")
					}
					return serve(stream, c.server[n-1])
				}
				r := newRig(t, s, quick, grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(200)))
				began := time.Now()
				stream, err := r.open(repeatable(t.Context()), bidiMethod, grpc.MaxRetryRPCBufferSize(200))
				if err != nil {
					t.Fatal(err)
				}
				if err := play(stream, c.client); err != nil {
					t.Error(err)
				}
				if n := len(s.seen()); n != len(c.server) {
					t.Errorf("%d attempts, want %d", n, len(c.server))
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("took %s, want %s", took, c.took)
				}
			})
		})
	}
}

var long = strings.Repeat("x", 500)

// quick repeats up to three times, 100 ms apart.
const quick = `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/all}
spec: {match: {grpc: {method: /test.Echo/*}}, maxAttempts: 4, backoff: {base: 100ms, multiplier: 1, jitter: none}}
`

func TestServiceConfig_retries_and_hedges_of_the_channel_are_off_and_the_rest_holds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(99, errDown)
		r := newRig(t, s, quick, grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{"service":"test.Echo"}],"waitForReady":true,"maxRequestMessageBytes":50,
			"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}],
			"retryThrottling":{"maxTokens":1000,"tokenRatio":1}}`))
		if _, err := r.unary(repeatable(t.Context())); status.Code(err) != codes.Unavailable || len(s.seen()) != 4 {
			t.Errorf("%v, %d sends: retries multiply", err, len(s.seen()))
		}
		err := r.conn.Invoke(t.Context(), unaryMethod, &text{Value: long}, &text{})
		if status.Code(err) != codes.ResourceExhausted || len(s.seen()) != 4 {
			t.Errorf("%v: the channel's own limits do not hold", err)
		}
	})
}

// The bucket of tokens throttles as retryThrottling of a service config does.
func TestTokens_throttle_retries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := true
		s := &server{unary: func(_ context.Context, _ int, in string) (string, error) {
			if sick {
				return "", errDown
			}
			return in, nil
		}}
		r := newRig(t, s, `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, maxAttempts: 2, backoff: {base: 1ms, jitter: none}, budget: {ratio: 1, tokens: {capacity: 3, successCredit: 0.5}}}
`)
		sends := func() int {
			before := len(s.seen())
			_, _ = r.unary(repeatable(t.Context()))
			return len(s.seen()) - before
		}
		for i, want := range []int{2, 2, 2, 1, 1} {
			if got := sends(); got != want {
				t.Errorf("failing call %d: %d sends, want %d", i+1, got, want)
			}
		}
		sick = false
		for range 2 {
			sends()
		}
		sick = true
		for i, want := range []int{2, 1} {
			if got := sends(); got != want {
				t.Errorf("after two successes, call %d: %d sends, want %d", i+1, got, want)
			}
		}
	})
}
