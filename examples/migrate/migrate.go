// SPDX-License-Identifier: Apache-2.0

// Package migrate has small programs before and after their change to policyd, for the pages
// in docs/migrate, which show their lines. Each pair does the same for its caller; the tests
// run both against the same servers and show where they differ on purpose.
package migrate
