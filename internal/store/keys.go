// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strings"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Below the prefix: policies/<scope>, switches/<id>, ended/<id>, outbox/<entry>,
// tombstones/<entry>, fences/<entry>, peers/<id>, meta/epoch, meta/branches, meta/deletions.
const (
	dirPolicies   = "policies/"
	dirSwitches   = "switches/"
	dirEnded      = "ended/"
	dirOutbox     = "outbox/"
	dirTombstones = "tombstones/"
	dirFences     = "fences/"
	dirPeers      = "peers/"
	keyEpoch      = "meta/epoch"
	keyBranches   = "meta/branches"
	keyDeletions  = "meta/deletions"
)

type keys struct{ prefix string }

func (k keys) policy(s engine.Scope) string { return k.prefix + policy.PolicyKey(s) }
func (k keys) active(id string) string      { return k.prefix + policy.SwitchKey(id) }
func (k keys) ended(id string) string       { return k.prefix + dirEnded + id }
func (k keys) entry(id string) string       { return k.prefix + dirOutbox + id }
func (k keys) tombstone(id string) string   { return k.prefix + dirTombstones + id }
func (k keys) fence(id string) string       { return k.prefix + dirFences + id }
func (k keys) peer(id string) string        { return k.prefix + dirPeers + id }
func (k keys) epoch() string                { return k.prefix + keyEpoch }
func (k keys) branches() string             { return k.prefix + keyBranches }
func (k keys) deletions() string            { return k.prefix + keyDeletions }
func (k keys) dir(d string) string          { return k.prefix + d }

// below returns key without the prefix.
func (k keys) below(key []byte) string { return strings.TrimPrefix(string(key), k.prefix) }

// safeID reports whether id can be the last part of a key.
func safeID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := 0; i < len(id); i++ {
		if c := id[i]; c <= ' ' || c >= 0x7f || c == '/' {
			return false
		}
	}
	return true
}
