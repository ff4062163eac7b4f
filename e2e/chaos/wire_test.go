// SPDX-License-Identifier: Apache-2.0

//go:build linux

package chaos_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// tap is a transport without security that reads along: what an SDK is sent and what it
// answers, as it stands on the wire.
type tap struct {
	credentials.TransportCredentials
	heard *ear
}

func newTap(heard *ear) tap { return tap{insecure.NewCredentials(), heard} }

func (t tap) Clone() credentials.TransportCredentials { return t }

func (t tap) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	t.heard.opened()
	return &tapped{
		Conn: conn, heard: t.heard,
		in: messages{take: t.heard.received}, out: messages{take: t.heard.sent, skip: len(preface)},
	}, info, nil
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

type tapped struct {
	net.Conn
	heard   *ear
	in, out messages
	once    sync.Once
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.feed(p[:n])
	return n, err
}

func (c *tapped) Write(p []byte) (int, error) {
	c.out.feed(p)
	return c.Conn.Write(p)
}

func (c *tapped) Close() error {
	c.once.Do(c.heard.closed)
	return c.Conn.Close()
}

// messages takes gRPC messages out of one direction of an HTTP/2 connection that carries a
// single stream.
type messages struct {
	take   func([]byte)
	skip   int // bytes before the first frame
	frames []byte
	data   []byte
}

func (m *messages) feed(p []byte) {
	n := min(m.skip, len(p))
	m.skip -= n
	m.frames = append(m.frames, p[n:]...)
	const head, isData = 9, 0
	for len(m.frames) >= head {
		size := int(m.frames[0])<<16 | int(m.frames[1])<<8 | int(m.frames[2])
		if len(m.frames) < head+size {
			break
		}
		if m.frames[3] == isData {
			m.data = append(m.data, m.frames[head:head+size]...)
		}
		m.frames = m.frames[head+size:]
	}
	for len(m.data) >= 5 {
		size := int(binary.BigEndian.Uint32(m.data[1:]))
		if len(m.data) < 5+size {
			break
		}
		m.take(m.data[5 : 5+size])
		m.data = m.data[5+size:]
	}
}

// ear understands the watch protocol of one instance and tells what it hears.
type ear struct {
	tell func(event)

	mu sync.Mutex
	// What the messages so far add up to, by key; known after the first snapshot.
	known    bool
	epoch    string
	revision int64
	entries  map[string]int64
	pieces   []*policydv1.Entry
	snapshot bool
	// States that the instance has not confirmed yet.
	open []event
}

func (e *ear) opened() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pieces, e.snapshot, e.open = nil, false, nil
	e.tell(event{Kind: "open"})
}

func (e *ear) closed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(event{Kind: "closed"})
}

func (e *ear) sent(raw []byte) {
	var m policydv1.WatchRequest
	if proto.Unmarshal(raw, &m) != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if hello := m.GetHello(); hello != nil {
		r := hello.GetResume()
		e.tell(event{Kind: "hello", Epoch: r.GetEpoch(), Revision: r.GetRevision(), Hash: r.GetHash()})
	}
	ack := m.GetAck()
	if ack == nil {
		return
	}
	out := event{Kind: "ack", Epoch: ack.GetEpoch(), Revision: ack.GetRevision()}
	if ack.GetWantSnapshot() {
		out.Kind = "mismatch"
	}
	if len(ack.GetRejected()) > 0 {
		out.Kind, out.Text = "rejected", ack.GetRejected()[0].String()
	}
	for i := len(e.open) - 1; i >= 0; i-- {
		if u := e.open[i]; u.Epoch == out.Epoch && u.Revision == out.Revision {
			out.Hash, out.Folded, out.HasHash = u.Hash, u.Folded, true
			e.open = e.open[i+1:]
			break
		}
	}
	e.tell(out)
}

func (e *ear) received(raw []byte) {
	var m policydv1.WatchResponse
	if proto.Unmarshal(raw, &m) != nil {
		e.tell(event{Kind: "unreadable"})
		return
	}
	u := m.GetUpdate()
	if u == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pieces = append(e.pieces, u.GetEntries()...)
	e.snapshot = e.snapshot || u.GetSnapshot()
	if u.GetMore() {
		return
	}
	entries, snapshot := e.pieces, e.snapshot
	e.pieces, e.snapshot = nil, false
	if u.GetEpoch() == e.epoch && u.GetRevision() < e.revision {
		e.tell(event{Kind: "older", Epoch: u.GetEpoch(), Revision: u.GetRevision()})
		return
	}
	e.fold(u, entries, snapshot)
	for _, entry := range entries {
		if id, ok := switchID(entry.GetKey()); ok {
			sw := entry.GetKillSwitch()
			told := event{Kind: "switch", Text: id, Revision: entry.GetRevision()}
			if sw.GetPhase() == policydv1.SwitchPhase_SWITCH_PHASE_ACTIVE {
				told.Ends = sw.GetExpiresAt().AsTime().UnixNano()
			}
			e.tell(told)
		}
	}
	if snapshot {
		e.tell(event{Kind: "snapshot", Epoch: u.GetEpoch(), Revision: u.GetRevision(), Count: len(entries)})
	}
	e.open = append(e.open, event{
		Epoch: u.GetEpoch(), Revision: u.GetRevision(), Hash: u.GetHash(), Folded: e.known,
	})
	if n := len(e.open); e.known {
		e.open[n-1].Hash = hashOf(e.entries)
		if e.open[n-1].Hash != u.GetHash() {
			e.tell(event{Kind: "unfit", Epoch: u.GetEpoch(), Revision: u.GetRevision(), Hash: u.GetHash()})
		}
	}
}

// fold adds an update to what is known; mu is held.
func (e *ear) fold(u *policydv1.Update, entries []*policydv1.Entry, snapshot bool) {
	if snapshot {
		e.entries, e.known = map[string]int64{}, true
	}
	if u.GetEpoch() != e.epoch && !snapshot {
		e.known = false // its base came from the disk cache
	}
	e.epoch, e.revision = u.GetEpoch(), u.GetRevision()
	if !e.known {
		return
	}
	for _, entry := range entries {
		if entry.GetDeleted() {
			delete(e.entries, entry.GetKey())
		} else {
			e.entries[entry.GetKey()] = entry.GetRevision()
		}
	}
}
