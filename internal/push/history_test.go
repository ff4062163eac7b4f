// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// suspects collects what a hub suspects.
type suspects struct {
	mu  sync.Mutex
	all []policy.Point
}

func (s *suspects) add(p policy.Point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, p)
}

func (s *suspects) last() policy.Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return policy.Point{}
	}
	return s.all[len(s.all)-1]
}

func history(epoch policy.Epoch, number int64, cluster uint64, branches ...policy.Branch) *policy.History {
	return &policy.History{Epoch: epoch, Number: number, Cluster: cluster, Secret: []byte("secret"), Branches: branches}
}

// publish publishes everything again under a history.
func (b *bench) publish(past *policy.History, revision policy.Revision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch, b.revision = past.Epoch, revision
	u := policy.Update{Epoch: b.epoch, Revision: b.revision, Reset: true, History: past}
	for _, c := range b.docs {
		u.Changes = append(u.Changes, c)
	}
	b.Publish(u)
}

func TestWhat_is_served_can_be_proved_and_what_does_not_fit_is_suspected(t *testing.T) {
	var heard suspects
	logs := &syncWriter{}
	b := start(t, func(c *push.Config) {
		c.Suspect = heard.add
		c.Heartbeat = 300 * time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(logs, nil))
	})
	past := history("e1", 5, 7, policy.Branch{ID: 1, After: 2}, policy.Branch{ID: 2, After: 8})
	b.commit(policyChange("shop/payments/a", "a"))
	b.publish(past, 20)
	p := b.join(t, hello("first")).until(20)
	require.Equal(t, past.Token(20), p.last.GetToken())
	t.Run("heartbeats carry the proof of their revision", func(t *testing.T) {
		for {
			m, err := p.next()
			require.NoError(t, err)
			if hb := m.GetHeartbeat(); hb != nil {
				require.Equal(t, past.Token(policy.Revision(hb.GetRevision())), hb.GetToken())
				return
			}
		}
	})
	come := func(t *testing.T, name string, resume *policydv1.ResumePoint, left ...string) *peer {
		h := hello(name)
		h.Resume, h.Left = resume, left
		return b.join(t, h)
	}
	point := func(h *policy.History, revision int64, hash uint64) *policydv1.ResumePoint {
		return &policydv1.ResumePoint{Epoch: string(h.Epoch), Revision: revision, Hash: hash, Token: h.Token(policy.Revision(revision))}
	}
	refused := func(t *testing.T, p *peer) {
		err := p.end()
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "were replaced")
	}

	t.Run("a point of the past is resumed from, and nothing is suspected", func(t *testing.T) {
		p := come(t, "past", point(past, 20, p.at.GetHash()))
		p.held = map[string]*policydv1.Entry{}
		_, err := p.stream.Recv()
		require.NoError(t, err)
		require.Zero(t, heard.last())
	})
	t.Run("other contents at the same revision prove nothing", func(t *testing.T) {
		other := come(t, "other", point(past, 20, 1))
		require.True(t, other.update().GetSnapshot())
		in, _ := b.fleet.Instance("other")
		require.Equal(t, fleet.Behind, in.State)
		require.Zero(t, in.Revision)
	})
	t.Run("what another replica said is confirmed without a proof", func(t *testing.T) {
		p := come(t, "ahead", point(past, 25, p.at.GetHash()))
		m, err := p.stream.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 25, m.GetUpdate().GetRevision())
		require.Empty(t, m.GetUpdate().GetToken())
		require.EqualValues(t, 25, heard.last().Revision, "and looked into")
	})
	t.Run("that another replica began a branch meanwhile proves nothing", func(t *testing.T) {
		later := history("e1", 5, 7, policy.Branch{ID: 1, After: 2}, policy.Branch{ID: 2, After: 8}, policy.Branch{ID: 3, After: 22})
		p := come(t, "ahead on a later branch", point(later, 26, p.at.GetHash()))
		m, err := p.stream.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 26, m.GetUpdate().GetRevision())
	})
	t.Run("who has left these data is sent away", func(t *testing.T) {
		refused(t, come(t, "left", &policydv1.ResumePoint{Epoch: "e9", Revision: 3}, "e0", "e1"))
		refused(t, come(t, "left, and holds nothing", nil, "e1"))
		require.EqualValues(t, "", heard.last().Epoch)
		require.Equal(t, 1, strings.Count(logs.String(), "--new-epoch"), "one line for all of them")
	})
	t.Run("who was served a later epoch elsewhere is sent away", func(t *testing.T) {
		refused(t, come(t, "replaced", point(history("e2", 6, 8), 3, 1)))
		require.EqualValues(t, "e2", heard.last().Epoch)
	})
	t.Run("an earlier epoch, or that of others, is replaced by a snapshot", func(t *testing.T) {
		for _, h := range []*policy.History{history("e0", 4, 7), history("e0", 4, 9), {Epoch: "ex", Number: 9, Cluster: 7, Secret: []byte("other")}} {
			require.True(t, come(t, "earlier", point(h, 90, 1)).until(20).last.GetSnapshot())
		}
	})
	t.Run("what is lost waits for the epoch that follows from it", func(t *testing.T) {
		lost := history("e1", 5, 7, policy.Branch{ID: 1, After: 2}, policy.Branch{ID: 3, After: 8})
		same := come(t, "lost", point(lost, 20, p.at.GetHash()))
		eventually(t, "a suspicion", func() bool { return bytes.Equal(heard.last().Token, lost.Token(20)) })
		epoch := come(t, "lost epoch", point(history("e3", 6, 7), 90, p.at.GetHash()))
		eventually(t, "a suspicion", func() bool { return heard.last().Epoch == "e3" })
		for _, p := range []*peer{same, epoch} {
			m, err := p.next()
			require.NoError(t, err)
			require.NotNil(t, m.GetHeartbeat(), "nothing but a sign of life")
		}
		for _, name := range []string{"lost", "lost epoch"} {
			in, _ := b.fleet.Instance(name)
			require.Equal(t, fleet.Behind, in.State, name)
			require.Zero(t, in.Revision, "what it has is nothing of these data")
		}
		b.publish(history("e4", 7, 7), 30)
		for _, p := range []*peer{same, epoch} {
			require.True(t, p.until(30).last.GetSnapshot())
			require.Equal(t, "e4", p.at.GetEpoch())
		}
	})
}

// syncWriter is a log that is written and read at once.
type syncWriter struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *syncWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
