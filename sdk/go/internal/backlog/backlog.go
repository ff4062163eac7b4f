// SPDX-License-Identifier: Apache-2.0

// Package backlog decides on calls that were kept to be sent later: which are, in what order
// and when they are sent, and what is gone too old. Pure: state, event and the time in,
// decision out.
package backlog

import (
	"math/bits"
	"net/http"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Keeps reports whether a call that the policy ended with a code may be sent later: another
// try can help, and nobody else is about to make it. A full endpoint is this process's own
// doing, a conflict or a lost body stays what it is.
func Keeps(code engine.Code) bool {
	switch code {
	case engine.CodeBreaker, engine.CodeAttempts, engine.CodeDisabled, engine.CodeGate,
		engine.CodeBudget, engine.CodeRetryAfter, engine.CodeDeadline:
		return true
	default:
		return false
	}
}

// Rules are what the policy of the moment says.
type Rules struct {
	On       bool // calls may be kept and sent
	MaxItems int
	TTL      time.Duration
	// Pace is the wait before the first send, and after the first that failed.
	Pace time.Duration
	// Look is how often a send that was refused is asked for again.
	Look time.Duration
}

// maxCredit keeps calls that joined while nothing could be sent from going out at once.
const maxCredit = 2

// Bounds of waits.
const (
	minPace = time.Second
	maxWait = time.Minute
	minLook = 100 * time.Millisecond
	maxLook = time.Second
	offLook = 5 * time.Second
)

// RulesOf reads the rules of a policy; acts is false while decisions do not act.
func RulesOf(p *engine.Policy, acts bool) Rules {
	r := Rules{Pace: min(max(p.Backoff.Base, minPace), maxWait), Look: min(max(p.Budget.Window/10, minLook), maxLook)}
	if x := p.Extras; x != nil && x.Queue.Enabled {
		r.On, r.MaxItems, r.TTL = acts && !p.Observe, x.Queue.MaxItems, x.Queue.TTL
	}
	return r
}

// Item is a call that waits.
type Item struct {
	ID     uint64         // grows in the order of keeping
	Queued engine.Instant // may lie before the start of the process
	TTL    time.Duration  // as of then
	// Sent: it may have reached the service, so that what is sent now is a repeat.
	Sent  bool
	Sends int // failed ones, since the process started
}

// expires is when an item is too old: a shorter ttl of today's policy counts.
func (i *Item) expires(r *Rules) engine.Instant {
	ttl := i.TTL
	if r.TTL > 0 {
		ttl = min(ttl, r.TTL)
	}
	return i.Queued.Add(ttl)
}

// Lane holds the calls of one endpoint, oldest first, and sends one at a time. The zero Lane
// is empty. Not safe for concurrent use.
type Lane struct {
	items   []Item
	sending bool
	next    engine.Instant // nothing is asked for before
	asked   engine.Instant // nor before this, whatever happens: the service wants it
	failed  int            // sends in a row
	// answered are sends in a row; while there are any, each call that joins may pay for a
	// send: it would have been sent itself.
	answered int
	credit   int
	unpaid   bool           // the next send is to be, since the budget refused it
	refusals bool           // the lane rests because of that
	oldest   engine.Instant // nothing expires before
	ttl      time.Duration  // of the rules that oldest follows from
}

// Len is the number of calls that wait, the one that is being sent included.
func (l *Lane) Len() int { return len(l.items) }

// Items are the calls that wait, oldest first. They must not be changed.
func (l *Lane) Items() []Item { return l.items }

// Flows reports whether the last send was answered.
func (l *Lane) Flows() bool { return l.answered > 0 }

// Room reports whether a further call may be kept, for n are about to be already.
func (l *Lane) Room(r Rules, n int) bool { return r.On && len(l.items)+n < r.MaxItems }

// Add keeps a call that gave up, or, joining, one that was not sent because others wait.
func (l *Lane) Add(r Rules, it Item, joins bool, now engine.Instant, random func() uint64) {
	at := len(l.items)
	for at > 0 && l.items[at-1].ID > it.ID {
		at-- // its record was written sooner than that of an older one
	}
	if at == 0 && l.sending {
		at = 1
	}
	l.items = append(l.items, Item{})
	copy(l.items[at+1:], l.items[at:])
	l.items[at] = it
	if len(l.items) == 1 {
		l.failed, l.answered, l.credit = max(l.failed, 1), 0, 0
		l.next = max(l.next, now.Add(l.pause(&r, random)))
		l.oldest = it.expires(&r)
	}
	l.oldest = min(l.oldest, it.expires(&r))
	if joins && l.answered > 0 {
		l.credit = min(l.credit+1, maxCredit)
		if l.refusals && !l.items[0].Sent {
			l.next = min(l.next, now)
		}
	}
}

// Remove takes a call out, and reports whether it was there and is not being sent.
func (l *Lane) Remove(id uint64) bool {
	for i := range l.items {
		if l.items[i].ID == id && (i > 0 || !l.sending) {
			l.items = append(l.items[:i], l.items[i+1:]...)
			l.unpaid = l.unpaid && i > 0
			return true
		}
	}
	return false
}

// Do is what is to be done next.
type Do uint8

// Things to do.
const (
	Nothing Do = iota // the lane is empty, or a send is in progress
	Rest              // until Step.Until
	Send              // Step.Item, then call Done
	Expire            // Step.Item: it is out of the lane
)

// Step is what is to be done next.
type Step struct {
	Do    Do
	Item  Item
	Until engine.Instant
	// Paid: the send is a retry, which the switches have to allow and the budget pays for.
	// Otherwise it is the first send of a call, in the place of one that joined, after the
	// budget has refused it.
	Paid bool
}

// Next says what to do at now.
func (l *Lane) Next(r Rules, now engine.Instant) Step {
	if len(l.items) == 0 || l.sending {
		return Step{}
	}
	if it, ok := l.expire(&r, now); ok {
		return Step{Do: Expire, Item: it}
	}
	until := l.next
	if !r.On {
		until = max(until, now.Add(offLook))
	}
	if until > now {
		return Step{Do: Rest, Until: min(until, max(l.oldest, now+1))}
	}
	l.sending = true
	return Step{Do: Send, Item: l.items[0], Paid: !l.unpaid}
}

// expire takes one call out that is too old.
func (l *Lane) expire(r *Rules, now engine.Instant) (Item, bool) {
	if l.ttl != r.TTL {
		l.ttl, l.oldest = r.TTL, 0
		l.oldest = l.earliest(r)
	}
	if now < l.oldest {
		return Item{}, false
	}
	for i := range l.items {
		if it := l.items[i]; it.expires(r) <= now {
			l.items = append(l.items[:i], l.items[i+1:]...)
			l.unpaid = l.unpaid && i > 0
			l.oldest = l.earliest(r)
			return it, true
		}
	}
	l.oldest = l.earliest(r)
	return Item{}, false
}

func (l *Lane) earliest(r *Rules) engine.Instant {
	at := engine.Never
	for i := range l.items {
		at = min(at, l.items[i].expires(r))
	}
	return at
}

// Ending is how a send ended.
type Ending uint8

// Endings of a send.
const (
	Answered Ending = iota // finally: the call is over
	Failed                 // in a way that the policy repeats, or that says nothing of the call
	Doubtful               // in a way that another send may not cure
	Refused                // it was not sent
)

// Result is how a send ended.
type Result struct {
	Ending Ending
	// Asked is the least wait that the service asks for.
	Asked time.Duration
	// RetryAt is when a refused send may make sense, 0 if unknown; Shut: the breaker refused.
	RetryAt engine.Instant
	Shut    bool
}

// EndingOf says how the send ended whose outcome is o; repeats: the policy repeats such a one.
// A call that was answered finally is over, whatever the answer.
func EndingOf(o engine.Outcome, repeats bool) Ending {
	switch o.Kind {
	case engine.OutcomeOK, engine.OutcomePermanent:
		return Answered
	case engine.OutcomeNetwork, engine.OutcomeRetryable, engine.OutcomeCancelled:
		return Failed
	case engine.OutcomeHTTP:
		return httpEnding(o.Code, repeats)
	case engine.OutcomeGRPC:
		return grpcEnding(o.Code, repeats)
	default:
		return Doubtful
	}
}

func httpEnding(status int, repeats bool) Ending {
	switch {
	case status == http.StatusConflict && repeats: // still at work on the key, or a conflict for good
		return Doubtful
	case repeats, status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return Failed
	case status >= http.StatusInternalServerError:
		return Doubtful
	default:
		return Answered
	}
}

// Codes of gRPC that say nothing of the call, and that another send may not cure.
const (
	grpcLater    = 1<<4 | 1<<8 | 1<<14          // deadline exceeded, resource exhausted, unavailable
	grpcDoubtful = 1<<2 | 1<<10 | 1<<13 | 1<<15 // unknown, aborted, internal, data loss
)

func grpcEnding(code int, repeats bool) Ending {
	bit := uint32(1) << min(uint(max(code, 0)), 31)
	switch {
	case repeats || grpcLater&bit != 0:
		return Failed
	case grpcDoubtful&bit != 0:
		return Doubtful
	default:
		return Answered
	}
}

// maxDoubtful is how often a call is sent whose failures another send may not cure.
const maxDoubtful = 5

// Done ends the send that Next asked for. It reports whether the call is over, and then it is
// out of the lane.
func (l *Lane) Done(r Rules, res Result, now engine.Instant, random func() uint64) (over bool) {
	if !l.sending {
		return false
	}
	l.sending = false
	unpaid := l.unpaid
	l.unpaid, l.refusals = false, false
	if res.Ending == Refused {
		l.refused(&r, &res, unpaid, now, random)
		return false
	}
	if unpaid {
		l.credit--
	}
	head := &l.items[0]
	if res.Ending == Answered {
		l.items = l.items[1:]
		l.failed = 0
		// The first ones after a failure go out slowly.
		l.answered++
		l.next = now.Add(jittered(r.Pace>>min(l.answered, 62), random))
		return true
	}
	head.Sent = true
	head.Sends++
	over = res.Ending == Doubtful && head.Sends >= maxDoubtful
	if over {
		l.items = l.items[1:]
	}
	l.answered, l.credit = 0, 0
	l.failed++
	l.asked = now.Add(spread(res.Asked, random))
	l.next = max(l.asked, now.Add(l.pause(&r, random)))
	return over
}

func (l *Lane) refused(r *Rules, res *Result, unpaid bool, now engine.Instant, random func() uint64) {
	switch {
	case res.Shut:
		l.answered, l.credit = 0, 0
	case !unpaid && l.credit > 0 && !l.items[0].Sent:
		l.unpaid = true
		return
	default:
		l.refusals = true
	}
	wait := jittered(r.Look, random)
	if res.RetryAt > now {
		wait += min(res.RetryAt.Sub(now), maxWait)
	}
	l.next = now.Add(wait)
}

// Wake has the next send asked for sooner, at a moment that does not come before the one
// that the service asked for.
func (l *Lane) Wake(at engine.Instant) { l.next = max(min(l.next, at), l.asked) }

// Alive has it asked for soon, since another call of the endpoint was answered.
func (l *Lane) Alive(r Rules, now engine.Instant, random func() uint64) {
	if l.answered == 0 {
		l.Wake(now.Add(jittered(r.Pace, random)))
	}
}

// pause is the wait after sends that failed.
func (l *Lane) pause(r *Rules, random func() uint64) time.Duration {
	d := r.Pace
	for range max(l.failed, 1) - 1 {
		if d *= 2; d >= maxWait {
			d = maxWait
			break
		}
	}
	return jittered(d, random)
}

// jittered is uniform in [d/2, d].
func jittered(d time.Duration, random func() uint64) time.Duration {
	half := d / 2
	return d - half + upTo(half, random)
}

// spread adds up to a tenth, so that a fleet which was asked to wait does not come back at once.
func spread(d time.Duration, random func() uint64) time.Duration {
	if d <= 0 {
		return 0
	}
	return max(d, d+upTo(d/10, random))
}

// upTo is uniform in [0, d].
func upTo(d time.Duration, random func() uint64) time.Duration {
	if d <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(random(), uint64(d)+1)
	return time.Duration(hi)
}
