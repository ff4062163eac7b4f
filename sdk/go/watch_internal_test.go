// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// deaf takes what a session sends.
type deaf struct {
	grpc.ClientStream

	acks []*policydv1.Ack
}

func (d *deaf) Send(m *policydv1.WatchRequest) error {
	if a := m.GetAck(); a != nil {
		d.acks = append(d.acks, a)
	}
	return nil
}

func (d *deaf) Recv() (*policydv1.WatchResponse, error) { select {} }

// Whatever policyd says, in whatever order, the client does not panic, does not go back in an
// epoch nor to one it has left, and confirms only what it holds.
func FuzzWatchResponses(f *testing.F) {
	attempts := int64(2)
	shop := func(revision int64) *policydv1.Entry {
		return &policydv1.Entry{Key: "policies/shop", Revision: revision, Document: &policydv1.Entry_Policy{
			Policy: &policydv1.Policy{Scope: "shop", Spec: &policydv1.PolicySpec{MaxAttempts: &attempts}},
		}}
	}
	update := func(epoch string, revision int64, whole, more bool, entries ...*policydv1.Entry) *policydv1.WatchResponse {
		var hash uint64
		for _, e := range entries {
			hash += engine.EntryHash(e.GetKey(), e.GetRevision())
		}
		return &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Update{Update: &policydv1.Update{
			Epoch: epoch, Revision: revision, Snapshot: whole, More: more, Hash: hash, Entries: entries,
			ServerTime: timestamppb.New(time.Unix(1_800_000_000, 0)), Token: []byte("t"), ConfirmWithin: durationpb.New(time.Millisecond),
		}}}
	}
	beat := &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Heartbeat{Heartbeat: &policydv1.Heartbeat{Revision: 9, ServerTime: timestamppb.New(time.Unix(-5, 0))}}}
	away := &policydv1.WatchResponse{Kind: &policydv1.WatchResponse_GoAway{GoAway: &policydv1.GoAway{ReconnectWithin: durationpb.New(-time.Second)}}}
	encode := func(responses ...*policydv1.WatchResponse) (all []byte) {
		for _, r := range responses {
			raw, err := proto.Marshal(r)
			if err != nil {
				f.Fatal(err)
			}
			all = append(binary.BigEndian.AppendUint16(all, uint16(len(raw))), raw...)
		}
		return all
	}
	f.Add(encode(update("e", 5, true, false, shop(5)), beat, update("e", 4, true, false), update("f", 1, true, false, shop(1)), update("e", 9, true, false)))
	f.Add(encode(update("e", 5, true, true, shop(5)), update("e", 5, false, false), away, beat))
	f.Add(encode(update("", 5, true, false), update("e", 5, false, false), update("e", 5, true, true), update("f", 5, true, true)))
	f.Add([]byte{0, 2, 0xff, 0xff})

	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := New(WithAddr("127.0.0.1:1"), WithService("shop", "web"), WithCacheDir(""), WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		stream := &deaf{}
		s := &session{c: c, cancel: func(error) {}, stream: stream, dog: time.NewTimer(time.Hour)}
		defer s.dog.Stop()
		held := map[string]int64{}
		left := map[string]bool{}
		epoch := ""
		for len(raw) >= 2 {
			n := min(int(binary.BigEndian.Uint16(raw)), len(raw)-2)
			m := &policydv1.WatchResponse{}
			if proto.Unmarshal(raw[2:2+n], m) != nil {
				break
			}
			raw = raw[2+n:]
			err := s.receive(m)
			now, revision := c.remote.Epoch(), c.remote.Revision()
			if now != epoch {
				left[epoch], epoch = epoch != "", now
			}
			if left[now] || revision < held[now] {
				t.Fatalf("went back to %d of %q, left %v, held %v", revision, now, left, held)
			}
			held[now] = revision
			if err != nil {
				break
			}
		}
		s.mu.Lock()
		_ = s.confirmDue() // now; the timer finds nothing then
		s.mu.Unlock()
		for _, a := range stream.acks {
			if at, ok := held[a.GetEpoch()]; !ok || a.GetRevision() > at {
				t.Fatalf("confirmed %v, held %v", a, held)
			}
		}
		if s.leave != nil {
			s.leave.Stop()
		}
	})
}
