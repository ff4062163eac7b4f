// SPDX-License-Identifier: Apache-2.0

package policygrpc

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/internal/seam"
)

// stream is one call of a streaming method: an attempt after another, until one has
// answered. As gRPC has it, one goroutine may send while another one receives.
type stream struct {
	ctx       context.Context //nolint:containedctx // the caller's, as long as the stream
	opts      options
	streaming bool // the server sends any number of messages
	dial      func(context.Context, []grpc.CallOption) (grpc.ClientStream, error)
	stop      func() bool // of the look-out for the end of ctx

	// receiving guards the call and all changes of the attempt; it is taken before mu.
	receiving sync.Mutex
	call      seam.Call
	settled   bool  // the attempt has answered, or the stream is over
	over      bool  // err is the end of the stream
	err       error // io.EOF for a good end

	// mu guards what sending needs; it is not held while a message is sent.
	mu      sync.Mutex
	attempt grpc.ClientStream
	arrive  func() bool // lifts its time limit; nil without one
	sent    []any       // kept for a repeat
	size    int         // of sent, in bytes
	keeps   bool        // another attempt may follow
	lost    bool        // what was sent is more than is kept
	seen    bool        // headers or a message were handed over: no attempt may follow
	sentAll bool        // CloseSend was called
}

// start makes the first attempt, or as many as it takes until one is under way.
func (s *stream) start() error {
	if err := s.call.Begin(); err != nil {
		err = left(s.ctx, err)
		s.opts.finish(err)
		return err
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if !s.open() {
		return s.err
	}
	s.stop = context.AfterFunc(s.ctx, s.abandon)
	return nil
}

// open starts attempts until one is under way. It reports false when the stream is over.
func (s *stream) open() (ok bool) {
	panicked := true
	defer func() {
		if panicked {
			s.call.Drop(true)
		}
	}()
	for {
		a := s.call.Open(true)
		attempt, err := s.dial(outgoing(&a), s.opts.call)
		panicked = false
		if err == nil {
			s.resend(attempt, &a)
			return true
		}
		if !s.settle(seam.Result{Err: err, NotSent: status.Code(err) == codes.Unavailable}) {
			return false
		}
		panicked = true
	}
}

// resend makes an attempt the one in progress and sends what earlier ones were sent. If that
// breaks off, receiving says why.
func (s *stream) resend(attempt grpc.ClientStream, a *seam.Attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt, s.arrive, s.keeps = attempt, a.Arrived, a.Replay
	for _, m := range s.sent {
		if attempt.SendMsg(m) != nil {
			break
		}
	}
	if s.sentAll {
		_ = attempt.CloseSend()
	}
	if !a.Replay {
		s.sent = nil
	}
}

// settle takes the failure of an attempt and reports whether there is to be another one.
// Otherwise the stream is over.
func (s *stream) settle(r seam.Result) (again bool) {
	again, err := s.call.Settle(r)
	if again {
		s.opts.reset()
		return true
	}
	s.settled = true
	s.end(left(s.ctx, err))
	return false
}

// end notes how the stream ended, once.
func (s *stream) end(err error) {
	if s.over {
		return
	}
	s.over, s.settled, s.err = true, true, err
	if s.stop != nil {
		s.stop()
	}
	s.call.Drop(false)
	s.mu.Lock()
	s.sent, s.keeps = nil, false
	s.mu.Unlock()
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		err = nil
	}
	s.opts.finish(err)
}

// abandon ends a stream whose caller has gone without a look at its end.
func (s *stream) abandon() {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	s.end(status.FromContextError(s.ctx.Err()).Err())
}

// current returns the attempt in progress.
func (s *stream) current() grpc.ClientStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt
}

// answered says that the attempt in progress is the last, and has no time limit any more.
func (s *stream) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.keeps, s.sent = true, false, nil
	if s.arrive != nil {
		s.arrive()
	}
}

// RecvMsg receives the next message. Until the first one, an attempt that fails is followed
// by another one as the policy says.
func (s *stream) RecvMsg(m any) error {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	for !s.over {
		err := s.current().RecvMsg(m)
		switch {
		case err == nil:
			s.arrived()
			if !s.streaming {
				s.end(io.EOF)
			}
			return nil
		case err == io.EOF: //nolint:errorlint // gRPC returns it bare
			s.arrived()
			s.end(err)
		case s.settled:
			s.end(err)
		default:
			s.failed(err)
		}
	}
	return s.err
}

// arrived settles an attempt that has answered.
func (s *stream) arrived() {
	if s.settled {
		return
	}
	s.settled = true
	s.answered()
	_, _ = s.call.Settle(seam.Result{})
}

// failed takes the error of the attempt in progress and starts another one, or ends the
// stream.
func (s *stream) failed(err error) {
	attempt := s.current()
	// With headers the server has begun to answer, and gRPC has nobody repeat that.
	header, _ := attempt.Header()
	s.mu.Lock()
	r := seam.Result{Err: err, Committed: s.seen || header != nil, Lost: s.lost, Server: pushback(attempt.Trailer())}
	s.mu.Unlock()
	if s.settle(r) {
		s.open()
	}
}

// SendMsg sends a message. As long as another attempt may follow it is kept, and an attempt
// that has failed is no error: receiving goes on with the next one.
func (s *stream) SendMsg(m any) error {
	s.mu.Lock()
	attempt := s.attempt
	s.keep(m)
	s.mu.Unlock()
	err := attempt.SendMsg(m)
	if err == io.EOF { //nolint:errorlint // gRPC returns it bare
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.attempt != attempt || s.keeps && !s.lost {
			return nil // it was sent again with the others, or will be
		}
	} else if err != nil {
		s.aborted(err)
	}
	return err
}

// aborted ends a stream that gRPC has ended by itself, so that its caller may leave it. One
// that is receiving is told by the attempt.
func (s *stream) aborted(err error) {
	if s.receiving.TryLock() {
		defer s.receiving.Unlock()
		s.end(err)
		return
	}
	go func() {
		s.receiving.Lock()
		defer s.receiving.Unlock()
		s.end(err)
	}()
}

// closed takes the end of an attempt whose channel was closed: nobody has to receive it.
func (s *stream) closed(cc *grpc.ClientConn) grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		if err != nil && cc.GetState() == connectivity.Shutdown {
			go s.aborted(err) // gRPC holds a lock here
		}
	})
}

// keep keeps a message, if another attempt may follow and there is room.
func (s *stream) keep(m any) {
	if !s.keeps || s.lost {
		return
	}
	size, ok := sizeOf(m)
	if s.size += size; !ok || s.size > s.opts.kept {
		s.lost, s.sent = true, nil
		return
	}
	s.sent = append(s.sent, m)
}

// sizeOf is the size of a message on the wire, if it is known.
func sizeOf(m any) (int, bool) {
	switch m := m.(type) {
	case proto.Message:
		return proto.Size(m), true
	case interface{ Size() int }:
		return m.Size(), true
	default:
		return 0, false
	}
}

// CloseSend says that no message follows.
func (s *stream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sentAll = true
	return s.attempt.CloseSend()
}

// Header returns the headers of the answer. Once they are there no attempt follows.
func (s *stream) Header() (metadata.MD, error) {
	for {
		attempt := s.current()
		header, err := attempt.Header()
		if header != nil || err != nil {
			s.answered()
			return header, err
		}
		if s.overWithout(attempt) {
			return nil, nil
		}
	}
}

// overWithout takes the end of an attempt without headers, and reports whether the stream is
// over with it.
func (s *stream) overWithout(attempt grpc.ClientStream) bool {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if s.over || s.current() != attempt {
		return s.over
	}
	switch err := attempt.RecvMsg(nil); { // there is no message
	case s.settled || err == io.EOF: //nolint:errorlint // gRPC returns it bare
		s.arrived()
		s.end(err)
	default:
		s.failed(err)
	}
	return s.over
}

// Trailer returns the trailers of the last attempt, once receiving has returned an error.
func (s *stream) Trailer() metadata.MD {
	if attempt := s.current(); attempt != nil {
		return attempt.Trailer()
	}
	return nil
}

// Context returns the context of the attempt in progress.
func (s *stream) Context() context.Context {
	if attempt := s.current(); attempt != nil {
		return attempt.Context()
	}
	return s.ctx
}
