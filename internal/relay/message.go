// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// update is an Update whose documents were not decoded: they go down as they came, fields
// that this relay does not know included.
type update struct {
	*policydv1.Update // without entries

	entries []sent
}

// sent is an Entry. Its document is nil if it was deleted.
type sent struct {
	key      string
	revision int64
	document []byte
}

// raw is a message as it came. Only codec reads it.
type raw []byte

// codec is gRPC's codec of protobuf that leaves a raw as it is.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec { return codec{encoding.GetCodecV2(encodingproto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*raw); ok {
		*r = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Field numbers of WatchResponse, Update and Entry.
const (
	fieldUpdate   protowire.Number = 1
	fieldEntries  protowire.Number = 7
	fieldKey      protowire.Number = 1
	fieldRevision protowire.Number = 2
	fieldDeleted  protowire.Number = 5
)

var errMalformed = errors.New("message cannot be read")

// readResponse reads a WatchResponse: an update, or else what it is.
func readResponse(m raw) (*update, *policydv1.WatchResponse, error) {
	var body []byte
	rest, err := fields(m, func(f field) error {
		if f.number == fieldUpdate && f.kind == protowire.BytesType {
			body = append(body, f.bytes...) // a message in parts is their concatenation
			return errTaken
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if body == nil {
		other := &policydv1.WatchResponse{}
		if err := proto.Unmarshal(rest, other); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		return nil, other, nil
	}
	u, err := readUpdate(body)
	return u, nil, err
}

func readUpdate(body []byte) (*update, error) {
	u := &update{Update: &policydv1.Update{}}
	head, err := fields(body, func(f field) error {
		if f.number != fieldEntries || f.kind != protowire.BytesType {
			return nil
		}
		e, err := readEntry(f.bytes)
		if err != nil {
			return err
		}
		u.entries = append(u.entries, e)
		return errTaken
	})
	if err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(head, u.Update); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return u, nil
}

// readEntry reads an Entry. Whatever field its document stands in, the key says what it is.
func readEntry(b []byte) (e sent, err error) {
	gone := false
	_, err = fields(b, func(f field) error {
		switch {
		case f.number == fieldKey && f.kind == protowire.BytesType:
			e.key = string(f.bytes)
		case f.number == fieldRevision && f.kind == protowire.VarintType:
			e.revision = int64(f.value)
		case f.number == fieldDeleted && f.kind == protowire.VarintType:
			gone = f.value != 0
		case f.kind == protowire.BytesType:
			e.document = append([]byte{}, f.bytes...)
		}
		return nil
	})
	if gone {
		e.document = nil
	} else if e.document == nil {
		e.document = []byte{}
	}
	if err == nil && (e.key == "" || e.revision <= 0) {
		err = fmt.Errorf("%w: an entry without key or revision", errMalformed)
	}
	return e, err
}

// appendEntry is the opposite of readEntry, as field entries of an Update.
func appendEntry(b []byte, e sent, field protowire.Number) []byte {
	var body []byte
	body = protowire.AppendTag(body, fieldKey, protowire.BytesType)
	body = protowire.AppendString(body, e.key)
	body = protowire.AppendTag(body, fieldRevision, protowire.VarintType)
	body = protowire.AppendVarint(body, uint64(e.revision))
	if e.document == nil {
		body = protowire.AppendTag(body, fieldDeleted, protowire.VarintType)
		body = protowire.AppendVarint(body, 1)
	} else {
		body = protowire.AppendTag(body, field, protowire.BytesType)
		body = protowire.AppendBytes(body, e.document)
	}
	b = protowire.AppendTag(b, fieldEntries, protowire.BytesType)
	return protowire.AppendBytes(b, body)
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	bytes  []byte
	value  uint64
}

// errTaken says that a field was taken; the others are returned.
var errTaken = errors.New("taken")

// fields calls each with the fields of a message and returns those that it did not take, in
// their encoded form.
func fields(b []byte, each func(field) error) (rest []byte, err error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, kind, b[n:])
		if size < 0 {
			return nil, fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(size))
		}
		f := field{number: number, kind: kind}
		switch kind {
		case protowire.BytesType:
			f.bytes, _ = protowire.ConsumeBytes(b[n:])
		case protowire.VarintType:
			f.value, _ = protowire.ConsumeVarint(b[n:])
		case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
		}
		switch err := each(f); {
		case err == nil:
			rest = append(rest, b[:n+size]...)
		case !errors.Is(err, errTaken):
			return nil, err
		}
		b = b[n+size:]
	}
	return rest, nil
}

// timeOf returns the time of a message's field, zero if it has none that is valid.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}
