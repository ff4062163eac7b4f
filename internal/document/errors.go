// SPDX-License-Identifier: Apache-2.0

package document

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/policyd/policyd/internal/fault"
)

// Error is one rule that the text of a document breaks.
type Error struct {
	File         string
	Line, Column int
	// Path of the field, for example "spec.budget.ratio"; empty for errors of the text.
	Path    string
	Message string
}

func (e Error) Error() string {
	return position(e.File, mark{e.Line, e.Column}) + ": " + e.Message
}

// StreamError is all errors of a stream in its order; after 20 the rest is counted.
type StreamError struct {
	List []Error
	More int
}

func (e *StreamError) Error() string {
	lines := make([]string, 0, len(e.List)+1)
	for _, one := range e.List {
		lines = append(lines, one.Error())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more errors", e.More))
	}
	return strings.Join(lines, "\n")
}

// Invalid returns rules that documents break together as a fault like those of Decode, each
// at the place of its field. Violations of scopes that no object has are at the first one.
func Invalid(objects []*Object, violations []fault.Violation) error {
	r := &reader{}
	for _, v := range violations {
		at := objects[0]
		for _, o := range objects {
			if o.Policy != nil && string(o.Policy.Scope) == v.Scope {
				at = o
				break
			}
		}
		r.file = at.file
		r.fail(at.mark(v.Path), v.Path, "%s", ruleText(v, v.Path))
	}
	return r.fault()
}

func (o *Object) mark(path string) mark {
	for {
		if at, ok := o.marks[path]; ok {
			return at
		}
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return o.at
		}
		path = path[:i]
	}
}

// reader collects the errors of one stream.
type reader struct {
	file  string
	errs  StreamError
	nodes int
}

func (r *reader) fail(at mark, path, format string, args ...any) {
	if len(r.errs.List) == maxErrors {
		r.errs.More++
		return
	}
	r.errs.List = append(r.errs.List, Error{
		File: r.file, Line: at.line, Column: at.col, Path: path, Message: fmt.Sprintf(format, args...),
	})
}

func (r *reader) failed() bool { return len(r.errs.List) > 0 }

// fault returns what was collected as a fault of kind Invalid, nil if nothing was.
func (r *reader) fault() error {
	if !r.failed() {
		return nil
	}
	errs := r.errs
	slices.SortStableFunc(errs.List, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	f := fault.New(fault.Invalid, "invalid_document", "%s", errs.Error())
	f.Err = &errs
	for _, e := range errs.List {
		f.Violations = append(f.Violations, fault.Violation{Path: e.Path, Rule: e.Error()})
	}
	return f
}

// Join makes one fault of those that Decode returned for several files, nil of none. A
// failure of another kind wins.
func Join(faults ...error) error {
	r := &reader{}
	for _, err := range faults {
		var errs *StreamError
		switch {
		case errors.As(err, &errs):
			for _, e := range errs.List {
				r.file = e.File
				r.fail(mark{e.Line, e.Column}, e.Path, "%s", e.Message)
			}
			r.errs.More += errs.More
		case err != nil:
			return err
		}
	}
	return r.fault()
}
