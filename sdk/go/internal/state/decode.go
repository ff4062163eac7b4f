// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
	"github.com/policyd/policyd/sdk/go/wire"
)

// Rejection is a document that is not in force, and why. It is an error that people read.
type Rejection struct { //nolint:errname // the word of the protocol
	Scope    string // of the policy, or the id of the switch
	Revision int64
	Field    string
	Reason   string
}

func (r *Rejection) Error() string {
	field := ""
	if r.Field != "" {
		field = r.Field + ": "
	}
	return fmt.Sprintf("%s at revision %d is rejected: %s%s", r.Scope, r.Revision, field, r.Reason)
}

// newRejection takes texts from outside: they are shortened and made Printable.
func newRejection(e *policydv1.Entry, err error) *Rejection {
	name := strings.TrimPrefix(strings.TrimPrefix(e.GetKey(), policyPrefix), switchPrefix)
	r := Rejection{Scope: Printable(name), Revision: e.GetRevision(), Reason: Printable(err.Error())}
	var field *wire.FieldError
	if errors.As(err, &field) {
		r.Field, r.Reason = Printable(field.Path), Printable(field.Reason)
	}
	return &r
}

// readPolicy takes a document only if all of it can be honoured.
func readPolicy(key string, p *policydv1.Policy, revision int64) (*heldPolicy, error) {
	if key != policyPrefix+p.GetScope() {
		return nil, &wire.FieldError{Path: "scope", Reason: "differs from the key"}
	}
	if size := proto.Size(p); size > engine.MaxDocumentBytes {
		return nil, fmt.Errorf("%d bytes: at most %d", size, engine.MaxDocumentBytes)
	}
	doc, err := wire.Document(p, revision)
	if err != nil {
		return nil, err
	}
	if err := check(&doc); err != nil {
		return nil, err
	}
	return &heldPolicy{document: doc, source: p}, nil
}

// check holds a document to the limits. What this SDK does not know was refused before.
func check(doc *engine.Document) error {
	if broken := engine.Validate(doc.Scope, doc.Settings); len(broken) > 0 {
		return violated(broken[0])
	}
	return nil
}

// Check returns why a document of another source than policyd cannot be honoured, or nil.
func Check(doc *engine.Document) *Rejection {
	if err := check(doc); err != nil {
		return newRejection(&policydv1.Entry{Key: policyPrefix + string(doc.Scope), Revision: doc.Revision}, err)
	}
	return nil
}

func violated(v engine.Violation) error {
	reason := v.Rule
	if v.Value != "" {
		reason = v.Value + ": " + v.Rule
	}
	return &wire.FieldError{Path: strings.TrimPrefix(v.Path, "spec."), Reason: reason}
}

// readSwitch takes a kill switch and brings its end onto this process's clock.
func readSwitch(key string, k *policydv1.KillSwitch, revision int64, c clock) (*heldSwitch, error) {
	if key != switchPrefix+k.GetId() {
		return nil, &wire.FieldError{Path: "id", Reason: "differs from the key"}
	}
	if size := proto.Size(k); size > engine.MaxDocumentBytes {
		return nil, fmt.Errorf("%d bytes: at most %d", size, engine.MaxDocumentBytes)
	}
	sw, err := wire.Switch(k, revision)
	if err != nil {
		return nil, err
	}
	if broken := engine.ValidateSwitch(sw, c.now.Add(c.ahead+maxDelivery)); len(broken) > 0 {
		return nil, violated(broken[0])
	}
	sw.Ends = c.here(sw.Ends)
	return &heldSwitch{sw: sw, source: k}, nil
}

// Printable makes a text fit for logs and pages: short, on one line, without controls.
func Printable(v any) string {
	const most = 300
	s := strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, fmt.Sprint(v))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
