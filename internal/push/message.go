// SPDX-License-Identifier: Apache-2.0

package push

import (
	"time"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// message is an Update without its numbers: shared entries, in pieces.
type message struct {
	epoch  string
	hash   uint64
	whole  bool      // a snapshot
	of     *snapshot // that it leads to
	pieces []piece
	// oldest is when the oldest change in it was published.
	oldest time.Duration

	frame *frame // guarded by viewState.mu
}

type piece struct {
	entries mem.BufferSlice
	size    int
}

// fill puts documents into pieces of at most limit bytes, or one document.
func (m *message) fill(found []*document, limit int) {
	m.pieces = make([]piece, 1)
	for i, d := range found {
		if i == 0 || d.at < m.oldest {
			m.oldest = d.at
		}
		last := &m.pieces[len(m.pieces)-1]
		if last.size > 0 && last.size+d.encoded.Len() > limit {
			m.pieces = append(m.pieces, piece{})
			last = &m.pieces[len(m.pieces)-1]
		}
		last.entries = append(last.entries, d.encoded)
		last.size += d.encoded.Len()
	}
}

// size is about what the message takes on the wire.
func (m *message) size() int {
	const head = 80
	n := 0
	for i := range m.pieces {
		n += m.pieces[i].size + head + frameOverhead
	}
	return n
}

// Field numbers of WatchResponse and Update.
const (
	fieldUpdate     protowire.Number = 1
	fieldEpoch      protowire.Number = 1
	fieldAt         protowire.Number = 2
	fieldHash       protowire.Number = 3
	fieldSnapshot   protowire.Number = 4
	fieldMore       protowire.Number = 5
	fieldServerTime protowire.Number = 6
	fieldEntries    protowire.Number = 7
	fieldWithin     protowire.Number = 8
	fieldAsOf       protowire.Number = 9
	fieldToken      protowire.Number = 10
)

// frame is an encoded WatchResponse. Immutable; many streams send the same one.
type frame struct {
	data mem.BufferSlice
	size int
	// of an Update
	revision int64
	at       time.Duration
}

// frameOverhead is what gRPC adds to a message.
const frameOverhead = 5

// maxFrameAge bounds how far server_time may be behind the moment of sending.
const maxFrameAge = 200 * time.Millisecond

// stamp makes the frame of piece i.
func (m *message) stamp(i int, revision int64, now, within time.Duration, clock reading) *frame {
	p := &m.pieces[i]
	var fields []byte
	fields = protowire.AppendTag(fields, fieldEpoch, protowire.BytesType)
	fields = protowire.AppendString(fields, m.epoch)
	fields = protowire.AppendTag(fields, fieldAt, protowire.VarintType)
	fields = protowire.AppendVarint(fields, uint64(revision))
	fields = protowire.AppendTag(fields, fieldHash, protowire.Fixed64Type)
	fields = protowire.AppendFixed64(fields, m.hash)
	if m.whole {
		fields = protowire.AppendTag(fields, fieldSnapshot, protowire.VarintType)
		fields = protowire.AppendVarint(fields, 1)
	}
	if i < len(m.pieces)-1 {
		fields = protowire.AppendTag(fields, fieldMore, protowire.VarintType)
		fields = protowire.AppendVarint(fields, 1)
	}
	fields = protowire.AppendTag(fields, fieldServerTime, protowire.BytesType)
	fields = protowire.AppendBytes(fields, encodeTime(clock.time.Unix(), clock.time.Nanosecond()))
	if within > 0 {
		fields = protowire.AppendTag(fields, fieldWithin, protowire.BytesType)
		fields = protowire.AppendBytes(fields, encodeTime(int64(within/time.Second), int(within%time.Second)))
	}
	if !clock.asOf.IsZero() {
		fields = protowire.AppendTag(fields, fieldAsOf, protowire.BytesType)
		fields = protowire.AppendBytes(fields, encodeTime(clock.asOf.Unix(), clock.asOf.Nanosecond()))
	}
	// Of what another policyd told it, this one can prove nothing.
	if revision == m.of.revision && len(m.of.token) > 0 {
		fields = protowire.AppendTag(fields, fieldToken, protowire.BytesType)
		fields = protowire.AppendBytes(fields, m.of.token)
	}

	var head []byte
	head = protowire.AppendTag(head, fieldUpdate, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(fields)+p.size))
	head = append(head, fields...)
	f := &frame{size: len(head) + p.size, revision: revision, at: now}
	if f.size > maxJoined {
		f.data = append(mem.BufferSlice{mem.SliceBuffer(head)}, p.entries...)
		return f
	}
	for _, e := range p.entries {
		head = append(head, e.ReadOnlyData()...)
	}
	f.data = mem.BufferSlice{mem.SliceBuffer(head)}
	return f
}

// maxJoined is the size up to which one copy is cheaper, over many sends, than a list.
const maxJoined = 8 << 10

// encodeTime returns a Timestamp or a Duration.
func encodeTime(seconds int64, nanos int) []byte {
	var b []byte
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(seconds))
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(nanos))
}

func heartbeatFrame(s *snapshot, clock reading) *frame {
	beat := &policydv1.Heartbeat{Revision: s.revision, ServerTime: timestamppb.New(clock.time), Token: s.token}
	if !clock.asOf.IsZero() {
		beat.AsOf = timestamppb.New(clock.asOf)
	}
	return encode(&policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{Heartbeat: beat}}, s.revision)
}

func goAwayFrame(within time.Duration, reason string) *frame {
	return encode(&policydv1.WatchResponse{Kind: &policydv1.WatchResponse_GoAway{
		GoAway: &policydv1.GoAway{ReconnectWithin: durationpb.New(within), Reason: reason},
	}}, 0)
}

func encode(r *policydv1.WatchResponse, revision int64) *frame {
	// Marshalling fails only for strings that are not UTF-8; there are none of foreign make.
	b, _ := proto.Marshal(r)
	return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}, size: len(b), revision: revision}
}

// codec is gRPC's codec of protobuf that also knows frames and requests.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec { return codec{encoding.GetCodecV2(encodingproto.Name)} }

// Marshal returns a frame's bytes as they are. They are not counted references, so that
// all streams can hold them at once.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal knows requests.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*request); ok {
		r.take(data)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
