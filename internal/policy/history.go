// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// History is the past that a store has, and tells it from others that instances may have
// seen: those of data that a restore has replaced. Immutable.
type History struct {
	Epoch   Epoch
	Number  int64 // of the epoch, among those of the same data; a later one has a higher
	Cluster uint64
	// Secret signs tokens; none are made without it.
	Secret   []byte
	Branches []Branch // newest last
}

// Branch is a stretch of the past: what changed after a revision, up to the next branch.
// Data that were put back to an older copy go on in a branch of their own.
type Branch struct {
	ID    uint64
	After Revision
}

// Point is a revision that an instance says it was served.
type Point struct {
	Epoch    Epoch
	Revision Revision
	Token    []byte
}

// Verdict is what a History says of a Point.
type Verdict int

const (
	// Unproven: there is no token, or none of these data.
	Unproven Verdict = iota
	// Past: the point lies in the past of the data, or is still to come.
	Past
	// Lost: the point was served from these data in this cluster, and is not in their past:
	// they were put back to an older copy. It counts for revisions up to the one at which the
	// History was read.
	Lost
	// Replaced: the point was served from a later epoch of these data in another cluster: they
	// were restored there.
	Replaced
)

// A token is the number of its epoch, the cluster, the branch, and a signature.
const (
	tokenHead = 8 + 8 + 8
	tokenSize = tokenHead + 8
)

// Token returns the proof that a revision was served; nil if there is no secret.
func (h *History) Token(r Revision) []byte {
	if h == nil || len(h.Secret) == 0 {
		return nil
	}
	b := make([]byte, 0, tokenSize)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Number))
	b = binary.BigEndian.AppendUint64(b, h.Cluster)
	b = binary.BigEndian.AppendUint64(b, h.branch(r))
	return append(b, h.sign(b, h.Epoch, r)...)
}

func (h *History) sign(head []byte, epoch Epoch, r Revision) []byte {
	mac := hmac.New(sha256.New, h.Secret)
	mac.Write(head)
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(r)))
	mac.Write([]byte(epoch))
	return mac.Sum(nil)[:tokenSize-tokenHead]
}

// branch returns the one that a revision lies on; 0: not known any more.
func (h *History) branch(r Revision) uint64 {
	for _, b := range slices.Backward(h.Branches) {
		if b.After < r {
			return b.ID
		}
	}
	return 0
}

// NumberOf returns the number of the epoch of a point that was judged and is not Unproven.
func (h *History) NumberOf(p Point) int64 { return int64(binary.BigEndian.Uint64(p.Token)) }

// Judge says whether a point lies in this past.
func (h *History) Judge(p Point) Verdict {
	if h == nil || len(h.Secret) == 0 || len(p.Token) != tokenSize ||
		!hmac.Equal(p.Token[tokenHead:], h.sign(p.Token[:tokenHead], p.Epoch, p.Revision)) {
		return Unproven
	}
	number := int64(binary.BigEndian.Uint64(p.Token))
	cluster, branch := binary.BigEndian.Uint64(p.Token[8:]), binary.BigEndian.Uint64(p.Token[16:])
	switch {
	case p.Epoch == h.Epoch && cluster == h.Cluster:
		if here := h.branch(p.Revision); here != 0 && branch != 0 && here != branch {
			return Lost
		}
		return Past
	case number <= h.Number:
		return Past
	case cluster == h.Cluster:
		return Lost
	default:
		return Replaced
	}
}
