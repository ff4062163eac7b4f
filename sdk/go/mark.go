// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// mark is the context of an attempt, or of calls with options.
type mark struct {
	context.Context //nolint:containedctx // it is one
	config          *callConfig
	of              *record // of the call; nil outside of one
	number          uint8   // of the attempt
	hedge           bool
}

// record is what outlives a call: the contexts of its attempts, and through them whoever
// keeps one or its response, see this and nothing else of it. What is not said to be of the
// end is set before the first attempt is sent.
type record struct {
	first mark
	ep    *endpoint
	key   string
	tries uint8 // that may be made
	// quiet: one attempt, as the caller or a call around it wants; its outcome is not ours.
	quiet bool
	// repeated: what it is made for may be repeated further up.
	repeated bool
	// passive: decisions are made but do not act, so attempts are left as they are.
	passive bool

	ended    atomic.Bool // what follows is of the end
	attempts uint8
	waited   time.Duration
	code     Code
	revision int64
}

// firstSend is the record of a call over HTTP, with the request that its first attempt sends.
type firstSend struct {
	record
	req http.Request
}

type markKey struct{}

func (m *mark) Value(key any) any {
	if key == (markKey{}) {
		return m
	}
	return m.Context.Value(key)
}

// markOf returns the innermost mark of ctx, nil without one.
func markOf(ctx context.Context) *mark {
	m, _ := ctx.Value(markKey{}).(*mark)
	return m
}

// options returns the options that ctx carries, nil for none.
func (m *mark) options() *callConfig {
	if m == nil {
		return nil
	}
	return m.config
}

// running returns the call that is in progress around m, nil without one.
func (m *mark) running() *record {
	if m == nil || m.of == nil || m.of.ended.Load() {
		return nil
	}
	return m.of
}

// few is a number of attempts, which policies and the engine keep far below what fits.
func few(n int) uint8 { return uint8(n) } //nolint:gosec // see above

func (m *mark) attempt() Attempt {
	return Attempt{Number: int(m.number), Max: int(m.of.tries), IdempotencyKey: m.of.key, Hedge: m.hedge}
}
