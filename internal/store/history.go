// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/policyd/policyd/internal/policy"
)

const (
	// maxBranches bounds how far back the past can be told from another.
	maxBranches = 64
	// tries bounds how often a compare-and-swap at the start of a reading is repeated.
	tries = 8
)

// suspicion is a reason to believe that the data were put back to an older copy.
type suspicion struct {
	epoch policy.Epoch // that is no right name for them any more
	why   string
	point *policy.Point // that was served, if this is why; to be judged by what is read
}

// suspect keeps the first suspicion until the store is read again.
func (s *Store) suspect(epoch policy.Epoch, why string, point *policy.Point) {
	s.suspected.CompareAndSwap(nil, &suspicion{epoch, why, point})
}

// holds reports whether a suspicion is right of what a quorum says the data are.
func (d *suspicion) holds(l *listing, now policy.History) bool {
	if d == nil || d.epoch != now.Epoch {
		return false // the data have another epoch since
	}
	if d.point == nil {
		return true
	}
	now.Branches, _ = decodeBranches(l.branches) // none that can be read: nothing is proved
	verdict := now.Judge(*d.point)
	return verdict == policy.Lost || verdict == policy.Past && d.point.Epoch == now.Epoch && d.point.Revision > l.revision
}

// Suspect takes a point that an instance was served and that does not fit what this replica
// has: the data may have been put back or replaced without its noticing. It never blocks.
func (s *Store) Suspect(p policy.Point) {
	select {
	case s.suspects <- p:
	default: // another one is being looked into; whoever is waiting suspects again
	}
}

// sound has Run read everything again.
func (s *Store) sound() {
	select {
	case s.alarm <- struct{}{}:
	default:
	}
}

// branchOff begins a branch: from the last revision seen to now, something else than this
// replica knows of may have happened. Everybody else sees by it whether that can be.
func (s *Store) branchOff(ctx context.Context) error {
	for range tries {
		answer, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.keys.branches())).Commit()
		if err != nil {
			return err
		}
		after, mod := answer.Header.GetRevision(), int64(0)
		var branches []policy.Branch
		if kvs := answer.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			mod = kvs[0].GetModRevision()
			branches, _ = decodeBranches(kvs[0]) // one that cannot be read is written anew
		}
		value, err := encodeBranches(grown(branches, policy.Branch{ID: newBranchID(), After: policy.Revision(after)}))
		if err != nil {
			return err
		}
		conditions := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(s.keys.branches()), "=", mod),
			clientv3.Compare(clientv3.ModRevision(s.keys.epoch()), "<", after+1),
		}
		// What changes meanwhile is on the branch before.
		for _, dir := range []string{dirPolicies, dirSwitches, dirTombstones} {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(s.keys.dir(dir)), "<", after+1).WithPrefix())
		}
		put, err := s.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(s.keys.branches(), string(value))).Commit()
		switch {
		case errors.Is(err, rpctypes.ErrNoSpace):
			return nil // nothing else can be written either, and it must be readable
		case err != nil:
			return err
		case put.Succeeded:
			return nil
		}
	}
	s.log.DebugContext(ctx, "no branch begun, too much is being written")
	return nil
}

// grown adds a branch. Nothing changed on those that begin where it does.
func grown(branches []policy.Branch, b policy.Branch) []policy.Branch {
	for n := len(branches); n > 0 && branches[n-1].After >= b.After; n-- {
		branches = branches[:n-1]
	}
	branches = append(branches, b)
	return branches[max(0, len(branches)-maxBranches):]
}

// newBranchID returns a random number that is not 0.
func newBranchID() uint64 {
	var b [8]byte
	_, _ = cryptorand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// contradicts says why branches cannot be a continuation of the state's past: one that it does
// not know begins before what it has.
func (st *state) contradicts(branches []policy.Branch) string {
	known := make(map[uint64]bool, len(st.history.Branches))
	for _, b := range st.history.Branches {
		known[b.ID] = true
	}
	for _, b := range branches {
		if !known[b.ID] && b.After < st.written {
			return fmt.Sprintf("the data went on from revision %d although they had been at %d", b.After, st.written)
		}
	}
	return ""
}

// listWithEpoch reads everything, and gives the data an epoch first when they have none, come
// from elsewhere or were put back. Of several replicas that try, one wins.
func (s *Store) listWithEpoch(ctx context.Context) (*listing, error) {
	for range tries {
		l, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		next, why := s.nextEpoch(l)
		if next == nil {
			s.suspected.Store(nil)
			s.renewed = true
			return l, nil
		}
		value, err := encodeEpoch(next)
		if err != nil {
			return nil, err
		}
		answer, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(s.keys.epoch()), "=", l.epoch.GetModRevision())).
			Then(clientv3.OpPut(s.keys.epoch(), string(value))).
			Commit()
		switch {
		case errors.Is(err, rpctypes.ErrNoSpace) && why == reasonNoSecret:
			return l, nil // not worth not to be read
		case err != nil:
			return nil, err
		case !answer.Succeeded, why == reasonNoSecret:
		case l.epoch == nil:
			s.log.InfoContext(ctx, "epoch started", "epoch", next.Epoch)
		default:
			s.log.WarnContext(ctx, "epoch changed, every reader starts from a snapshot", "epoch", next.Epoch, "reason", why)
		}
		s.renewed = s.renewed || answer.Succeeded
	}
	return nil, errors.New("several policyd give the data a new epoch in turn; do they use different clusters?")
}

// reasonNoSecret is no reason for another epoch, only for a fuller record of it.
const reasonNoSecret = "the epoch has no secret"

// nextEpoch returns the epoch that the data need and why; nil if they have the right one.
func (s *Store) nextEpoch(l *listing) (*policy.History, string) {
	now, err := decodeEpoch(l.epoch.GetValue())
	why := ""
	switch doubt := s.suspected.Load(); {
	case l.epoch == nil:
		why = "the data have none"
	case err != nil:
		why = "the epoch cannot be read"
	case now.Cluster != l.cluster:
		why = "the data come from another etcd cluster"
	case s.anew && !s.renewed:
		why = "asked for at the start"
	case s.left[now.Epoch]:
		why = "the data are back that were replaced before"
	case doubt.holds(l, now):
		why = doubt.why
		if doubt.point != nil {
			now.Number = max(now.Number, now.NumberOf(*doubt.point))
		}
	case s.state != nil && s.state.epoch == now.Epoch:
		why = s.putBack(l)
	}
	next := policy.History{Epoch: policy.Epoch(cryptorand.Text()), Cluster: l.cluster, Number: now.Number, Secret: now.Secret}
	switch {
	case why == "" && len(now.Secret) > 0:
		return nil, ""
	case why == "":
		next.Epoch, why = now.Epoch, reasonNoSecret
	default:
		next.Number = max(now.Number+1, time.Now().UnixMilli())
	}
	if len(next.Secret) == 0 {
		next.Secret = make([]byte, 32)
		_, _ = cryptorand.Read(next.Secret) // it never fails
	}
	return &next, why
}

// putBack says why a listing cannot be a later state of the same data, "" if it can. The
// revisions of an etcd grow only, and one names one content.
func (s *Store) putBack(l *listing) string {
	if l.revision < s.seen {
		return fmt.Sprintf("the store went back from revision %d to %d", s.seen, l.revision)
	}
	if branches, err := decodeBranches(l.branches); err == nil {
		if why := s.state.contradicts(branches); why != "" {
			return why
		}
	}
	for _, kv := range append(l.policies, l.switches...) {
		key, revision := s.keys.below(kv.GetKey()), policy.Revision(kv.GetModRevision())
		switch known := s.state.documents[key]; {
		case revision < known.revision:
			return fmt.Sprintf("%s went back from revision %d to %d", key, known.revision, revision)
		case revision == known.revision && !bytes.Equal(kv.GetValue(), known.raw):
			return fmt.Sprintf("%s has another content at revision %d than before", key, revision)
		}
	}
	return ""
}
