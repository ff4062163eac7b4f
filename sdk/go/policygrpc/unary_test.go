// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
)

var errDown = status.Error(codes.Unavailable, "down for now")

// failFirst fails the first n calls and then answers.
func failFirst(n int, err error) *server {
	return &server{unary: func(_ context.Context, call int, in string) (string, error) {
		if call <= n {
			return "", err
		}
		return in + "!", nil
	}}
}

func TestUnary_repeats_as_the_policy_says(t *testing.T) {
	cases := []struct {
		name  string
		fails int
		code  codes.Code
		spec  string
		once  bool // not idempotent
		sends int
		ends  policyd.Code
		want  codes.Code
	}{
		{name: "a success is sent once", sends: 1},
		{name: "a failure is cured", fails: 2, code: codes.Unavailable, sends: 3},
		{name: "attempts run out", fails: 9, code: codes.Unavailable, sends: 5, ends: policyd.CodeAttempts, want: codes.Unavailable},
		{name: "a code that is not listed is final", fails: 9, code: codes.Internal, sends: 1, want: codes.Internal},
		{name: "a code that is listed is not", fails: 1, code: codes.ResourceExhausted, spec: "{retryOn: {grpc: [resource-exhausted]}}", sends: 2},
		{name: "the list replaces the built-in one", fails: 9, code: codes.Unavailable, spec: "{retryOn: {grpc: [aborted]}}", sends: 1, want: codes.Unavailable},
		{name: "a refusal is final", fails: 9, code: codes.InvalidArgument, sends: 1, want: codes.InvalidArgument},
		{name: "one attempt by policy", fails: 9, code: codes.Unavailable, spec: "{maxAttempts: 1}", sends: 1, ends: policyd.CodeAttempts, want: codes.Unavailable},
		{name: "a call that may act twice is sent once", fails: 9, code: codes.Unavailable, once: true, sends: 1, ends: policyd.CodeNotSafe, want: codes.Unavailable},
		{name: "POST among the policy's methods lets every call repeat", fails: 1, code: codes.Unavailable, once: true, spec: "{idempotency: {methods: [POST]}}", sends: 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				yaml := ""
				if c.spec != "" {
					yaml = "---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop/echo/unary}, spec: " +
						strings.TrimSuffix(c.spec, "}") + ", match: {grpc: {method: /test.Echo/Unary}}}}"
				}
				s := failFirst(c.fails, status.Error(c.code, "why"))
				r := newRig(t, s, yaml)
				ctx := t.Context()
				if !c.once {
					ctx = repeatable(ctx)
				}
				got, err := r.unary(ctx)
				if status.Code(err) != c.want || err == nil && got != "ping!" {
					t.Fatalf("got %q, %v", got, err)
				}
				if n := len(s.seen()); n != c.sends {
					t.Fatalf("%d sends, want %d", n, c.sends)
				}
				var stopped *policyd.Error
				if errors.As(err, &stopped) != (c.ends != "") || stopped != nil && (stopped.Code != c.ends || stopped.Attempts != c.sends) {
					t.Fatalf("got %#v, want %q", stopped, c.ends)
				}
				if st, _ := status.FromError(err); err != nil && st.Message() != "why" {
					t.Fatalf("status %v", st)
				}
			})
		})
	}
}

func TestO_RT_14_pushback(t *testing.T) {
	cases := []struct {
		name      string
		pushbacks []string // of each failing call; "" for none
		attempts  []time.Duration
		ends      policyd.Code
	}{
		{"a negative one forbids the retry", []string{"-1"}, []time.Duration{0}, policyd.CodeRetryAfter},
		{"any negative one does", []string{"-7"}, []time.Duration{0}, policyd.CodeRetryAfter},
		{"what is no number does", []string{"abc"}, []time.Duration{0}, policyd.CodeRetryAfter},
		{"a value replaces the wait and restarts the backoff", []string{"2000", ""}, []time.Duration{0, 2000 * time.Millisecond, 2200 * time.Millisecond}, ""},
		{"zero retries at once", []string{"0"}, []time.Duration{0, 0}, ""},
		{"it lifts no bound of attempts", []string{"0", "0", "0", "0", "0", "0"}, make([]time.Duration, 5), policyd.CodeAttempts},
		{"longer than retryAfter.max ends the call", []string{"20001"}, []time.Duration{0}, policyd.CodeRetryAfter},
		{"more than one value is as bad as none", []string{"1,2"}, []time.Duration{0}, policyd.CodeRetryAfter},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var at []time.Duration
				s := &server{unary: func(ctx context.Context, n int, _ string) (string, error) {
					at = append(at, time.Since(began))
					if n > len(c.pushbacks) {
						return "ok", nil
					}
					if p := c.pushbacks[n-1]; p != "" {
						md := metadata.MD{}
						md.Append("grpc-retry-pushback-ms", strings.Split(p, ",")...)
						_ = grpc.SetTrailer(ctx, md)
					}
					return "", errDown
				}}
				_, err := newRig(t, s, "").unary(repeatable(t.Context()))
				if !reflect.DeepEqual(at, c.attempts) {
					t.Fatalf("sent at %v, want %v", at, c.attempts)
				}
				var stopped *policyd.Error
				if errors.As(err, &stopped); (stopped == nil) != (c.ends == "") || stopped != nil && stopped.Code != c.ends {
					t.Fatalf("got %v, want %q", err, c.ends)
				}
			})
		})
	}
}

func TestUnary_tells_the_server_of_earlier_attempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(2, errDown)
		r := newRig(t, s, "")
		ctx := policyd.WithCall(t.Context(), policyd.IdempotencyKey("order-1"))
		if _, err := r.unary(ctx); err != nil {
			t.Fatal(err)
		}
		for i, md := range s.seen() {
			want := [][]string{nil, {"1"}, {"2"}}[i]
			if got := md.Get("grpc-previous-rpc-attempts"); !reflect.DeepEqual(got, want) {
				t.Errorf("attempt %d: earlier ones %v, want %v", i+1, got, want)
			}
			if got := md.Get("idempotency-key"); !reflect.DeepEqual(got, []string{"order-1"}) {
				t.Errorf("attempt %d: key %v", i+1, got)
			}
		}
		if got := r.Attempts(endpoint); len(got) != 3 || got[2].IdempotencyKey != "order-1" {
			t.Errorf("attempts %+v", got)
		}
	})
}

func TestUnary_sends_the_key_that_the_policy_asks_for(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(1, errDown)
		r := newRig(t, s, `
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, idempotency: {key: {header: X-Key, auto: true, format: quoted}}}
`)
		if _, err := r.unary(t.Context()); err != nil {
			t.Fatal(err)
		}
		seen := s.seen()
		a, b := seen[0].Get("x-key"), seen[1].Get("x-key")
		if len(a) != 1 || len(a[0]) != 38 || a[0][0] != '"' || !reflect.DeepEqual(a, b) {
			t.Fatalf("keys %q and %q", a, b)
		}
		if got := r.Attempts("shop/echo/unary"); len(got) != 2 || `"`+got[0].IdempotencyKey+`"` != a[0] {
			t.Fatalf("attempts %+v", got)
		}
		// A key of the caller's own is kept.
		own := metadata.AppendToOutgoingContext(t.Context(), "x-key", "mine")
		if _, err := r.unary(own); err != nil || !reflect.DeepEqual(s.seen()[2].Get("x-key"), []string{"mine"}) {
			t.Fatalf("%v, %v", err, s.seen()[2])
		}
	})
}

func TestUnary_keeps_to_the_deadlines(t *testing.T) {
	hang := func(first int) *server {
		return &server{unary: func(ctx context.Context, n int, _ string) (string, error) {
			if n <= first {
				<-ctx.Done()
				return "", status.FromContextError(ctx.Err()).Err()
			}
			return "ok", nil
		}}
	}
	const limits = `
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, timeouts: {attempt: 1s, overall: 5s}}
`
	t.Run("an attempt that hangs is cut and repeated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, began := hang(1), time.Now()
			got, err := newRig(t, s, limits).unary(repeatable(t.Context()))
			if took := time.Since(began); got != "ok" || err != nil || took != 1200*time.Millisecond {
				t.Fatalf("%q, %v after %s", got, err, took)
			}
		})
	})
	t.Run("the policy's overall limit ends the call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, began := hang(9), time.Now()
			_, err := newRig(t, s, limits).unary(repeatable(t.Context()))
			if took := time.Since(began); took > 5*time.Second || !errors.Is(err, policyd.ErrDeadline) || status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("%v after %s", err, took)
			}
			if n := len(s.seen()); n != 4 { // 0–1, 1.2–2.2, 2.6–3.6, 4.4–5
				t.Fatalf("%d sends", n)
			}
		})
	})
	t.Run("the caller's deadline is the caller's error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, began := hang(9), time.Now()
			ctx, cancel := context.WithTimeout(repeatable(t.Context()), 800*time.Millisecond)
			defer cancel()
			_, err := newRig(t, s, limits).unary(ctx)
			var stopped *policyd.Error
			if took := time.Since(began); took != 800*time.Millisecond || status.Code(err) != codes.DeadlineExceeded || errors.As(err, &stopped) || len(s.seen()) != 1 {
				t.Fatalf("%v after %s, %d sends", err, took, len(s.seen()))
			}
		})
	})
	t.Run("a retry that the deadline would cut is not waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, began := failFirst(9, errDown), time.Now()
			ctx, cancel := context.WithTimeout(repeatable(t.Context()), time.Second)
			defer cancel()
			_, err := newRig(t, s, "").unary(ctx)
			if took := time.Since(began); took != 600*time.Millisecond || !errors.Is(err, policyd.ErrDeadline) || status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("%v after %s", err, took)
			}
		})
	})
	t.Run("a caller that goes during the wait is cancelled, not unavailable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := failFirst(9, errDown)
			r := newRig(t, s, "")
			ctx, cancel := context.WithCancel(repeatable(t.Context()))
			time.AfterFunc(100*time.Millisecond, cancel)
			_, err := r.unary(ctx)
			if status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) || len(s.seen()) != 1 {
				t.Fatalf("%v, %d sends", err, len(s.seen()))
			}
			if !strings.Contains(err.Error(), "down for now") {
				t.Errorf("the failure before is lost: %v", err)
			}
		})
	})
}

func TestUnary_fills_call_options_from_the_last_attempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{unary: func(ctx context.Context, n int, _ string) (string, error) {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("n", string(rune('0'+n))))
			if n == 1 {
				_ = grpc.SetTrailer(ctx, metadata.Pairs("first", "yes"))
				return "", errDown
			}
			return "ok", grpc.SetHeader(ctx, metadata.Pairs("n", string(rune('0'+n))))
		}}
		var header, trailer metadata.MD
		var from peer.Peer
		finished := 0
		_, err := newRig(t, s, "").unary(repeatable(t.Context()), grpc.Header(&header), grpc.OnFinish(func(err error) {
			if finished++; err != nil {
				t.Errorf("finished with %v", err)
			}
		}), grpc.Trailer(&trailer), grpc.Peer(&from))
		if err != nil || len(s.seen()) != 2 {
			t.Fatal(err)
		}
		if header.Get("n")[0] != "2" || trailer.Get("n")[0] != "2" || trailer.Get("first") != nil || from.Addr == nil || finished != 1 {
			t.Fatalf("header %v, trailer %v, peer %v, finished %d times", header, trailer, from, finished)
		}
	})
}

func TestUnary_options_are_empty_when_the_last_attempt_reached_nobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		s := &server{unary: func(ctx context.Context, _ int, _ string) (string, error) {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("n", "1"))
			go r.server.Stop()
			return "", errDown
		}}
		r = newRig(t, s, "")
		var trailer metadata.MD
		var from peer.Peer
		_, err := r.unary(repeatable(t.Context()), grpc.Trailer(&trailer), grpc.Peer(&from))
		if status.Code(err) != codes.Unavailable || trailer != nil || from.Addr != nil {
			t.Fatalf("%v, trailer %v, peer %v", err, trailer, from)
		}
	})
}

func TestUnary_errors_of_the_policy_are_statuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(0, nil)
		r := newRig(t, s, `
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, breaker: {consecutive: {failures: 2, openFor: 10s}}}
`)
		r.OpenBreaker("shop/echo/unary", 12*time.Second)
		_, err := r.unary(t.Context())
		st, ok := status.FromError(err)
		if !ok || st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "next probe in 12s") || !errors.Is(err, policyd.ErrBreakerOpen) {
			t.Fatalf("status %v, %v", st, err)
		}
		if len(s.seen()) != 0 {
			t.Fatal("a refused call was sent")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, failFirst(9, status.Error(codes.Unavailable, "theirs")), "")
		r.Switch("disable-retries", "shop", time.Hour)
		_, err := r.unary(repeatable(t.Context()))
		if st, _ := status.FromError(err); st.Code() != codes.Unavailable || st.Message() != "theirs" || !errors.Is(err, policyd.ErrSwitch) {
			t.Fatalf("status %v, %v", st, err)
		}
	})
}

func TestError_GRPCStatus_has_the_code_of_every_reason(t *testing.T) {
	last := status.Error(codes.Aborted, "last")
	for code, want := range map[policyd.Code]codes.Code{
		policyd.CodeBreaker: codes.Unavailable, policyd.CodeConcurrency: codes.ResourceExhausted,
		policyd.CodeDeadline: codes.DeadlineExceeded, policyd.CodeAttempts: codes.Aborted, policyd.CodeBudget: codes.Aborted,
		policyd.CodeGate: codes.Aborted, policyd.CodeSwitch: codes.Aborted, policyd.CodeNotSafe: codes.Aborted,
		policyd.CodeBody: codes.Aborted, policyd.CodeRetryAfter: codes.Aborted, policyd.CodeKeyConflict: codes.Aborted,
	} {
		if got := status.Code(&policyd.Error{Code: code, Err: last}); got != want {
			t.Errorf("%s is %s, want %s", code, got, want)
		}
	}
	if got := status.Code(&policyd.Error{Code: policyd.CodeAttempts, Err: io.ErrUnexpectedEOF}); got != codes.Unknown {
		t.Errorf("without a status: %s", got)
	}
}

func TestUnary_repeats_what_was_certainly_not_sent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(0, nil)
		r := newRig(t, s, "")
		r.server.Stop() // nobody listens
		_, err := r.unary(t.Context())
		if !errors.Is(err, policyd.ErrAttempts) || status.Code(err) != codes.Unavailable || len(r.Attempts(endpoint)) != 5 {
			t.Fatalf("%v after %d attempts", err, len(r.Attempts(endpoint)))
		}
		// With wait-for-ready the channel waits for the caller's deadline, as without policies.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err = r.unary(ctx, grpc.WaitForReady(true))
		if status.Code(err) != codes.DeadlineExceeded || time.Since(began) != time.Minute || len(r.Attempts(endpoint)) != 6 {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
	})
}

func TestUnary_repeats_what_is_declared_idempotent(t *testing.T) {
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("policygrpc_test.proto"), Package: proto.String("test"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("M")}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Echo"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: proto.String("Unary"), InputType: proto.String(".test.M"), OutputType: proto.String(".test.M"),
			Options: &descriptorpb.MethodOptions{IdempotencyLevel: descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()},
		}}}},
	}
	d, err := protodesc.NewFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	once := func(want int) {
		synctest.Test(t, func(t *testing.T) {
			s := failFirst(1, errDown)
			r := newRig(t, s, "")
			_, _ = r.unary(t.Context())
			_, _ = r.unary(policyd.WithCall(t.Context(), policyd.Idempotent(false)))
			if n := len(s.seen()); n != want {
				t.Fatalf("%d sends, want %d", n, want)
			}
		})
	}
	once(2)
	if err := protoregistry.GlobalFiles.RegisterFile(d); err != nil {
		t.Skip("registered by an earlier run") // with -count
	}
	once(3)
}

func TestUnary_counts_a_call_around_it_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(9, errDown)
		r := newRig(t, s, "---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop/echo/unary}, spec: {match: {grpc: {method: /test.Echo/Unary}}}}")
		_, err := policyd.Do(t.Context(), "shop/echo/unary", func(ctx context.Context) (string, error) {
			return r.unary(ctx)
		}, policyd.Using(r.Client()), policyd.IdempotencyKey("k"))
		if !errors.Is(err, policyd.ErrAttempts) || len(s.seen()) != 5 || len(r.Attempts("shop/echo/unary")) != 5 {
			t.Fatalf("%v, %d sends, %d attempts", err, len(s.seen()), len(r.Attempts("shop/echo/unary")))
		}
		if got := s.seen()[4].Get("idempotency-key"); !reflect.DeepEqual(got, []string{"k"}) {
			t.Fatalf("key %v", got)
		}
	})
}

func TestUnary_observed_changes_nothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(9, errDown)
		r := newRig(t, s, "---\n{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: shop}, spec: {observe: true}}")
		_, err := r.unary(repeatable(t.Context()))
		var stopped *policyd.Error
		if status.Code(err) != codes.Unavailable || errors.As(err, &stopped) || len(s.seen()) != 1 {
			t.Fatalf("%v, %d sends", err, len(s.seen()))
		}
	})
}

func TestUnary_a_panic_further_in_gives_its_slot_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, failFirst(0, nil), "", grpc.WithChainUnaryInterceptor(
			func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
				panic("x")
			}))
		defer func() {
			if p := recover(); p != "x" {
				t.Fatalf("recovered %v", p)
			}
			if n := len(r.Attempts(endpoint)); n != 1 {
				t.Fatalf("%d attempts", n)
			}
		}()
		_, _ = r.unary(repeatable(t.Context()))
	})
}

func TestBreaker_per_host_is_per_target(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failFirst(2, errDown)
		r := newRig(t, s, `---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/unary}
spec: {match: {grpc: {method: /test.Echo/Unary}}, maxAttempts: 1, breaker: {per: host, consecutive: {failures: 2, openFor: 30s}}}
`)
		other := r.dial(t, "passthrough:///Other.shop:443")
		for range 2 {
			if _, err := r.unary(t.Context()); status.Code(err) != codes.Unavailable {
				t.Fatal(err)
			}
		}
		_, err := r.unary(t.Context())
		var e *policyd.Error
		if !errors.As(err, &e) || e.Code != policyd.CodeBreaker || e.Host != "echo.shop:443" || status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		if err := other.Invoke(t.Context(), unaryMethod, &text{Value: "ping"}, &text{}); err != nil {
			t.Error(err)
		}
	})
}

func TestUnary_that_succeeds_allocates_little(t *testing.T) {
	c, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	intercept := policygrpc.UnaryClientInterceptor(c)
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	if n := testing.AllocsPerRun(200, func() {
		if err := intercept(t.Context(), unaryMethod, nil, nil, nil, invoke); err != nil {
			t.Fatal(err)
		}
	}); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
