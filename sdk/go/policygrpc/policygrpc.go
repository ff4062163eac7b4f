// SPDX-License-Identifier: Apache-2.0

// Package policygrpc puts the calls of a gRPC channel under the policies of package policyd:
//
//	opts := append(policygrpc.DialOptions(), grpc.WithTransportCredentials(creds))
//	conn, err := grpc.NewClient("dns:///payments.shop:443", opts...)
//
// The endpoint of a call is the one whose match.grpc names its method, else it is kept under
// the service, or the host of the target, that fits. Retries that a service config asks for
// are off on such a channel; the transparent retries of gRPC, of calls that no server has
// seen, remain.
//
// # What is repeated
//
// A call is repeated if its method is declared with idempotency_level NO_SIDE_EFFECTS or
// IDEMPOTENT, if it carries a key ([policyd.IdempotencyKey], or the policy's
// idempotency.key), if the application says so ([policyd.Idempotent]), if the policy's
// idempotency.methods has POST, or if it certainly was not sent: no connection was there.
//
// A stream is repeated until its first message or its headers have been handed over, and as
// long as what was sent fits into 256 KiB, or what [grpc.MaxRetryRPCBufferSize] says. After
// its first message it is left alone: its breaker and budget count it as answered.
//
// # Hedging
//
// A unary call that may be repeated is hedged as the policy says, if its messages are
// protobuf's: each attempt gets copies, so that the request is the caller's again when the
// call returns, and a loser, which is cancelled, writes nowhere. Interceptors and options
// further in may meet several attempts of a call at once. Streams are not hedged: what was
// sent to one would have to be sent to all.
//
// # Down the chain
//
// Where the policy says nested.mark, attempts carry W3C baggage in the metadata baggage. With
// [ServerOptions], or [IncomingUnary] and [IncomingStream], a server takes note of it, and what
// it calls for such a request in the request's context is sent once where the policy says
// nested.whenMarked: single-attempt.
//
// # Fallback
//
// There is no static answer for gRPC: code finds the advice of the policy by
// [policyd.Error.Fallback], and [policyd.LastGood] may wrap a call.
//
// # Breakers
//
// Under breaker.per: host the host is that of the channel's target, as in payments.shop:443:
// which of its addresses a call goes to is known only once it is sent. Channels to different
// targets have different breakers.
//
// The trailer grpc-retry-pushback-ms replaces the wait and starts the backoff anew; one that
// is negative or no number forbids the retry. Retries carry grpc-previous-rpc-attempts.
//
// # Timeouts
//
// timeouts.attempt and timeouts.overall are deadlines of a unary call. For a stream they
// bound the time until its first message, or its headers if the application asks for them.
//
// # Errors
//
// Where the policy changed the outcome, errors are a *[policyd.Error], which package status
// reads as well: breaker_open is UNAVAILABLE, concurrency_limited RESOURCE_EXHAUSTED,
// deadline_exceeded DEADLINE_EXCEEDED, and anything else has the status of the last attempt.
// Other errors pass through as they are. Call options such as [grpc.Header], [grpc.Trailer]
// and [grpc.Peer] are filled from the last attempt; [grpc.OnFinish] is told once.
package policygrpc

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// DialOptions returns the options of a channel under the policies of [policyd.Default], or
// of the client that [policyd.Using] put into the context of a call. With options of its
// own, the channel gets a client made of them, which lives as long as the process; what is
// wrong in them is logged and left out. To share a client, or to close it, use
// [ClientDialOptions].
//
// Interceptors that are added after these see each attempt, those before each call.
func DialOptions(opts ...policyd.Option) []grpc.DialOption {
	if len(opts) == 0 {
		return ClientDialOptions(nil)
	}
	c, _ := seam.Of().Lenient(opts).(*policyd.Client)
	return ClientDialOptions(c)
}

// ClientDialOptions is [DialOptions] with the policies of c; nil is as without options.
func ClientDialOptions(c *policyd.Client) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(UnaryClientInterceptor(c)),
		grpc.WithChainStreamInterceptor(StreamClientInterceptor(c)),
	}
}

// UnaryClientInterceptor puts unary calls under the policies of c; nil is [policyd.Default],
// or the client of [policyd.Using]. The channel needs [grpc.WithDisableRetry] beside it, or
// its own retries multiply these. Safe for concurrent use.
func UnaryClientInterceptor(c *policyd.Client) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		u := unary{call: newCall(ctx, c, method, cc), method: method, cc: cc, invoke: invoker, opts: newOptions(opts)}
		err := u.run(req, reply) //nolint:contextcheck // the call holds ctx and makes each attempt's from it
		if err != nil {
			err = left(ctx, err)
		}
		u.opts.finish(err)
		return err
	}
}

// StreamClientInterceptor is [UnaryClientInterceptor] for streams. As with gRPC itself, a
// stream has to be received from until its error, or its context be cancelled, or its channel
// be closed, unless sending has failed.
func StreamClientInterceptor(c *policyd.Client) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s := &stream{
			ctx: ctx, call: newCall(ctx, c, method, cc), opts: newOptions(opts), streaming: desc.ServerStreams,
			dial: func(ctx context.Context, opts []grpc.CallOption) (grpc.ClientStream, error) {
				return streamer(ctx, desc, cc, method, opts...)
			},
		}
		if cc != nil {
			s.opts.call = append(slices.Clip(s.opts.call), s.closed(cc))
		}
		if err := s.start(); err != nil { //nolint:contextcheck // the call holds ctx and makes each attempt's from it
			return nil, err
		}
		return s, nil
	}
}

func newCall(ctx context.Context, c *policyd.Client, method string, cc *grpc.ClientConn) seam.Call {
	host := ""
	if cc != nil {
		host = hostOf(cc.Target())
	}
	return seam.Of().Call(ctx, c, seam.Method{Name: method, Host: host, Repeats: declared})
}

// hostOf returns the endpoint of a target such as dns:///payments.shop:443.
func hostOf(target string) string {
	if _, rest, ok := strings.Cut(target, "://"); ok {
		_, target, _ = strings.Cut(rest, "/")
		return target
	}
	for _, scheme := range [...]string{"dns:", "passthrough:", "unix:", "unix-abstract:", "vsock:"} {
		if rest, ok := strings.CutPrefix(target, scheme); ok {
			return rest
		}
	}
	return target
}

// declared reports whether a method's definition says that it may be repeated.
func declared(method string) bool {
	service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if !ok {
		return false
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return false
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return false
	}
	m := s.Methods().ByName(protoreflect.Name(name))
	if m == nil {
		return false
	}
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}
