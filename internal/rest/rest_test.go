// SPDX-License-Identifier: Apache-2.0

package rest_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/rest"
)

func TestHandler(t *testing.T) {
	var notReady error
	h := rest.New(rest.Config{
		Ready:   func() error { return notReady },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("m 1\n")) }),
		Logger:  slog.New(slog.DiscardHandler),
	})
	get := func(path string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec
	}
	require.Equal(t, http.StatusOK, get("/healthz").Code)
	require.Equal(t, http.StatusOK, get("/readyz").Code)
	require.Equal(t, "m 1\n", get("/metrics").Body.String())
	require.Equal(t, http.StatusNotFound, get("/nothing").Code)
	require.Equal(t, "nosniff", get("/healthz").Header().Get("X-Content-Type-Options"))

	notReady = errors.New("the store's view is 20s old")
	require.Equal(t, http.StatusServiceUnavailable, get("/readyz").Code)
	require.Contains(t, get("/readyz").Body.String(), "20s old")
	require.Equal(t, http.StatusOK, get("/healthz").Code)
}
