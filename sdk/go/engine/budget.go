// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/bits"
	"time"
)

// budget bounds the retries of one endpoint. In its window every call is an event; a retry
// is a mark, set when it is decided upon. It reads the policy and the factor of switches
// only in fit, which must come before any question at a new moment. Guarded by Endpoint.mu.
type budget struct {
	window
	size   budgetSize
	tokens tokens
	// round grows when the marks are scaled down: older permits are worth less than one.
	round uint32
}

// budgetSize is what an allowance depends on beside the calls.
type budgetSize struct {
	ratio, floor int64 // in millionths; floor per second
	length       time.Duration
	factor       int64
}

// permit is a retry that was decided upon and can still be given back.
type permit struct {
	slice int64
	cost  int64 // in millionths of a token, out of a bucket of this capacity
	of    int64
	round uint32
	held  bool
}

func sizeOf(p *BudgetPolicy, factor int64) budgetSize {
	return budgetSize{p.Ratio, p.MinRetriesPerSecond, p.Window, factor}
}

func newBudget(p *BudgetPolicy, factor int64, now Instant) budget {
	b := budget{window: newWindow(p.Window, now), size: sizeOf(p, factor)}
	b.tokens.fit(&p.Tokens, factor, now)
	return b
}

// allowance is the number of retries that the window allows in all, whole ones:
// factor × (floor × length + ratio × calls).
func (s *budgetSize) allowance(calls uint64) int64 {
	// In units of 10⁻¹⁵ retries: millionths per second × nanoseconds.
	hi, lo := bits.Mul64(uint64(s.floor), uint64(s.length))
	ratioHi, ratioLo := bits.Mul64(uint64(s.ratio)*uint64(time.Second), calls)
	lo, carry := bits.Add64(lo, ratioLo, 0)
	hi += ratioHi + carry
	if s.factor < Million {
		carry, lo = bits.Mul64(lo, uint64(s.factor))
		hi, lo = div128(hi*uint64(s.factor)+carry, lo, Million)
	}
	hi, lo = div128(hi, lo, 1e15)
	if hi > 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

func div128(hi, lo, by uint64) (uint64, uint64) {
	low, _ := bits.Div64(hi%by, lo, by)
	return hi / by, low
}

// left is the number of retries that may still be decided upon in the present window,
// tokens aside.
func (b *budget) left() int64 {
	return max(0, b.size.allowance(b.sumAll)-int64(b.sumMarked))
}

// fit makes the budget that of p at a factor. A smaller one keeps the share that is used;
// in a greater one what is left stays the same, and what came on top is freed slice by
// slice as the window slides: no edit and no switch that ends makes a burst.
func (b *budget) fit(p *BudgetPolicy, factor int64, now Instant) {
	b.tokens.fit(&p.Tokens, factor, now)
	size := sizeOf(p, factor)
	if size == b.size {
		return
	}
	used, before := int64(b.sumMarked), b.size.allowance(b.sumAll)
	if size.length != b.size.length {
		b.window.resize(size.length, now)
	}
	b.size = size
	after := size.allowance(b.sumAll)
	if after < before {
		b.round++
		used = scaleUp(used, after, before)
	} else {
		used += after - before
	}
	b.setMarked(used)
}

// take reserves a retry in the newest slice.
func (b *budget) take(p *BudgetPolicy) permit {
	if b.left() == 0 || !b.tokens.take(&p.Tokens) {
		return permit{}
	}
	b.add(0, 1)
	return permit{slice: b.newest, cost: p.Tokens.cost(), of: b.tokens.capacity, round: b.round, held: true}
}

// available reports whether take would succeed.
func (b *budget) available(p *BudgetPolicy) bool {
	return b.left() > 0 && (!p.Tokens.Enabled || b.tokens.balance >= p.Tokens.RetryCost)
}

// giveBack returns the permit of a retry that never started to where it came from.
func (b *budget) giveBack(p *permit) {
	if !p.held {
		return
	}
	p.held = false
	if p.round == b.round {
		b.unmark(p.slice)
	}
	cost := p.cost
	if capacity := b.tokens.capacity; capacity < p.of { // what is in the bucket was scaled down as well
		cost = scale(cost, capacity, p.of)
	}
	b.tokens.add(cost)
}

// setMarked makes the marks sum up to target: fewer in proportion, more of them evenly and
// the remainder in the oldest slices.
func (w *window) setMarked(target int64) {
	have := int64(w.sumMarked)
	target = min(target, math.MaxUint32)
	var seen, given int64
	for i := range int64(windowSlices) {
		at := position(w.newest + 1 + i)
		n := int64(w.marked[at])
		if target < have {
			seen += n
			n = scale(seen, target, have) - given
			given += n
		} else {
			n += (target - have + windowSlices - 1 - i) / windowSlices
		}
		w.marked[at] = uint32(min(n, math.MaxUint32))
	}
	w.sumMarked = 0
	for _, n := range w.marked {
		w.sumMarked += uint64(n)
	}
}

// tokens is the bucket beside the window, in millionths of a token.
type tokens struct {
	made             bool // has been full once
	enabled          bool
	balance          int64
	capacity, refill int64 // as scaled by switches; refill per second
	at               Instant
	remainder        uint64 // of a refill, in 10⁻⁹ of a millionth
}

// fit makes the bucket that of p at a factor. It is full at its first creation only; what
// is in it is scaled down with the capacity, never up.
func (t *tokens) fit(p *TokenPolicy, factor int64, now Instant) {
	if !p.Enabled {
		t.enabled = false
		return
	}
	if t.enabled {
		t.accrue(now)
	}
	capacity := shareOf(p.Capacity, factor)
	switch {
	case !t.made:
		t.made, t.balance = true, capacity
	case capacity < t.capacity:
		t.balance = scale(t.balance, capacity, t.capacity)
	}
	t.enabled, t.at = true, max(t.at, now)
	t.capacity, t.refill = capacity, shareOf(p.RefillPerSecond, factor)
}

// accrue refills for the time that has passed.
func (t *tokens) accrue(now Instant) {
	elapsed := now.Sub(t.at)
	if elapsed <= 0 || t.refill == 0 {
		t.at = max(t.at, now)
		return
	}
	t.at = now
	hi, lo := bits.Mul64(uint64(elapsed), uint64(t.refill))
	lo, carry := bits.Add64(lo, t.remainder, 0)
	if hi += carry; hi >= uint64(time.Second) {
		t.balance, t.remainder = t.capacity, 0
		return
	}
	gained, remainder := bits.Div64(hi, lo, uint64(time.Second))
	t.remainder = remainder
	t.add(int64(min(gained, math.MaxInt64)))
	if t.balance == t.capacity {
		t.remainder = 0
	}
}

// add puts n in, never above the capacity.
func (t *tokens) add(n int64) {
	if t.enabled && t.balance < t.capacity {
		t.balance += min(n, t.capacity-t.balance)
	}
}

// credit puts in what n successes on the first attempt earn.
func (t *tokens) credit(p *TokenPolicy, n uint64) {
	if hi, lo := bits.Mul64(uint64(p.SuccessCredit), n); t.enabled {
		if hi > 0 || lo > math.MaxInt64 {
			lo = math.MaxInt64
		}
		t.add(int64(lo))
	}
}

func (t *tokens) take(p *TokenPolicy) bool {
	if !t.enabled {
		return true
	}
	if t.balance < p.RetryCost {
		return false
	}
	t.balance -= p.RetryCost
	return true
}

// cost is what a retry takes out of the bucket.
func (p *TokenPolicy) cost() int64 {
	if !p.Enabled {
		return 0
	}
	return p.RetryCost
}
