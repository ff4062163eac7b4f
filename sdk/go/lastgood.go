// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	lru "container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// maxKept bounds the keys of a LastGood.
const maxKept = 1000

// LastGood keeps the last successful value per key, for policies with fallback.mode cached.
// It keeps the 1,000 keys that were used last. Safe for concurrent use; values are shared,
// so callers must not change what they get.
type LastGood[T any] struct {
	maxAge time.Duration

	mu   sync.Mutex
	kept map[string]*lru.Element // guarded by mu
	used lru.List                // guarded by mu; of *keptValue[T], last used first
}

type keptValue[T any] struct {
	key   string
	value T
	at    time.Time
}

// NewLastGood returns a LastGood whose values are used up to an age of maxAge, or of the
// policy's fallback.cached.maxAge if that is less.
func NewLastGood[T any](maxAge time.Duration) *LastGood[T] {
	return &LastGood[T]{maxAge: maxAge, kept: map[string]*lru.Element{}}
}

// Do is the function [Do] that keeps what fn returns under key. When the policy gave up and
// advises the last good value, it returns that one and its age, which is never 0; age is 0
// for a fresh value and for an error. key tells the values of an endpoint apart, and values
// of different endpoints never mix.
func (l *LastGood[T]) Do(ctx context.Context, endpoint, key string, fn func(context.Context) (T, error), opts ...CallOption) (v T, age time.Duration, err error) {
	key = endpoint + "\x00" + key
	v, err = Do(ctx, endpoint, fn, opts...)
	if err == nil {
		l.keep(key, v)
		return v, 0, nil
	}
	var gaveUp *Error
	if !errors.As(err, &gaveUp) {
		return v, 0, err
	}
	advice := gaveUp.Fallback()
	if advice.Mode != FallbackCached {
		return v, 0, err
	}
	if old, age, ok := l.find(key, min(l.maxAge, advice.MaxAge)); ok {
		gaveUp.answered()
		return old, age, nil
	}
	return v, 0, err
}

func (l *LastGood[T]) keep(key string, v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if e := l.kept[key]; e != nil {
		k := e.Value.(*keptValue[T]) //nolint:forcetypeassert // nothing else is put in
		k.value, k.at = v, now
		l.used.MoveToFront(e)
		return
	}
	if l.used.Len() >= maxKept {
		last := l.used.Back()
		delete(l.kept, l.used.Remove(last).(*keptValue[T]).key) //nolint:forcetypeassert // nothing else is put in
	}
	l.kept[key] = l.used.PushFront(&keptValue[T]{key, v, now})
}

func (l *LastGood[T]) find(key string, maxAge time.Duration) (v T, age time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.kept[key]
	if e == nil {
		return v, 0, false
	}
	k := e.Value.(*keptValue[T]) //nolint:forcetypeassert // nothing else is put in
	if age = max(time.Since(k.at), 1); age > maxAge {
		return v, 0, false
	}
	l.used.MoveToFront(e)
	return k.value, age, true
}
