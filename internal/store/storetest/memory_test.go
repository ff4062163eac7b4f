// SPDX-License-Identifier: Apache-2.0

package storetest_test

import (
	"context"
	"testing"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Env {
		m := storetest.NewMemory()
		return storetest.Env{
			Store:  m,
			Outbox: func(ctx context.Context) ([]policy.Entry, error) { return m.Outbox(ctx, 1000) },
		}
	})
}
