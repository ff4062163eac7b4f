// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// instance speaks just enough gRPC to be a watch stream: a thousand of them must cost less
// than the server that is measured.
type instance struct {
	l       *loader
	conn    net.Conn
	framer  *http2.Framer
	buf     []byte // of a message that is not complete
	read    int    // bytes that the window has not got back
	greeted bool
	updates int
}

const streamID = 1

func (l *loader) watch(conn net.Conn, id int) {
	in := &instance{l: l, conn: conn}
	in.framer = http2.NewFramer(conn, bufio.NewReaderSize(conn, 4<<10))
	in.framer.SetReuseFrames()
	err := in.hello(id)
	for err == nil {
		err = in.step()
	}
	if !in.greeted {
		l.ready <- fmt.Errorf("instance %d: %w", id, err)
	}
}

func (in *instance) hello(id int) error {
	var head, block bytes.Buffer
	head.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&head, nil)
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", policydv1.WatchService_Watch_FullMethodName},
		{":authority", "bench"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	if err := fr.WriteSettings(); err != nil {
		return err
	}
	if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	hello, err := proto.Marshal(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Hello{Hello: &policydv1.Hello{
		Instance: fmt.Sprint("instance-", id), Namespace: "shop", Service: "checkout", SdkLanguage: "go", SdkVersion: "1.0.0",
	}}})
	if err != nil {
		return err
	}
	if err := fr.WriteData(streamID, false, message(hello)); err != nil {
		return err
	}
	_, err = in.conn.Write(head.Bytes())
	return err
}

func message(m []byte) []byte {
	b := make([]byte, 5, 5+len(m))
	binary.BigEndian.PutUint32(b[1:], uint32(len(m)))
	return append(b, m...)
}

// step reads one frame and does what it asks for.
func (in *instance) step() error {
	f, err := in.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return in.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return in.framer.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame, *http2.RSTStreamFrame:
		return fmt.Errorf("stream ended: %v", f)
	case *http2.DataFrame:
		in.read += len(f.Data())
		if in.read > 16<<10 {
			if err := in.framer.WriteWindowUpdate(0, uint32(in.read)); err != nil {
				return err
			}
			if err := in.framer.WriteWindowUpdate(streamID, uint32(in.read)); err != nil {
				return err
			}
			in.read = 0
		}
		return in.take(f.Data())
	}
	return nil
}

func (in *instance) take(data []byte) error {
	in.buf = append(in.buf, data...)
	for len(in.buf) >= 5 {
		size := 5 + int(binary.BigEndian.Uint32(in.buf[1:]))
		if len(in.buf) < size {
			return nil
		}
		if err := in.update(in.buf[5:size]); err != nil {
			return err
		}
		in.buf = append(in.buf[:0], in.buf[size:]...)
	}
	return nil
}

// update confirms an update and notes when it came.
func (in *instance) update(m []byte) error {
	field, _, n := protowire.ConsumeTag(m)
	if n < 0 || field != 1 {
		return nil // a heartbeat
	}
	body, n := protowire.ConsumeBytes(m[n:])
	if n < 0 {
		return protowire.ParseError(n)
	}
	in.l.note(body)
	if !in.greeted {
		in.greeted = true
		in.l.ready <- nil
	}
	if in.updates++; in.l.quiet && in.updates%10 > 0 {
		return nil
	}
	var epoch string
	var revision uint64
	for len(body) > 0 && revision == 0 {
		field, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return protowire.ParseError(n)
		}
		body = body[n:]
		switch field {
		case 1:
			epoch, n = protowire.ConsumeString(body)
		case 2:
			revision, n = protowire.ConsumeVarint(body)
		default:
			n = protowire.ConsumeFieldValue(field, kind, body)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		body = body[n:]
	}
	ack, err := proto.Marshal(&policydv1.WatchRequest{Kind: &policydv1.WatchRequest_Ack{Ack: &policydv1.Ack{
		Epoch: epoch, Revision: int64(revision),
	}}})
	if err != nil {
		return err
	}
	return in.framer.WriteData(streamID, false, message(ack))
}
