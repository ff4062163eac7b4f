// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

const (
	// reportEvery gathers the confirmations of a cell.
	reportEvery = 50 * time.Millisecond
	// farewell bounds the wait for an upstream to take the end of a stream.
	farewell = 500 * time.Millisecond
	// lookEvery is how often what is below is compared with what the upstream was told.
	lookEvery = time.Second
)

// Reporter tells an upstream, while it asks, of the instances of a relay and of the relays
// below it. All fields are required.
type Reporter struct {
	Fleet *fleet.Registry
	Cells *Cells
	// About says who this relay is and which relays are below it.
	About func() *policydv1.Relay
}

// Run reports over conn until ctx ends, which is no failure, or the stream does. If ctx ends
// with a cause of its own, the relay stays and is missed until it reports again; else it
// leaves, and so do its instances.
func (r *Reporter) Run(ctx context.Context, conn grpc.ClientConnInterface) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := policydv1.NewRelayServiceClient(conn).WatchCell(own)
	if err != nil {
		return err
	}
	told := r.About()
	questions, ended := listen(stream)
	if stream.Send(&policydv1.WatchCellRequest{Relay: told}) != nil {
		return <-ended // which says why
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var a *answer // nil: nobody asks
	for {
		// Taken before the look, so that no change falls between the two.
		changed := r.Fleet.Changed()
		if a == nil {
			changed = nil
		} else if a.send(own, stream) != nil {
			return <-ended
		}
		select {
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), context.Canceled) {
				return nil
			}
			// An orderly end tells the upstream that the instances are on their way to others.
			_ = stream.CloseSend() // it may have ended by itself
			select {
			case <-ended: //nolint:errcheck // it ends as it was told
			case <-time.After(farewell):
			}
			return nil
		case err := <-ended:
			return err
		case q := <-questions:
			a = nil
			if q != 0 {
				a = &answer{reporter: r, question: q, numbers: make(map[string]uint32)}
			}
		case <-changed:
			sleep(ctx, reportEvery)
		case <-look.C:
			if about := r.About(); !proto.Equal(about, told) {
				told = about
				if stream.Send(&policydv1.WatchCellRequest{Relay: told}) != nil {
					return <-ended
				}
			}
		}
	}
}

// listen returns the questions, of which only the last counts, and how the stream ended.
func listen(stream grpc.BidiStreamingClient[policydv1.WatchCellRequest, policydv1.WatchCellResponse]) (<-chan uint32, <-chan error) {
	questions, ended := make(chan uint32, 1), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case <-questions:
			default:
			}
			questions <- m.GetQuestion()
		}
	}()
	return questions, ended
}

// answer is what an upstream was told since it asked.
type answer struct {
	reporter *Reporter
	question uint32
	point    int64
	numbers  map[string]uint32 // by id
	sent     []fleet.Instance  // by number
	complete bool
	below    []fleet.Peer // what relays answered
}

// send tells what changed since it was last called; at first everything.
func (a *answer) send(ctx context.Context, stream grpc.BidiStreamingClient[policydv1.WatchCellRequest, policydv1.WatchCellResponse]) error {
	news := a.askBelow(ctx)
	instances, next := a.reporter.Fleet.LocalSince(a.point)
	a.point = next
	moved := make(map[fleet.Standing][]uint32)
	full := make([]*policydv1.CellInstance, 0, len(instances))
	for i := range instances {
		in := &instances[i]
		n, known := a.numbers[in.ID]
		switch at := (fleet.Standing{State: in.State, Revision: in.Revision, Wanted: in.Wanted}); {
		case !known:
			n = uint32(len(a.sent))
			a.numbers[in.ID] = n
			a.sent = append(a.sent, *in)
			full = append(full, &policydv1.CellInstance{Number: n, Instance: instanceProto(in)})
		case !onlyMoved(&a.sent[n], in):
			full = append(full, &policydv1.CellInstance{Number: n, Instance: instanceProto(in)})
		case at != fleet.Standing{State: a.sent[n].State, Revision: a.sent[n].Revision, Wanted: a.sent[n].Wanted}:
			moved[at] = append(moved[at], n)
		}
		a.sent[n] = *in
	}
	if a.complete && len(full) == 0 && len(moved) == 0 && !news {
		return nil
	}
	for {
		n := min(len(full), perMessage)
		m := &policydv1.WatchCellRequest{ServerTime: timestamppb.New(time.Now()), Question: a.question, Instances: full[:n]}
		m.Answered, m.Silent = relayProtos(a.below)
		full = full[n:]
		if len(full) == 0 {
			m.Complete = !a.complete
			m.Progress = progressOf(moved)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		if len(full) == 0 {
			a.complete = true
			return nil
		}
	}
}

// askBelow asks the relays below and reports whether other ones answer than before. Only the
// first answer is waited for.
func (a *answer) askBelow(ctx context.Context) (news bool) {
	if a.complete {
		hurry, cancel := context.WithCancel(ctx)
		cancel()
		ctx = hurry
	}
	below := a.reporter.Cells.Ask(ctx)
	news = !slices.Equal(below, a.below)
	a.below = below
	return news
}

// onlyMoved reports whether two readings of an instance differ in nothing but its standing
// and the times of it.
func onlyMoved(before, now *fleet.Instance) bool {
	same := *before
	same.State, same.Since, same.Revision, same.Wanted = now.State, now.Since, now.Revision, now.Wanted
	same.LastSeen, same.Gone = now.LastSeen, now.Gone
	return same.ID == now.ID && same.Namespace == now.Namespace && same.Service == now.Service &&
		same.SDKLanguage == now.SDKLanguage && same.SDKVersion == now.SDKVersion && same.Mode == now.Mode &&
		same.Source == now.Source && same.Drill == now.Drill && slices.Equal(same.Targets, now.Targets) &&
		slices.Equal(same.Rejected, now.Rejected) && same.ConnectedAt.Equal(now.ConnectedAt) &&
		same.Resumed == now.Resumed && same.BackBy.Equal(now.BackBy) &&
		same.Report == now.Report && same.ReportedAt.Equal(now.ReportedAt)
}

// progressOf adds instances up that stand alike.
func progressOf(moved map[fleet.Standing][]uint32) []*policydv1.CellProgress {
	all := make([]*policydv1.CellProgress, 0, len(moved))
	for at, numbers := range moved {
		all = append(all, &policydv1.CellProgress{
			Revision: at.Revision, WantedRevision: at.Wanted, State: wire.StateProto(at.State), Runs: runsOf(numbers),
		})
	}
	return all
}

// runsOf writes a set of numbers as how many are skipped, how many follow, and so on.
func runsOf(numbers []uint32) []uint32 {
	slices.Sort(numbers)
	var runs []uint32
	next := uint32(0) // after the last run
	for i := 0; i < len(numbers); {
		n := 1
		for i+n < len(numbers) && numbers[i+n] == numbers[i]+uint32(n) {
			n++
		}
		runs = append(runs, numbers[i]-next, uint32(n))
		next = numbers[i] + uint32(n)
		i += n
	}
	return runs
}
