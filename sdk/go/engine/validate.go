// SPDX-License-Identifier: Apache-2.0

package engine

// Violation is one rule that a document breaks.
type Violation struct {
	Scope Scope
	Path  string // for example "spec.budget.ratio"
	Value string
	Rule  string // what holds, for example "0 to 1"
	Fix   string // what to do
}
