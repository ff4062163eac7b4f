// SPDX-License-Identifier: Apache-2.0

// Package document reads and writes the documents of operators: policies and kill switches
// as YAML or JSON. Reading is strict; every error carries file, line and column. What is
// written can be read again and means the same. The table of settings in package engine is
// the schema.
package document

import (
	"strconv"
	"time"

	"github.com/policyd/policyd/internal/policy"
)

// APIVersion is what the first line of a document names.
const APIVersion = "policyd/v1"

// Kinds of documents.
const (
	KindPolicy = "RetryPolicy"
	KindSwitch = "KillSwitch"
	KindList   = "List"
)

// Limits on what is read.
const (
	// MaxStreamBytes bounds one file or stream.
	MaxStreamBytes = 32 << 20
	maxListBytes   = 4 << 20   // a List written as YAML
	maxNodes       = 1_000_000 // of a stream, aliases unfolded
	maxAliases     = 100       // of a document
	maxDepth       = 32
	maxErrors      = 20
)

// Object is one document: exactly one of Policy and Switch is set.
type Object struct {
	Policy *policy.Policy
	Switch *Switch
	// Revision is metadata.revision of a policy that was read: what its text started from.
	// 0: not stated.
	Revision policy.Revision
	// Status is what the server adds on output; it is ignored on input.
	Status *Status

	file  string
	at    mark
	marks map[string]mark
}

// Switch is a kill switch as operators write it. The id is metadata.name; it may be empty.
// A document to read has either ExpiresIn or the embedded Ends.
type Switch struct {
	policy.Switch
	ExpiresIn time.Duration
	Revision  policy.Revision
}

// Status is the part of a document that only the server knows.
type Status struct {
	Phase   policy.Phase
	EndedAt time.Time
	// Instances is nil where the fleet was not asked.
	Instances *Instances
}

// Instances counts the instances that a document reaches.
type Instances struct {
	Target, InForce, Behind, Rejected, Stale int64
}

// Kind returns the kind of the document.
func (o *Object) Kind() string {
	if o.Switch != nil {
		return KindSwitch
	}
	return KindPolicy
}

// Name is what identifies the document among its kind: the scope of a policy, the id of a
// switch.
func (o *Object) Name() string {
	if o.Switch != nil {
		return o.Switch.ID
	}
	return string(o.Policy.Scope)
}

// Position returns "file:line:col" of a field, for example "spec.budget.ratio", or of the
// nearest thing around it that was written. It is empty for documents that were not read.
func (o *Object) Position(path string) string {
	if o.file == "" {
		return ""
	}
	return position(o.file, o.mark(path))
}

func position(file string, at mark) string {
	return file + ":" + strconv.Itoa(at.line) + ":" + strconv.Itoa(at.col)
}
