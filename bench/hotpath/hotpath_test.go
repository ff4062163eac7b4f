// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func BenchmarkHotpath(b *testing.B) {
	for _, c := range benchmarks() {
		b.Run(c.name, c.run)
	}
}
