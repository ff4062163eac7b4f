// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// Source is what another replica, or a relay, says of the instances connected to it. Its
// instances are part of the registry's answers until it is closed.
type Source struct {
	registry *Registry
	below    bool // a relay of this replica

	// guarded by Registry.mu
	instances map[string]sourced
	full      bool // it has more instances than are kept
	swept     time.Time
}

// sourced is an instance and the registry's count at its last change.
type sourced struct {
	Instance

	changed int64
}

// AddSource returns a source, of another replica, that knows no instance yet.
func (r *Registry) AddSource() *Source { return r.addSource(false) }

// AddCell returns a source, of a relay below this replica, that knows no instance yet. What
// it says is part of what this replica says to others.
func (r *Registry) AddCell() *Source { return r.addSource(true) }

func (r *Registry) addSource(below bool) *Source {
	s := &Source{registry: r, below: below, instances: make(map[string]sourced)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[s] = struct{}{}
	return s
}

// Update takes instances in. whole says that there are no others.
func (s *Source) Update(instances []Instance, whole bool) {
	for i := range instances {
		if rep := instances[i].Report; rep != nil {
			s.registry.take(rep)
		}
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if whole {
		s.clear()
		s.full = false
	}
	for i := range instances {
		s.put(&instances[i])
	}
	s.registry.notice.changed()
}

// put is guarded by Registry.mu.
func (s *Source) put(in *Instance) {
	old, known := s.instances[in.ID]
	if !known && len(s.instances) >= MaxInstances && !s.sweep() {
		s.full = true
		return
	}
	s.registry.endpoints.Add(in.reported() - old.reported())
	s.instances[in.ID] = sourced{Instance: *in, changed: s.registry.changes.Add(1)}
}

// sweep forgets what was away too long, once in a while, and reports whether there is room.
// Guarded by Registry.mu.
func (s *Source) sweep() bool {
	now := time.Now()
	if now.Sub(s.swept) < sweepEvery {
		return false
	}
	s.swept = now
	for id, in := range s.instances {
		if in.age(false, now); forgotten(&in.Instance, now) {
			s.registry.endpoints.Add(-in.reported())
			delete(s.instances, id)
		}
	}
	return len(s.instances) < MaxInstances
}

// clear is guarded by Registry.mu.
func (s *Source) clear() {
	for _, in := range s.instances {
		s.registry.endpoints.Add(-in.reported())
	}
	clear(s.instances)
}

// Standing is where an instance stands, whichever it is.
type Standing struct {
	State            State
	Revision, Wanted int64
}

// Stand says where instances stand that were taken in before.
func (s *Source) Stand(ids []string, at Standing, now time.Time) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	for _, id := range ids {
		in, known := s.instances[id]
		if !known {
			continue // there was no room for it
		}
		if in.State != at.State {
			in.State, in.Since = at.State, now
		}
		in.Revision, in.Wanted, in.LastSeen = at.Revision, at.Wanted, now
		s.put(&in.Instance)
	}
	s.registry.notice.changed()
}

// Full reports whether there were more instances than are kept.
func (s *Source) Full() bool {
	s.registry.mu.RLock()
	defer s.registry.mu.RUnlock()
	return s.full
}

// Lost says that the replica cannot be reached: to our knowledge its instances have no
// connection any more.
func (s *Source) Lost() {
	now := time.Now()
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	for _, in := range s.instances {
		if in.State != Stale && !now.Before(in.BackBy) {
			in.State, in.Since, in.LastSeen = Stale, now, now
			s.put(&in.Instance)
		}
	}
	s.registry.notice.changed()
}

// Close takes the source's instances out.
func (s *Source) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	delete(s.registry.sources, s)
	s.clear()
	s.registry.notice.changed()
}

// withSources adds to local what sources know, and returns each instance once.
func (r *Registry) withSources(local []Instance, now time.Time) []Instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.sources) == 0 {
		return local
	}
	at := make(map[string]int, len(local))
	for i := range local {
		at[local[i].ID] = i
	}
	for s := range r.sources {
		for id, in := range s.instances {
			in.age(false, now)
			if i, known := at[id]; !known {
				at[id] = len(local)
				local = append(local, in.Instance)
			} else if newer(&in.Instance, &local[i]) {
				local[i] = in.Instance
			}
		}
	}
	return local
}

// inSources returns the most that a source knows of an instance. Guarded by mu.
func (r *Registry) inSources(id string, now time.Time) (best Instance, found bool) {
	return r.bestOf(id, now, false)
}

// bestOf is inSources, of relays alone if so asked. Guarded by mu.
func (r *Registry) bestOf(id string, now time.Time, relays bool) (best Instance, found bool) {
	for s := range r.sources {
		if relays && !s.below {
			continue
		}
		if in, ok := s.instances[id]; ok && (!found || newer(&in.Instance, &best)) {
			in.age(false, now)
			best, found = in.Instance, true
		}
	}
	return best, found
}

// newer reports whether a says more of an instance than b does: an instance that moved is
// connected to one replica, and known to the other from before.
func newer(a, b *Instance) bool {
	if (a.State == Stale) != (b.State == Stale) {
		return b.State == Stale
	}
	if a.State == Stale {
		return a.LastSeen.After(b.LastSeen)
	}
	return a.ConnectedAt.After(b.ConnectedAt)
}

// LocalSince returns the instances of this replica, and of the relays below it, that changed
// after the point that an earlier call returned, 0: all, and the new point.
func (r *Registry) LocalSince(point int64) ([]Instance, int64) {
	now := time.Now()
	next := r.changes.Load()
	if next == point {
		return nil, next
	}
	var changed []Instance
	for _, rec := range r.all(now) {
		if in, at := rec.snapshot(now); at > point && !forgotten(&in, now) {
			changed = append(changed, in)
		}
	}
	return r.withCells(changed, point, now), next
}

// withCells adds to the local instances that changed since point those of relays, each once,
// as whoever knows most of it says.
func (r *Registry) withCells(local []Instance, point int64, now time.Time) []Instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	told := make(map[string]struct{}, len(local))
	for i := range local {
		told[local[i].ID] = struct{}{}
		if in, ok := r.bestOf(local[i].ID, now, true); ok && newer(&in, &local[i]) {
			local[i] = in
		}
	}
	for s := range r.sources {
		if !s.below {
			continue
		}
		for id, in := range s.instances {
			if _, done := told[id]; done || in.changed <= point {
				continue
			}
			told[id] = struct{}{}
			best, _ := r.bestOf(id, now, true)
			if rec, here := r.records[id]; here {
				if mine, _ := rec.snapshot(now); newer(&mine, &best) {
					best = mine
				}
			}
			if !forgotten(&best, now) {
				local = append(local, best)
			}
		}
	}
	return local
}
