// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"
)

// FallbackPolicy tells code that has a fallback what to do when a call fails. Nothing acts
// on it by itself.
type FallbackPolicy struct {
	Kind FallbackKind
	// MaxAge is the age of the oldest value that FallbackCached allows.
	MaxAge time.Duration
	// Status, ContentType and Body are the answer of FallbackStatic.
	Status            int
	ContentType, Body string
}

// FallbackKind is the kind of a fallback.
type FallbackKind uint8

// Kinds of fallbacks, in the order of documents.
const (
	FallbackNone FallbackKind = iota
	FallbackCached
	FallbackStatic
	FallbackFailFast
)

func (m FallbackKind) String() string { return FallbackMode.Spec().Words[m] }

func compileFallback(c compiler) FallbackPolicy {
	p := FallbackPolicy{Kind: FallbackKind(max(0, slices.Index(FallbackMode.Spec().Words, c.word(FallbackMode))))}
	switch p.Kind {
	case FallbackCached:
		p.MaxAge = c.duration(FallbackCachedMaxAge)
	case FallbackStatic:
		p.Status, p.ContentType, p.Body = c.count(FallbackStaticStatus), c.word(FallbackStaticContentType), c.word(FallbackStaticBody)
	case FallbackNone, FallbackFailFast:
	}
	return p
}
