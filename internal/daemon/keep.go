// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/policyd/policyd/internal/store"
	"github.com/policyd/policyd/internal/store/etcdembed"
)

const keepEvery = time.Minute

// housekeeping removes what the store keeps for a while only, and makes room in an embedded
// etcd that is full. Nobody else can: it has no address that a tool of etcd could reach.
type housekeeping struct {
	store   *store.Store
	member  *etcdembed.Server // nil for a cluster
	backlog *backlog
	log     *slog.Logger
}

func (h *housekeeping) run(ctx context.Context) error {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		if err := h.once(ctx, time.Now()); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "house-keeping failed, tried again in a minute", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (h *housekeeping) once(ctx context.Context, now time.Time) error {
	defer h.backlog.refresh(ctx)
	swept := h.store.Sweep(ctx, now)
	if h.member == nil {
		return swept
	}
	full, err := h.member.Full(ctx)
	if err != nil || !full {
		return errors.Join(swept, err)
	}
	if err := h.member.Reclaim(ctx); err != nil {
		return errors.Join(swept, fmt.Errorf("make room: %w", err))
	}
	h.log.WarnContext(ctx, "the store was full, room was made", "hint", "raise --quota-mib if this repeats")
	return h.store.Sweep(ctx, now) // what the full store refused
}
