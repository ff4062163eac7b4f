// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// windowSlices is the number of parts of every sliding window.
const windowSlices = 10

// window counts events, and the marked ones among them, over a sliding time of ten slices.
// Slices are aligned to the time line, so an event stays for nine to ten slices.
type window struct {
	width  time.Duration // of a slice
	newest int64         // number of the newest slice
	all    [windowSlices]uint32
	marked [windowSlices]uint32
	// sums over the slices
	sumAll, sumMarked uint64
}

func newWindow(length time.Duration, now Instant) window {
	w := window{width: sliceOf(length)}
	w.newest = now.slot(w.width)
	return w
}

func sliceOf(length time.Duration) time.Duration { return max(1, length/windowSlices) }

// advance drops the slices that have left the window. Time never goes back.
func (w *window) advance(now Instant) {
	at := now.slot(w.width)
	if at <= w.newest {
		return
	}
	if at-w.newest >= windowSlices {
		w.clear()
		w.newest = at
		return
	}
	for w.newest < at {
		w.newest++
		i := position(w.newest)
		w.sumAll -= uint64(w.all[i])
		w.sumMarked -= uint64(w.marked[i])
		w.all[i], w.marked[i] = 0, 0
	}
}

// add counts in the newest slice.
func (w *window) add(all, marked uint32) {
	i := position(w.newest)
	all = min(all, ^uint32(0)-w.all[i])
	marked = min(marked, ^uint32(0)-w.marked[i])
	w.all[i] += all
	w.marked[i] += marked
	w.sumAll += uint64(all)
	w.sumMarked += uint64(marked)
}

// unmark takes one mark out of a slice, if the slice is still there and has one.
func (w *window) unmark(slice int64) {
	if i := position(slice); slice > w.newest-windowSlices && slice <= w.newest && w.marked[i] > 0 {
		w.marked[i]--
		w.sumMarked--
	}
}

// clear forgets every event.
func (w *window) clear() {
	w.all, w.marked = [windowSlices]uint32{}, [windowSlices]uint32{}
	w.sumAll, w.sumMarked = 0, 0
}

// resize changes the length and keeps the events that are still inside, each at the start
// of the slice it was in.
func (w *window) resize(length time.Duration, now Instant) {
	old := *w
	*w = newWindow(length, now)
	for slice := old.newest - windowSlices + 1; slice <= old.newest; slice++ {
		at := min(Instant(slice*int64(old.width)).slot(w.width), w.newest)
		if at <= w.newest-windowSlices {
			continue
		}
		i, from := position(at), position(slice)
		w.all[i] += old.all[from]
		w.marked[i] += old.marked[from]
		w.sumAll += uint64(old.all[from])
		w.sumMarked += uint64(old.marked[from])
	}
}

// ends is the moment at which the newest slice ends.
func (w *window) ends() Instant {
	return Instant(0).Add(time.Duration((w.newest + 1) * int64(w.width)))
}

func position(slice int64) int {
	return int(((slice % windowSlices) + windowSlices) % windowSlices)
}
