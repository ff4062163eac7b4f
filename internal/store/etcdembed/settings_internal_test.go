// SPDX-License-Identifier: Apache-2.0

package etcdembed

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestBridge_a_long_field_is_cut(t *testing.T) {
	var out bytes.Buffer
	log := bridge(slog.New(slog.NewTextHandler(&out, nil)))
	log.Warn("apply request took too long", zap.String("request", strings.Repeat("é", 40_000)), zap.Int("size", 7))
	require.Contains(t, out.String(), "apply request took too long")
	require.Contains(t, out.String(), "size:7")
	require.Contains(t, out.String(), "é…")
	require.Less(t, out.Len(), 2000)
}
