// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/policyd/policyd/internal/rest"
)

// parts run until the stop; the first that fails ends the others.
type parts struct {
	group *errgroup.Group
	ctx   context.Context //nolint:containedctx // of the parts, which outlive the caller's
}

// newParts returns no parts yet. They live until stop, not until ctx ends.
func newParts(ctx context.Context, stop *stack) *parts {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	group, groupCtx := errgroup.WithContext(life)
	stop.push("parts", func(context.Context) error { end(); return ignoreCanceled(group.Wait()) })
	return &parts{group: group, ctx: groupCtx}
}

func (p *parts) run(name string, f func(context.Context) error) {
	p.group.Go(func() error {
		if err := f(p.ctx); err != nil && p.ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// until waits for ready and reports whether to go on: not if ctx ends or a part fails.
func (p *parts) until(ctx context.Context, ready <-chan struct{}) (goOn bool, err error) {
	select {
	case <-ready:
		return true, nil
	case <-ctx.Done():
		return false, nil
	case <-p.ctx.Done():
		return false, p.group.Wait()
	}
}

// serveHTTP serves health and metrics until the stop.
func (p *parts) serveHTTP(l net.Listener, stop *stack, cfg rest.Config) {
	server := rest.Server(rest.New(cfg), cfg.Logger)
	p.run("http", func(context.Context) error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	stop.push("http", func(ctx context.Context) error { return stopHTTP(ctx, server) })
}
