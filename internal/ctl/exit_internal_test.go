// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/internal/fault"
)

func TestExitOf_every_kind_has_a_code_that_the_help_explains(t *testing.T) {
	want := map[fault.Kind]exit{
		fault.Internal: 1, fault.Invalid: 7, fault.NotFound: 5, fault.Conflict: 6, fault.Denied: 4,
		fault.Unauthenticated: 4, fault.Refused: 7, fault.Exhausted: 7, fault.Unavailable: 8, fault.Canceled: 130,
	}
	help, ok := topic("exit-codes")
	require.True(t, ok)
	for _, k := range fault.Kinds() {
		require.Equal(t, want[k], exitOf(k), k)
		require.Contains(t, help, "  "+strconv.Itoa(int(exitOf(k)))+"  ")
	}
}

func TestFromStatus_without_details(t *testing.T) {
	a := newApp(Env{})
	for code, want := range map[codes.Code]exit{
		codes.Unavailable: 8, codes.DeadlineExceeded: 8, codes.Canceled: 130, codes.Unimplemented: 1,
		codes.PermissionDenied: 4, codes.Unauthenticated: 4, codes.Internal: 1, codes.Unknown: 1,
	} {
		require.Equal(t, want, a.fromStatus(status.Error(code, "x")).exit, code)
	}
}

func TestFormat(t *testing.T) {
	require.Equal(t, "1,204", count(1204))
	require.Equal(t, "-1,234,567", count(-1_234_567))
	require.Equal(t, "0.4", rate(0.44))
	require.Equal(t, "52,300", rate(52_300.2))
	require.Equal(t, "24m12s", shortDuration(24*time.Minute+12*time.Second))
	require.Equal(t, "1.4s", shortDuration(1_412*time.Millisecond))
	require.Equal(t, "3h5m", shortDuration(3*time.Hour+5*time.Minute+9*time.Second))
	require.Equal(t, "12d", shortDuration(12*24*time.Hour))
	require.Equal(t, "0s", shortDuration(-time.Second))
	require.Equal(t, []string{"a bb", "ccc"}, wrap("a bb ccc", 5))
	require.Equal(t, "a b", clean("a\x1bb"))
}

func TestAlign_leaves_colour_out(t *testing.T) {
	require.Equal(t, []string{"\x1b[32mab\x1b[0m    x", "abcd  y"}, align([][]string{{"\x1b[32mab\x1b[0m", "x"}, {"abcd", "y"}}))
}

func TestNormalAddr(t *testing.T) {
	for in, want := range map[string]string{
		"policyd:7400": "policyd:7400", "policyd": "policyd:7400", "127.0.0.1": "127.0.0.1:7400",
		"::1": "[::1]:7400", "[::1]:80": "[::1]:80",
	} {
		got, err := normalAddr(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"http://x", "a b", "x/y", "host:"} {
		_, err := normalAddr(bad)
		require.Error(t, err, bad)
	}
}
