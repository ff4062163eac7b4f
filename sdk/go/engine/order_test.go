// SPDX-License-Identifier: Apache-2.0

package engine_test

import "testing"

func TestOrder_vectors(t *testing.T) { runScripts(t, "order.json") }
