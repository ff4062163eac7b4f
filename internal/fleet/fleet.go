// SPDX-License-Identifier: Apache-2.0

// Package fleet knows which instances are or were connected, what each has in force and
// what each last reported. In memory: an instance introduces itself again when policyd
// restarts. All methods are safe for concurrent use.
package fleet

import (
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// State of an instance.
type State string

// States of an instance.
const (
	Live     State = "live"     // everything visible to it is in force
	Behind   State = "behind"   // connected, newest revision not confirmed yet
	Rejected State = "rejected" // confirmed, but some documents were refused
	Stale    State = "stale"    // no connection; it obeys its last revision
)

// Identity is what an instance says of itself.
type Identity struct {
	ID, Namespace, Service  string
	SDKLanguage, SDKVersion string
	Mode                    string // enforce, observe, off
	Targets                 []engine.Scope
	Source                  string // where its policy came from at start
	Drill                   bool   // started for drills: sees drill switches
}

// Rejection is a document that an instance refused.
type Rejection struct {
	Scope    string
	Revision int64
	Field    string
	Reason   string
}

// Instance is what is known of one instance now.
type Instance struct {
	Identity
	State       State
	Since       time.Time // of the state
	Revision    int64     // newest confirmed
	Wanted      int64     // newest that concerns it
	Rejected    []Rejection
	ConnectedAt time.Time
	LastSeen    time.Time
	Resumed     bool
	// BackBy is when an instance that was asked to reconnect is expected back. Until then it
	// is not stale: it does as it was told.
	BackBy time.Time
	// Gone: stale for so long that it no longer counts in totals.
	Gone       bool
	Report     *Report // last one, nil before the first
	ReportedAt time.Time
}

// Peer is another policyd that has instances: a replica or a relay.
type Peer struct {
	// ID is random, new at each start of the replica.
	ID string
	// Address of its gRPC, host:port.
	Address   string
	Version   string
	StartedAt time.Time
	// Silent: it does not answer, and what is connected to it is not known.
	Silent bool
	// Relay: it has no store and is below the replica that named it.
	Relay bool
}

// Report counts what happened on an instance over Period.
type Report struct {
	Period    time.Duration
	Endpoints []EndpointReport
}

// EndpointReport is one endpoint's part of a report.
type EndpointReport struct {
	Endpoint                                   string
	Calls, Attempts, Failed, Rescued, Rejected int64
	Suppressed                                 map[string]int64
	Breaker                                    string
	BudgetLeft                                 int64
	Unmatched                                  bool
}
