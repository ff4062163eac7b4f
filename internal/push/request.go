// SPDX-License-Identifier: Apache-2.0

package push

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// MaxRequest is the size of the largest message that an instance may send; a report of all
// endpoints that are kept takes a third of it.
const MaxRequest = 1 << 20

// request is what an instance says: a plain Ack, which each update brings from each stream
// and which is read without garbage, or any other message, encoded.
type request struct {
	plain bool
	ack   plainAck
	other []byte
	size  int
}

// receive waits for the next message of an instance.
func (r *request) receive(conn grpc.ServerStream) error {
	if err := conn.RecvMsg(r); err != nil {
		return err
	}
	if r.size > MaxRequest {
		return status.Errorf(codes.ResourceExhausted, "message of %d bytes: at most %d", r.size, MaxRequest)
	}
	return nil
}

// plainAck is an Ack that rejects nothing.
type plainAck struct {
	epoch        string
	revision     int64
	wantSnapshot bool
}

// Field numbers of WatchRequest and Ack.
const (
	fieldAck          protowire.Number = 3
	fieldAckEpoch     protowire.Number = 1
	fieldAckRevision  protowire.Number = 2
	fieldWantSnapshot protowire.Number = 4
)

// take keeps what is not a plain Ack for message: to read it here, below everything that
// waits for it, would take a larger stack for the life of the stream.
func (r *request) take(data mem.BufferSlice) {
	r.size, r.other = data.Len(), nil
	if r.plain = len(data) == 1 && r.ack.read(data[0].ReadOnlyData()); !r.plain && r.size <= MaxRequest {
		r.other = data.Materialize()
	}
}

// message returns what is not a plain Ack.
func (r *request) message() (*policydv1.WatchRequest, error) {
	m := new(policydv1.WatchRequest)
	if err := proto.Unmarshal(r.other, m); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "message cannot be read: %v", err)
	}
	r.other = nil
	return m, nil
}

// read is false for anything but a plain Ack in the usual form; then a is of no use.
func (a *plainAck) read(b []byte) bool {
	field, kind, n := protowire.ConsumeTag(b)
	if n < 0 || field != fieldAck || kind != protowire.BytesType {
		return false
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m < len(b) {
		return false
	}
	epoch := ""
	a.revision, a.wantSnapshot = 0, false
	for len(body) > 0 {
		field, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return false
		}
		body = body[n:]
		var v uint64
		switch {
		case field == fieldAckEpoch && kind == protowire.BytesType:
			var name []byte
			name, n = protowire.ConsumeBytes(body)
			if epoch = a.epoch; string(name) != epoch {
				epoch = string(name)
			}
		case field == fieldAckRevision && kind == protowire.VarintType:
			v, n = protowire.ConsumeVarint(body)
			a.revision = int64(v)
		case field == fieldWantSnapshot && kind == protowire.VarintType:
			v, n = protowire.ConsumeVarint(body)
			a.wantSnapshot = protowire.DecodeBool(v)
		default:
			return false
		}
		if n < 0 {
			return false
		}
		body = body[n:]
	}
	a.epoch = epoch
	return true
}
