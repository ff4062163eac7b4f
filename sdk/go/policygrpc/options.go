// SPDX-License-Identifier: Apache-2.0

package policygrpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// maxKept is what is kept of a stream for a repeat, in bytes: gRPC's own default.
const maxKept = 256 << 10

// options are the call options of an application.
type options struct {
	call []grpc.CallOption // each attempt's
	done []func(error)
	kept int
}

// newOptions takes out what must be told once per call, not once per attempt. The caller's
// slice is left as it is.
func newOptions(all []grpc.CallOption) options {
	o := options{call: all, kept: maxKept}
	for i, opt := range all {
		switch opt := opt.(type) {
		case grpc.OnFinishCallOption:
			if len(o.done) == 0 {
				o.call = append([]grpc.CallOption(nil), all[:i]...)
			}
			o.done = append(o.done, opt.OnFinish)
			continue
		case grpc.MaxRetryRPCBufferSizeCallOption:
			o.kept = max(opt.MaxRetryRPCBufferSize, 0)
		}
		if len(o.done) > 0 {
			o.call = append(o.call, opt)
		}
	}
	return o
}

// reset forgets what an earlier attempt has filled in: the next may not get that far.
func (o *options) reset() {
	for _, opt := range o.call {
		switch opt := opt.(type) {
		case grpc.HeaderCallOption:
			*opt.HeaderAddr = nil
		case grpc.TrailerCallOption:
			*opt.TrailerAddr = nil
		case grpc.PeerCallOption:
			*opt.PeerAddr = peer.Peer{}
		}
	}
}

// withoutResults returns the options that attempts at once may share: what an application
// wants to be told is filled in afterwards.
func (o *options) withoutResults() []grpc.CallOption {
	rest := make([]grpc.CallOption, 0, len(o.call))
	for _, opt := range o.call {
		switch opt.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
		default:
			rest = append(rest, opt)
		}
	}
	return rest
}

// fill tells the application what the deciding attempt of several came to.
func (o *options) fill(got *answer) {
	for _, opt := range o.call {
		switch opt := opt.(type) {
		case grpc.HeaderCallOption:
			*opt.HeaderAddr = got.header
		case grpc.TrailerCallOption:
			*opt.TrailerAddr = got.trailer
		case grpc.PeerCallOption:
			*opt.PeerAddr = got.peer
		}
	}
}

// finish tells how the call ended.
func (o *options) finish(err error) {
	for _, done := range o.done {
		done(err)
	}
}
