// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/fault"
)

func TestKindOf(t *testing.T) {
	conflict := fault.New(fault.Conflict, "revision_moved", "revision moved")
	cases := map[string]struct {
		err  error
		want fault.Kind
	}{
		"an error nobody classified is internal":     {errors.New("x"), fault.Internal},
		"a classified error keeps its kind":          {conflict, fault.Conflict},
		"wrapping keeps the kind":                    {fmt.Errorf("write: %w", conflict), fault.Conflict},
		"the outermost classification wins":          {fault.Wrap(conflict, fault.Unavailable, "r", "m"), fault.Unavailable},
		"a cancelled context is canceled":            {fmt.Errorf("x: %w", context.Canceled), fault.Canceled},
		"a context past its deadline is unavailable": {context.DeadlineExceeded, fault.Unavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, fault.KindOf(tc.err)) })
	}
}

func TestWrap_of_nil_is_nil(t *testing.T) {
	require.NoError(t, fault.Wrap(nil, fault.Invalid, "r", "m"))
}

func TestKinds_each_has_a_name_of_its_own(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range fault.Kinds() {
		require.False(t, seen[k.String()], k.String())
		seen[k.String()] = true
	}
	require.Len(t, seen, int(fault.Canceled)+1)
}

func TestBug_panics_in_tests(t *testing.T) {
	require.Panics(t, func() { _ = fault.Bug("unreachable %d", 1) })
}
