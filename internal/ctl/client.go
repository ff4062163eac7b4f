// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// client is the connection to policyd.
type client struct {
	policydv1.AdminServiceClient
	conn *grpc.ClientConn
	dial dialRecord
}

// dialRecord remembers why connecting fails; gRPC does not tell.
type dialRecord struct {
	mu    sync.Mutex
	tries int
	last  error
}

const (
	maxDialTries   = 3
	maxDialTime    = 2 * time.Second
	maxAnswerBytes = 256 << 20 // the export of a large control plane
)

func (r *dialRecord) connect(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	r.last = err
	return conn, err
}

func (r *dialRecord) failed() (tries int, last error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tries, r.last
}

func (c *client) close() { _ = c.conn.Close() } // nothing is lost with it

// connected returns the client once policyd can be reached.
func (a *app) connected(ctx context.Context) (*client, error) {
	if a.client == nil {
		c, err := a.newClient()
		if err != nil {
			return nil, err
		}
		a.client = c
	}
	return a.client, a.reach(ctx)
}

func (a *app) newClient() (*client, error) {
	s, err := a.config()
	if err != nil {
		return nil, err
	}
	c := &client{}
	c.conn, err = grpc.NewClient("passthrough:///"+s.addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial.connect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithUserAgent("policyctl"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.1, MaxDelay: time.Second},
			MinConnectTimeout: maxDialTime,
		}),
		grpc.WithChainUnaryInterceptor(a.traceUnary),
		grpc.WithChainStreamInterceptor(a.traceStream),
	)
	if err != nil {
		return nil, usagef("address %q: %s", s.addr, err)
	}
	c.AdminServiceClient = policydv1.NewAdminServiceClient(c.conn)
	return c, nil
}

// reach waits for the connection, for three tries or two seconds at most.
func (a *app) reach(ctx context.Context) error {
	conn := a.client.conn
	if conn.GetState() == connectivity.Ready {
		return nil
	}
	start := time.Now()
	before, _ := a.client.dial.failed()
	limit, cancel := context.WithTimeout(ctx, min(maxDialTime, a.global.timeout))
	defer cancel()
	if a.global.verbose {
		a.err.printf("connecting to %s\n", a.addr())
	}
	for {
		conn.Connect()
		state := conn.GetState()
		tries, last := a.client.dial.failed()
		switch {
		case state == connectivity.Ready:
			return nil
		case ctx.Err() != nil:
			return failf(exitInterrupted, "interrupted", "interrupted before anything was sent")
		case limit.Err() != nil || tries-before >= maxDialTries && last != nil:
			return a.unreachable(tries-before, last, time.Since(start))
		}
		wait, stop := context.WithTimeout(limit, 50*time.Millisecond)
		conn.WaitForStateChange(wait, state)
		stop()
	}
}

func (a *app) unreachable(tries int, last error, took time.Duration) *failure {
	why := "no answer"
	if last != nil {
		why = dialReason(last)
	}
	times := "1 try"
	if tries != 1 {
		times = fmt.Sprintf("%d tries", tries)
	}
	f := failf(exitUnavailable, "unavailable", "cannot reach policyd at %s (%s, %s in %s)", a.addr(), why, times, shortDuration(took.Round(100*time.Millisecond)))
	f.add("Nothing was changed. Instances keep their last good policy.")
	s, err := a.config()
	if err == nil {
		f.add("Check:  is policyd running there? The address is from %s; --addr, POLICYCTL_ADDR and %s set it.", s.addrFrom, dirFile)
	}
	return f
}

func dialReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &dns):
		return "no such host " + dns.Name
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	}
	message := err.Error()
	return message[strings.LastIndex(message, ": ")+1:]
}

// method is a unary method of AdminService.
type method[Req, Resp any] func(policydv1.AdminServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// read asks policyd something.
func read[Req, Resp any](ctx context.Context, a *app, m method[Req, Resp], req *Req) (*Resp, error) {
	c, err := a.connected(ctx)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(a.outgoing(ctx), a.global.timeout)
	defer cancel()
	resp, err := m(c, limit, req)
	if err != nil {
		return nil, a.fromStatus(err)
	}
	return resp, nil
}

// write asks policyd to change something. Where the answer is lost it says that the change
// may have happened.
func write[Req, Resp any](ctx context.Context, a *app, m method[Req, Resp], req *Req) (*Resp, error) {
	c, err := a.connected(ctx)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(a.outgoing(ctx), a.global.timeout)
	defer cancel()
	resp, err := m(c, limit, req)
	if err == nil {
		return resp, nil
	}
	f := a.fromStatus(err)
	if len(status.Convert(err).Details()) == 0 && (f.exit == exitUnavailable || f.exit == exitInterrupted) {
		f.message += "; the write had been sent, whether it was saved is not known"
		f.hints = append([]string{"Look before you repeat it:  policyctl status"}, f.hints...)
	} else if f.exit == exitUnavailable {
		f.add("Nothing was changed. Instances keep their last good policy.")
	}
	return nil, f
}

func (a *app) outgoing(ctx context.Context) context.Context {
	if id := a.global.requestID; id != "" {
		return metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
	}
	return ctx
}

func (a *app) traceUnary(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error { //nolint:revive // the signature is gRPC's
	start := time.Now()
	err := invoke(ctx, name, req, reply, cc, opts...)
	a.trace(name, start, err)
	return err
}

func (a *app) traceStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, name string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) { //nolint:revive // the signature is gRPC's
	start := time.Now()
	stream, err := streamer(ctx, desc, cc, name, opts...)
	a.trace(name, start, err)
	return stream, err
}

func (a *app) trace(name string, start time.Time, err error) {
	if a.global.verbose {
		a.err.printf("%s %s %s\n", name[strings.LastIndexByte(name, '/')+1:], status.Code(err), time.Since(start).Round(time.Millisecond))
	}
}
