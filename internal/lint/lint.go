// SPDX-License-Identifier: Apache-2.0

// Package lint gives advice on policies: findings P1xx. It never refuses anything and does
// no I/O.
package lint

import (
	"github.com/policyd/policyd/sdk/go/engine"
)

// Level is how much a finding matters.
type Level string

// Levels of findings.
const (
	LevelError   Level = "error"
	LevelWarning Level = "warning"
	LevelInfo    Level = "info"
)

// Finding is one piece of advice about the document at Scope.
type Finding struct {
	Code    string // P1xx
	Level   Level
	Scope   engine.Scope
	Path    string // for example "spec.backoff.jitter"
	Message string
}
