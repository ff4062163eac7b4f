// SPDX-License-Identifier: Apache-2.0

// Package rest serves policyd's HTTP: health, readiness and metrics. Handlers translate;
// they hold no rule.
package rest

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// Config holds what the handlers answer from.
type Config struct {
	// Ready returns nil when policyd serves a current view, else why not.
	Ready   func() error
	Metrics http.Handler
	Logger  *slog.Logger
}

// New returns the HTTP server's handler.
func New(cfg Config) http.Handler {
	e := echo.New()
	e.Use(
		middleware.RecoverWithConfig(middleware.RecoverConfig{
			LogErrorFunc: func(c echo.Context, err error, stack []byte) error {
				cfg.Logger.ErrorContext(c.Request().Context(), "handler panicked", "error", err, "stack", string(stack))
				return err
			},
		}),
		middleware.SecureWithConfig(middleware.SecureConfig{
			ContentTypeNosniff:    "nosniff",
			XFrameOptions:         "DENY",
			ContentSecurityPolicy: "default-src 'none'",
		}),
		middleware.BodyLimit("64K"),
	)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	e.GET("/readyz", func(c echo.Context) error {
		if err := cfg.Ready(); err != nil {
			return c.String(http.StatusServiceUnavailable, "not ready: "+err.Error()+"\n")
		}
		return c.String(http.StatusOK, "ready\n")
	})
	e.GET("/metrics", echo.WrapHandler(cfg.Metrics))
	return e
}

// Server returns an HTTP server for handler with bounds on what a client may take.
func Server(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
