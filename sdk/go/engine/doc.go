// SPDX-License-Identifier: Apache-2.0

// Package engine holds the pure decisions of policyd: what a policy means and what a call
// may do next. State, event and now go in, a decision comes out; it starts no goroutine,
// reads no clock and draws no randomness of its own. The server, the simulator and the Go
// SDK share it. There is no compatibility promise outside this repository.
package engine
