// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync/atomic"
)

// table finds endpoints by name. Reading takes no lock and does not allocate; writing is
// guarded by Client.mu.
type table struct {
	seed  maphash.Seed
	limit int
	size  int           // endpoints
	tick  atomic.Uint64 // grows with each new endpoint
	slots atomic.Pointer[[]slot]
	taken int // slots that are not free
}

// slot holds an endpoint at the first free place after that of its hash. A free slot ends
// every search; one that became free stays taken by gone until the slots are built anew.
type slot = atomic.Pointer[endpoint]

var gone = &endpoint{} //nolint:gochecknoglobals // a mark, never used

func newTable(limit int) *table {
	t := &table{seed: maphash.MakeSeed(), limit: limit}
	t.slots.Store(&[]slot{{}})
	return t
}

// find returns the endpoint of that name, or nil, and marks it as used.
func (t *table) find(name string) *endpoint {
	hash := maphash.String(t.seed, name)
	slots := *t.slots.Load()
	for i := hash; ; i++ {
		e := slots[i&uint64(len(slots)-1)].Load()
		switch {
		case e == nil:
			return nil
		case e.hash != hash || e == gone || e.name != name:
			continue
		}
		if now := t.tick.Load(); e.used.Load() != now {
			e.used.Store(now)
		}
		return e
	}
}

// add puts e in and returns the endpoints that had to go for it, least recently used first.
func (t *table) add(e *endpoint) (dropped []*endpoint) {
	if t.size >= t.limit {
		dropped = t.oldest(1 + t.limit/1024)
		for _, old := range dropped {
			t.remove(old)
		}
	}
	e.hash = maphash.String(t.seed, e.name)
	e.used.Store(t.tick.Add(1))
	if old := *t.slots.Load(); t.taken >= len(old)*3/4 {
		capacity := 8
		for capacity < 2*(t.size+1) {
			capacity *= 2
		}
		next := make([]slot, capacity)
		t.taken = 0
		for i := range old {
			if e := old[i].Load(); e != nil && e != gone {
				t.place(next, e)
			}
		}
		t.slots.Store(&next)
	}
	t.place(*t.slots.Load(), e)
	t.size++
	return dropped
}

// oldest returns the n endpoints that were used least recently.
func (t *table) oldest(n int) []*endpoint {
	all := t.all()
	older := func(a, b *endpoint) int { return cmp.Compare(a.used.Load(), b.used.Load()) }
	if n == 1 {
		return []*endpoint{slices.MinFunc(all, older)}
	}
	slices.SortFunc(all, older)
	return all[:n]
}

func (t *table) place(slots []slot, e *endpoint) {
	i := e.hash
	for slots[i&uint64(len(slots)-1)].Load() != nil {
		i++
	}
	slots[i&uint64(len(slots)-1)].Store(e)
	t.taken++
}

func (t *table) remove(e *endpoint) {
	slots := *t.slots.Load()
	for i := e.hash; ; i++ {
		if s := &slots[i&uint64(len(slots)-1)]; s.Load() == e {
			s.Store(gone)
			t.size--
			return
		}
	}
}

// all returns every endpoint in no order.
func (t *table) all() []*endpoint {
	all := make([]*endpoint, 0, t.size)
	slots := *t.slots.Load()
	for i := range slots {
		if e := slots[i].Load(); e != nil && e != gone {
			all = append(all, e)
		}
	}
	return all
}
