// SPDX-License-Identifier: Apache-2.0

package push

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// Relay says of a Hub that is fed by another policyd, not by the store, what its streams
// must know. All fields are required.
type Relay struct {
	// ID names this relay in the tree.
	ID string
	// Clock is policyd's clock: ends of switches are times of it.
	Clock func() time.Time
	// AsOf is when what was published was last known to be the newest, on Clock; zero: it is
	// now.
	AsOf func() time.Time
}

// reading is policyd's clock and what is known at that moment.
type reading struct {
	time time.Time
	asOf time.Time // zero: the newest
}

// MaxBelow bounds how many relays one names as being below it.
const MaxBelow = 1000

// Below returns the ids of the relays that are connected to this one, at any depth.
func (h *Hub) Below() []string {
	h.roster.Lock()
	defer h.roster.Unlock()
	var ids []string
	for s := range h.streams {
		if s.relay != nil && len(ids) < MaxBelow {
			ids = append(append(ids, s.relay.GetId()), s.relay.GetBelow()...)
		}
	}
	return ids[:min(len(ids), MaxBelow)]
}

func (h *Hub) reading() reading {
	if r := h.cfg.Relay; r != nil {
		return reading{time: r.Clock(), asOf: r.AsOf()}
	}
	return reading{time: time.Now()}
}

// looped refuses a relay that this one gets its documents from.
func (h *Hub) looped(below *policydv1.Relay) error {
	if h.cfg.Relay == nil || below == nil {
		return nil
	}
	if self := h.cfg.Relay.ID; below.GetId() == self || slices.Contains(below.GetBelow(), self) {
		return status.Errorf(codes.FailedPrecondition, "loop: relay %s would be its own upstream", self)
	}
	return nil
}

// outdated refuses an instance that holds something else than a relay that is cut off: it
// may be newer, and then it must not be taken back.
func (s *stream) outdated() error {
	asOf := s.hub.reading().asOf
	st := s.view.state.Load()
	switch {
	case asOf.IsZero(), s.resume.epoch == "":
		return nil
	case s.resume.epoch == st.snap.epoch && (s.resume.revision <= st.snap.revision || s.resume.hash == st.hash):
		return nil
	}
	return status.Errorf(codes.Unavailable, "this relay is cut off since %s, and the instance may hold what is newer",
		asOf.UTC().Format(time.RFC3339))
}
