// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// stack holds what has to be stopped, last in first out.
type stack struct {
	names []string
	stops []func(context.Context) error
}

func (s *stack) push(name string, stop func(context.Context) error) {
	s.names = append(s.names, name)
	s.stops = append(s.stops, stop)
}

// run stops everything within one bound and returns what went wrong, joined.
func (s *stack) run(ctx context.Context, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		logger.DebugContext(ctx, "stopping", "part", s.names[i])
		if err := s.stops[i](ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.names[i], err))
		}
	}
	return errors.Join(errs...)
}

// closer adapts a close that a server may have done already.
func closer(closeIt func() error) func(context.Context) error {
	return func(context.Context) error {
		if err := closeIt(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// stopHTTP lets requests finish, a second at most, and cuts what is left: none of them
// changes anything.
func stopHTTP(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return server.Close()
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
