// SPDX-License-Identifier: Apache-2.0

package engine

// NestedPolicy keeps retries from multiplying down a chain of services.
type NestedPolicy struct {
	// Mark attempts of calls that may be repeated, for the service that receives them.
	Mark bool
	// SingleAttempt: calls made on behalf of a marked attempt are sent once.
	SingleAttempt bool
}

func compileNested(c compiler) NestedPolicy {
	return NestedPolicy{Mark: c.flag(NestedMark), SingleAttempt: c.word(NestedWhenMarked) == "single-attempt"}
}
