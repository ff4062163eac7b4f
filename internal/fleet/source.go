// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// Source is what another replica says of the instances connected to it. Its instances are
// part of the registry's answers until it is closed.
type Source struct {
	registry *Registry

	// instances is guarded by Registry.mu.
	instances map[string]Instance
}

// AddSource returns a source that knows no instance yet.
func (r *Registry) AddSource() *Source {
	s := &Source{registry: r, instances: make(map[string]Instance)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[s] = struct{}{}
	return s
}

// Update takes instances in. whole says that there are no others.
func (s *Source) Update(instances []Instance, whole bool) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if whole {
		clear(s.instances)
	}
	for _, in := range instances {
		if _, known := s.instances[in.ID]; known || len(s.instances) < MaxInstances {
			s.instances[in.ID] = in
		}
	}
	s.registry.notice.changed()
}

// Lost says that the replica cannot be reached: to our knowledge its instances have no
// connection any more.
func (s *Source) Lost() {
	now := time.Now()
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	for id, in := range s.instances {
		if in.State != Stale && !now.Before(in.BackBy) {
			in.State, in.Since, in.LastSeen = Stale, now, now
			s.instances[id] = in
		}
	}
	s.registry.notice.changed()
}

// Close takes the source's instances out.
func (s *Source) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	delete(s.registry.sources, s)
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
				local = append(local, in)
			} else if newer(&in, &local[i]) {
				local[i] = in
			}
		}
	}
	return local
}

// inSources returns the most that a source knows of an instance. Guarded by mu.
func (r *Registry) inSources(id string, now time.Time) (best Instance, found bool) {
	for s := range r.sources {
		if in, ok := s.instances[id]; ok && (!found || newer(&in, &best)) {
			in.age(false, now)
			best, found = in, true
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

// LocalSince returns the instances of this replica that changed after the point that an
// earlier call returned, 0: all, and the new point.
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
	return changed, next
}
