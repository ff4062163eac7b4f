// SPDX-License-Identifier: Apache-2.0

package policygrpc_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/sdk/go/policygrpc"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// refuse plays an HTTP/2 server that refuses every stream before it looks at it, and tells
// of each.
func refuse(conn net.Conn, streams chan<- uint32) {
	defer conn.Close()
	const (
		headers, reset, settings, ping = 1, 3, 4, 6
		ack                            = 1
		refusedStream                  = 7
	)
	write := func(kind, flags byte, stream uint32, payload []byte) {
		frame := make([]byte, 9, 9+len(payload))
		binary.BigEndian.PutUint32(frame, uint32(len(payload))<<8)
		frame[3], frame[4] = kind, flags
		binary.BigEndian.PutUint32(frame[5:], stream)
		_, _ = conn.Write(append(frame, payload...))
	}
	if _, err := io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	write(settings, 0, 0, nil)
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[:])>>8)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:])
		switch {
		case head[3] == headers:
			streams <- stream
			write(reset, 0, stream, binary.BigEndian.AppendUint32(nil, refusedStream))
		case head[3] == settings && head[4]&ack == 0:
			write(settings, ack, 0, nil)
		case head[3] == ping && head[4]&ack == 0:
			write(ping, ack, 0, payload)
		}
	}
}

// A stream that a server refused was not seen by it: gRPC sends it once more by itself, and
// no policy counts that.
func TestTransparent_retries_of_gRPC_are_left_alone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams := make(chan uint32, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go refuse(conn, streams)
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	for _, c := range []struct {
		name, spec string
		sends      int // by the policy
	}{
		{"one attempt", "{maxAttempts: 1}", 1},
		{"two attempts", "{maxAttempts: 2, backoff: {base: 1ms, max: 1ms}, idempotency: {methods: [POST]}}", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := policytest.New(t, "{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: global}, spec: "+c.spec+"}")
			conn, err := grpc.NewClient(listener.Addr().String(),
				append(policygrpc.ClientDialOptions(f.Client()), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err = conn.Invoke(ctx, unaryMethod, &text{}, &text{})
			if status.Code(err) != codes.Unavailable {
				t.Fatal(err)
			}
			if n := len(f.Attempts(listener.Addr().String())); n != c.sends {
				t.Errorf("%d attempts by the policy, want %d", n, c.sends)
			}
			if n := len(streams); n != 2*c.sends {
				t.Errorf("%d streams, want %d: each attempt and its transparent retry", n, 2*c.sends)
			}
			for len(streams) > 0 {
				<-streams
			}
		})
	}
}
