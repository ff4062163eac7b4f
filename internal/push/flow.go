// SPDX-License-Identifier: Apache-2.0

package push

import "time"

// flow counts the bytes that a stream was sent and has not confirmed. Acks name revisions;
// one of those sent is marked with the bytes up to it, so that no list is needed.
type flow struct {
	sent, confirmed int

	last   int64 // revision of the newest update
	lastAt time.Duration
	lastTo int // bytes up to the newest update
	sentAt time.Duration

	marked   bool
	mark     int64
	markAt   time.Duration // when the oldest change of the marked update was published, 0: unknown
	markedTo int

	stalledSince time.Duration // 0: it is not
}

// pending is never less than what the stream has not confirmed.
func (f *flow) pending() int { return f.sent - f.confirmed }

func (f *flow) note(revision int64, at, now time.Duration) {
	f.last, f.lastAt, f.lastTo, f.sentAt = revision, at, f.sent, now
	if !f.marked {
		f.markLast()
	}
}

// maxAwait is how long an ordinary update waits for the confirmation of the one before. One
// that does not come may not hold up a stream for good.
const maxAwait = 2 * longestConfirm

// awaits reports whether an update that was sent a moment ago is not confirmed.
func (f *flow) awaits(now time.Duration) bool { return f.marked && now-f.sentAt < maxAwait }

func (f *flow) markLast() {
	f.marked, f.mark, f.markAt, f.markedTo = true, f.last, f.lastAt, f.lastTo
}

// confirm takes a confirmed revision and returns how long the marked update took.
func (f *flow) confirm(revision int64, now time.Duration) (waited time.Duration, ok bool) {
	if !f.marked || revision < f.mark {
		return 0, false
	}
	waited, ok = now-f.markAt, f.markAt > 0
	f.confirmed, f.marked = f.markedTo, false
	if revision >= f.last {
		f.confirmed = f.sent
	} else {
		f.markLast()
	}
	f.stalledSince = 0
	return waited, ok
}

// read notes that the marked update was read and is of no use: what has to replace it may not
// wait for its confirmation.
func (f *flow) read() { _, _ = f.confirm(f.mark, 0) }

func (f *flow) stall(now time.Duration) {
	if f.stalledSince == 0 {
		f.stalledSince = max(now, 1)
	}
}

func (f *flow) stalled(now time.Duration) time.Duration {
	if f.stalledSince == 0 {
		return 0
	}
	return now - f.stalledSince
}

const (
	// perConfirmation is the time that instances get for their confirmations, per reader of
	// the update: those of a fleet stay out of the way of the update to others, and of each
	// other.
	perConfirmation = 40 * time.Microsecond
	// perRound is the time between two rounds of edits over the streams of a view, per reader.
	// A round with its confirmations keeps two cores busy for about a third of it: a switch
	// among edits finds them idle most of the time.
	perRound = 120 * time.Microsecond

	shortestConfirm = 2 * time.Millisecond // less is not worth the wait
	longestConfirm  = 2 * time.Second
	longestRound    = 2 * time.Second
)

func confirmWithin(readers int64) time.Duration {
	within := min(time.Duration(readers)*perConfirmation, longestConfirm)
	if within < shortestConfirm {
		return 0
	}
	return within
}

// turns bounds how often an instance gets something: so many at once, then one after the
// other.
type turns struct {
	used time.Duration // the time up to which they are spent
}

// How often an instance gets the snapshot that it asks for, and other targets.
const (
	askEvery = 10 * time.Second
	askBurst = 3

	subscribeEvery = 50 * time.Millisecond
	subscribeBurst = 100
)

// allow takes a turn, if there is one.
func (t *turns) allow(now, every time.Duration, burst int) bool {
	spent := max(t.used, now) + every
	if spent-now > time.Duration(burst)*every {
		return false
	}
	t.used = spent
	return true
}

// take takes the next turn and returns how long it is until then.
func (t *turns) take(now, every time.Duration, burst int) time.Duration {
	t.used = max(t.used, now) + every
	return max(t.used-now-time.Duration(burst)*every, 0)
}
