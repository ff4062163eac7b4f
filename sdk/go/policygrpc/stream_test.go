// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
)

// echo answers each message and ends well.
func echo(s grpc.ServerStream) error {
	got, err := receive(s)
	if !errors.Is(err, io.EOF) {
		return err
	}
	return s.SendMsg(&text{Value: strings.Join(got, "+")})
}

// failStreams fails the first n streams before they say anything.
func failStreams(n int) *server {
	return &server{stream: func(call int, s grpc.ServerStream) error {
		if call <= n {
			return errDown
		}
		return echo(s)
	}}
}

func TestO_RT_15_a_stream_is_repeated_only_before_its_first_message(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{stream: func(_ int, s grpc.ServerStream) error {
			for _, v := range []string{"1", "2", "3"} {
				if err := s.SendMsg(&text{Value: v}); err != nil {
					return err
				}
			}
			return errDown
		}}
		r := newRig(t, s, "")
		stream, err := r.open(repeatable(t.Context()), serverMethod)
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, "go")
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		got, err := receive(stream)
		var stopped *policyd.Error
		if !reflect.DeepEqual(got, []string{"1", "2", "3"}) || status.Code(err) != codes.Unavailable || errors.As(err, &stopped) || len(s.seen()) != 1 {
			t.Fatalf("%v, %v, %d sends", got, err, len(s.seen()))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := failStreams(9)
		stream, err := newRig(t, s, "").open(repeatable(t.Context()), serverMethod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := receive(stream); !errors.Is(err, policyd.ErrAttempts) || status.Code(err) != codes.Unavailable || len(s.seen()) != 5 {
			t.Fatalf("%v, %d sends", err, len(s.seen()))
		}
	})
}

func TestStream_sends_again_what_was_sent(t *testing.T) {
	for _, method := range []string{clientMethod, serverMethod, bidiMethod} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := failStreams(2)
				r := newRig(t, s, "")
				stream, err := r.open(repeatable(t.Context()), method)
				if err != nil {
					t.Fatal(err)
				}
				send(t, stream, "a")
				synctest.Wait() // the first attempt has failed by now
				if method != serverMethod {
					send(t, stream, "b", "c")
				}
				if err := stream.CloseSend(); err != nil {
					t.Fatal(err)
				}
				want := "a+b+c"
				if method == serverMethod {
					want = "a"
				}
				got, err := receive(stream)
				if !reflect.DeepEqual(got, []string{want}) || !errors.Is(err, io.EOF) {
					t.Fatalf("%q, %v", got, err)
				}
				seen := s.seen()
				if len(seen) != 3 || !reflect.DeepEqual(seen[2].Get("grpc-previous-rpc-attempts"), []string{"2"}) {
					t.Fatalf("%d sends, %v", len(seen), seen)
				}
			})
		})
	}
}

func TestStream_that_may_act_twice_is_sent_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failStreams(1)
		stream, err := newRig(t, s, "").open(t.Context(), bidiMethod)
		if err != nil {
			t.Fatal(err)
		}
		var stopped *policyd.Error
		if _, err := receive(stream); !errors.As(err, &stopped) || stopped.Code != policyd.CodeNotSafe || len(s.seen()) != 1 {
			t.Fatalf("%v, %d sends", err, len(s.seen()))
		}
	})
}

func TestStream_headers_commit_it(t *testing.T) {
	headers := func(_ int, s grpc.ServerStream) error {
		if err := s.SendHeader(metadata.Pairs("h", "1")); err != nil {
			return err
		}
		return errDown
	}
	t.Run("when the caller has seen them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{stream: headers}
			stream, err := newRig(t, s, "").open(repeatable(t.Context()), bidiMethod)
			if err != nil {
				t.Fatal(err)
			}
			if md, err := stream.Header(); err != nil || md.Get("h") == nil {
				t.Fatal(md, err)
			}
			if _, err := receive(stream); status.Code(err) != codes.Unavailable || len(s.seen()) != 1 {
				t.Fatalf("%v, %d sends", err, len(s.seen()))
			}
		})
	})
	t.Run("and when only gRPC has", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{stream: headers}
			stream, err := newRig(t, s, "").open(repeatable(t.Context()), bidiMethod)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := receive(stream); status.Code(err) != codes.Unavailable || len(s.seen()) != 1 {
				t.Fatalf("%v, %d sends", err, len(s.seen()))
			}
		})
	})
	t.Run("asking for them goes on to the attempt that has some", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{stream: func(n int, s grpc.ServerStream) error {
				if n < 3 {
					return errDown
				}
				if err := s.SendHeader(metadata.Pairs("n", "3")); err != nil {
					return err
				}
				return echo(s)
			}}
			stream, err := newRig(t, s, "").open(repeatable(t.Context()), bidiMethod)
			if err != nil {
				t.Fatal(err)
			}
			if md, err := stream.Header(); err != nil || !reflect.DeepEqual(md.Get("n"), []string{"3"}) {
				t.Fatal(md, err)
			}
			send(t, stream, "x")
			_ = stream.CloseSend()
			if got, err := receive(stream); !reflect.DeepEqual(got, []string{"x"}) || !errors.Is(err, io.EOF) {
				t.Fatal(got, err)
			}
		})
	})
	t.Run("without any, receiving tells why", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := failStreams(9)
			stream, err := newRig(t, s, "").open(repeatable(t.Context()), bidiMethod)
			if err != nil {
				t.Fatal(err)
			}
			if md, err := stream.Header(); md != nil || err != nil {
				t.Fatal(md, err)
			}
			if _, err := receive(stream); !errors.Is(err, policyd.ErrAttempts) || len(s.seen()) != 5 {
				t.Fatalf("%v, %d sends", err, len(s.seen()))
			}
		})
	})
}

func TestStream_keeps_no_more_than_the_bound(t *testing.T) {
	cases := []struct {
		name string
		size int
		opts []grpc.CallOption
		want int // sends
	}{
		{"what fits is sent again", 100 << 10, nil, 2},
		{"what does not is not", 200 << 10, nil, 1},
		{"unless the caller allows more", 200 << 10, []grpc.CallOption{grpc.MaxRetryRPCBufferSize(1 << 20)}, 2},
		{"or less", 100 << 10, []grpc.CallOption{grpc.MaxRetryRPCBufferSize(1 << 10)}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{stream: func(n int, s grpc.ServerStream) error {
					got, err := receive(s)
					if n == 1 && errors.Is(err, io.EOF) {
						return errDown
					}
					return s.SendMsg(&text{Value: strings.Join(got, "")})
				}}
				stream, err := newRig(t, s, "").open(repeatable(t.Context()), clientMethod, c.opts...)
				if err != nil {
					t.Fatal(err)
				}
				send(t, stream, strings.Repeat("a", c.size), strings.Repeat("b", c.size))
				_ = stream.CloseSend()
				got, err := receive(stream)
				if n := len(s.seen()); n != c.want {
					t.Fatalf("%d sends, %v", n, err)
				}
				var stopped *policyd.Error
				switch {
				case c.want == 2 && (len(got) != 1 || len(got[0]) != 2*c.size || !errors.Is(err, io.EOF)):
					t.Fatalf("%d messages, %v", len(got), err)
				case c.want == 1 && (!errors.As(err, &stopped) || stopped.Code != policyd.CodeBody || status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "more was sent")):
					t.Fatal(err)
				}
			})
		})
	}
}

func TestStream_follows_pushback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		s := &server{stream: func(n int, s grpc.ServerStream) error {
			at = append(at, time.Since(began))
			switch n {
			case 1:
				s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", "2000"))
			case 3:
				s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", "-1"))
			}
			return errDown
		}}
		stream, err := newRig(t, s, "").open(repeatable(t.Context()), serverMethod)
		if err != nil {
			t.Fatal(err)
		}
		var stopped *policyd.Error
		if _, err := receive(stream); !errors.As(err, &stopped) || stopped.Code != policyd.CodeRetryAfter {
			t.Fatal(err)
		}
		if want := []time.Duration{0, 2 * time.Second, 2200 * time.Millisecond}; !reflect.DeepEqual(at, want) {
			t.Fatalf("sent at %v, want %v", at, want)
		}
		if got := stream.Trailer().Get("grpc-retry-pushback-ms"); !reflect.DeepEqual(got, []string{"-1"}) {
			t.Fatalf("trailer %v: not of the last attempt", got)
		}
	})
}

const streamLimits = `
---
apiVersion: policyd/v1
kind: RetryPolicy
metadata: {scope: shop/echo/bidi}
spec: {match: {grpc: {method: /test.Echo/Bidi}}, timeouts: {attempt: 1s, overall: 10s}}
`

func TestStream_that_does_not_answer_is_cut_and_repeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{stream: func(n int, s grpc.ServerStream) error {
			if n == 1 {
				<-s.Context().Done()
				return s.Context().Err()
			}
			return echo(s)
		}}
		began := time.Now()
		stream, err := newRig(t, s, streamLimits).open(repeatable(t.Context()), bidiMethod)
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, "a")
		_ = stream.CloseSend()
		got, err := receive(stream)
		if !reflect.DeepEqual(got, []string{"a"}) || !errors.Is(err, io.EOF) || time.Since(began) != 1200*time.Millisecond {
			t.Fatalf("%v, %v after %s", got, err, time.Since(began))
		}
	})
}

func TestStream_that_has_answered_has_no_limit(t *testing.T) {
	for name, first := range map[string]func(grpc.ServerStream) error{
		"with a message": func(s grpc.ServerStream) error { return s.SendMsg(&text{Value: "first"}) },
		"with headers":   func(s grpc.ServerStream) error { return s.SendHeader(metadata.Pairs("a", "b")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{stream: func(_ int, s grpc.ServerStream) error {
					if err := first(s); err != nil {
						return err
					}
					time.Sleep(time.Hour)
					return s.SendMsg(&text{Value: "late"})
				}}
				stream, err := newRig(t, s, streamLimits).open(repeatable(t.Context()), bidiMethod)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := stream.Header(); err != nil {
					t.Fatal(err)
				}
				got, err := receive(stream)
				if len(got) == 0 || got[len(got)-1] != "late" || !errors.Is(err, io.EOF) {
					t.Fatalf("%v, %v", got, err)
				}
			})
		})
	}
}

func TestStream_left_by_its_caller_gives_everything_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{stream: func(_ int, s grpc.ServerStream) error {
			<-s.Context().Done()
			return s.Context().Err()
		}}
		r := newRig(t, s, "")
		ctx, cancel := context.WithCancel(repeatable(t.Context()))
		var finished error
		stream, err := r.open(ctx, bidiMethod, grpc.OnFinish(func(err error) { finished = err }))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if status.Code(finished) != codes.Canceled {
			t.Fatalf("finished with %v", finished)
		}
		if err := stream.RecvMsg(&text{}); status.Code(err) != codes.Canceled {
			t.Fatalf("received %v", err)
		}
		// During the wait before a retry.
		s.stream = func(int, grpc.ServerStream) error { return errDown }
		ctx, cancel = context.WithCancel(repeatable(t.Context()))
		time.AfterFunc(50*time.Millisecond, cancel)
		if stream, err = r.open(ctx, bidiMethod); err != nil {
			t.Fatal(err)
		}
		if _, err := receive(stream); status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if n := len(r.Attempts(endpoint)); n != 2 {
			t.Fatalf("%d attempts", n)
		}
	})
}

func TestStream_refused_is_never_sent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failStreams(0)
		r := newRig(t, s, "")
		r.Switch("force-open", "shop/echo", time.Hour)
		finished := 0
		_, err := r.open(t.Context(), bidiMethod, grpc.OnFinish(func(error) { finished++ }))
		if !errors.Is(err, policyd.ErrBreakerOpen) || status.Code(err) != codes.Unavailable || len(s.seen()) != 0 || finished != 1 {
			t.Fatalf("%v, finished %d times", err, finished)
		}
	})
}

func TestStream_without_a_connection_is_tried_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, failStreams(0), "")
		r.server.Stop()
		_, err := r.open(t.Context(), bidiMethod)
		if !errors.Is(err, policyd.ErrAttempts) || status.Code(err) != codes.Unavailable || len(r.Attempts(endpoint)) != 5 {
			t.Fatalf("%v after %d attempts", err, len(r.Attempts(endpoint)))
		}
	})
}

func TestStream_sends_and_receives_at_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		s := &server{stream: func(call int, s grpc.ServerStream) error {
			for range n {
				m := &text{}
				if err := s.RecvMsg(m); err != nil {
					return err
				}
				if call == 1 {
					return errDown // while more is on its way
				}
				if err := s.SendMsg(m); err != nil {
					return err
				}
			}
			return nil
		}}
		stream, err := newRig(t, s, "").open(repeatable(t.Context()), bidiMethod)
		if err != nil {
			t.Fatal(err)
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			for i := range n {
				if err := stream.SendMsg(&text{Value: string(rune('a' + i%26))}); err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
			_ = stream.CloseSend()
		})
		got, err := receive(stream)
		sending.Wait()
		if len(got) != n || !errors.Is(err, io.EOF) {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		for i, v := range got {
			if v != string(rune('a'+i%26)) {
				t.Fatalf("message %d is %q", i, v)
			}
		}
	})
}
