// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// The vectors are what every engine must answer; their README says how to read them.

func readVectors(t *testing.T, file string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "spec", "vectors", file))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

type vectorDocument struct {
	Scope       engine.Scope
	Revision    int64
	Criticality string
	Settings    map[string]json.RawMessage
}

func (d vectorDocument) document(t *testing.T) engine.Document {
	t.Helper()
	return engine.Document{Scope: d.Scope, Revision: d.Revision, Settings: vectorSettings(t, d.Settings), Criticality: vectorCriticality(t, d.Criticality)}
}

func vectorDocuments(t *testing.T, in []vectorDocument) []engine.Document {
	t.Helper()
	var out []engine.Document
	for _, d := range in {
		out = append(out, d.document(t))
	}
	return out
}

func vectorCriticality(t *testing.T, s string) engine.Criticality {
	t.Helper()
	c, ok := engine.ParseCriticality(s)
	if !ok {
		t.Fatalf("criticality %q", s)
	}
	return c
}

func vectorSettings(t *testing.T, in map[string]json.RawMessage) engine.Settings {
	t.Helper()
	s := engine.Settings{}
	for path, raw := range in {
		f, ok := engine.FieldByPath(path)
		if !ok {
			t.Fatalf("no setting %q", path)
		}
		s[f] = vectorValue(t, f, raw)
	}
	return s
}

func vectorValue(t *testing.T, f engine.Field, raw json.RawMessage) engine.Value {
	t.Helper()
	read := func(into any) {
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	switch f.Spec().Kind {
	case engine.KindBool:
		var b bool
		read(&b)
		return engine.Bool(b)
	case engine.KindInt:
		var n int64
		read(&n)
		return engine.Int(n)
	case engine.KindDecimal:
		var n float64
		read(&n)
		v, _ := engine.Decimal(n)
		return v
	case engine.KindDuration:
		return engine.Duration(vectorDuration(t, raw))
	case engine.KindSet:
		var items []string
		read(&items)
		return engine.Set(items...)
	case engine.KindEnum, engine.KindText:
		var s string
		read(&s)
		return engine.Value{Kind: f.Spec().Kind, Text: s}
	}
	t.Fatalf("kind of %s", f)
	return engine.Value{}
}

func vectorDuration(t *testing.T, raw json.RawMessage) time.Duration {
	t.Helper()
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

type vectorOrigin struct {
	Value    json.RawMessage
	From     string
	Revision int64
}

type mergeVectors struct {
	Cases []struct {
		Name        string
		Scope       engine.Scope
		Documents   []vectorDocument
		Criticality *string
		Want        map[string]*struct {
			vectorOrigin
			Ceiling *string
			Shadows []vectorOrigin
		}
	}
}

func TestMerge_vectors(t *testing.T) {
	for _, file := range []string{"merge.json", "ceilings.json"} {
		var vectors mergeVectors
		readVectors(t, file, &vectors)
		for _, tc := range vectors.Cases {
			t.Run(tc.Name, func(t *testing.T) {
				e := engine.Merge(tc.Scope, vectorDocuments(t, tc.Documents))
				if tc.Criticality != nil && e.Criticality != vectorCriticality(t, *tc.Criticality) {
					t.Errorf("criticality %q, want %q", e.Criticality, *tc.Criticality)
				}
				for path, want := range tc.Want {
					f, ok := engine.FieldByPath(path)
					if !ok {
						t.Fatalf("no setting %q", path)
					}
					r := e.At(f)
					if want == nil {
						if r.Present() {
							t.Errorf("%s = %s from %s, want no value", f, r.Value, r.From)
						}
						continue
					}
					checkOrigin(t, f, r.Value, r.Origin, want.vectorOrigin)
					if want.Ceiling != nil && r.Ceiling.From != *want.Ceiling {
						t.Errorf("%s: ceiling %q, want %q", f, r.Ceiling.From, *want.Ceiling)
					}
					if want.Shadows == nil {
						continue
					}
					if len(r.Shadows) != len(want.Shadows) {
						t.Fatalf("%s: shadows %v", f, r.Shadows)
					}
					for i, s := range want.Shadows {
						checkOrigin(t, f, r.Shadows[i].Value, r.Shadows[i].Origin, s)
					}
				}
			})
		}
	}
}

func checkOrigin(t *testing.T, f engine.Field, v engine.Value, o engine.Origin, want vectorOrigin) {
	t.Helper()
	if w := vectorValue(t, f, want.Value); !v.Equal(w) {
		t.Errorf("%s = %s, want %s", f, v, w)
	}
	if o.From != want.From || o.Revision != want.Revision {
		t.Errorf("%s from %s at %d, want %s at %d", f, o.From, o.Revision, want.From, want.Revision)
	}
}

func TestValidate_vectors(t *testing.T) {
	var vectors struct {
		Documents []struct {
			Name       string
			Scope      engine.Scope
			Settings   map[string]json.RawMessage
			Violations []string
		}
		Paths []struct {
			Name       string
			Documents  []vectorDocument
			Violations []string
		}
		Switches []struct {
			Name       string
			Switch     vectorSwitch
			Left       json.RawMessage
			Violations []string
		}
	}
	readVectors(t, "validate.json", &vectors)
	check := func(t *testing.T, found []engine.Violation, show func(engine.Violation) string, want []string) {
		t.Helper()
		got := make([]string, 0, len(found))
		for _, v := range found {
			if v.Rule == "" {
				t.Errorf("%s has no rule", v.Path)
			}
			got = append(got, show(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("violations %v\nwant %q", found, want)
		}
	}
	path := func(v engine.Violation) string { return v.Path }
	for _, tc := range vectors.Documents {
		t.Run(tc.Name, func(t *testing.T) {
			check(t, engine.Validate(tc.Scope, vectorSettings(t, tc.Settings)), path, tc.Violations)
		})
	}
	for _, tc := range vectors.Paths {
		t.Run(tc.Name, func(t *testing.T) {
			found := engine.ValidateEffective(vectorDocuments(t, tc.Documents))
			check(t, found, func(v engine.Violation) string { return string(v.Scope) + " " + v.Path }, tc.Violations)
		})
	}
	for _, tc := range vectors.Switches {
		t.Run(tc.Name, func(t *testing.T) {
			sw := tc.Switch.engine(t)
			sw.Ends = start.Add(vectorDuration(t, tc.Left))
			check(t, engine.ValidateSwitch(sw, start), path, tc.Violations)
		})
	}
}

func TestMatcher_vectors(t *testing.T) {
	var vectors struct {
		Cases []struct {
			Name      string
			Namespace string
			Documents []vectorDocument
			Calls     []struct{ HTTP, GRPC, Want string }
			Conflicts [][2]engine.Scope
		}
		Patterns []struct {
			Path  string
			Valid bool
		}
	}
	readVectors(t, "match.json", &vectors)
	for _, tc := range vectors.Cases {
		t.Run(tc.Name, func(t *testing.T) {
			documents := vectorDocuments(t, tc.Documents)
			for _, d := range documents {
				for _, v := range engine.Validate(d.Scope, d.Settings) {
					t.Errorf("%v", v)
				}
			}
			m := engine.NewMatcher(documents, tc.Namespace)
			slices.Reverse(documents)
			reversed := engine.NewMatcher(documents, tc.Namespace)
			for _, call := range tc.Calls {
				for _, m := range []*engine.Matcher{m, reversed} {
					if got := find(t, m, call.HTTP, call.GRPC); got != call.Want {
						t.Errorf("%s%s is at %s, want %s", call.HTTP, call.GRPC, got, call.Want)
					}
				}
			}
			var conflicts [][2]engine.Scope
			for _, c := range engine.MatchConflicts(documents, nil) {
				conflicts = append(conflicts, [2]engine.Scope{c.A, c.B})
			}
			if !slices.Equal(conflicts, tc.Conflicts) {
				t.Errorf("conflicts %v, want %v", conflicts, tc.Conflicts)
			}
		})
	}
	for _, p := range vectors.Patterns {
		found := engine.Validate("shop/web/all", engine.Settings{engine.MatchHTTPPath: engine.Text(p.Path)})
		if valid := len(found) == 0; valid != p.Valid {
			t.Errorf("pattern %q: valid is %v: %v", p.Path, valid, found)
		}
	}
}

// find writes an unmatched call with a question mark in front.
func find(t *testing.T, m *engine.Matcher, http, grpc string) string {
	t.Helper()
	var found engine.Found
	if http != "" {
		part := strings.SplitN(http, " ", 3)
		found = m.HTTP(part[0], part[1], part[2])
	} else {
		part := strings.SplitN(grpc, " ", 2)
		found = m.GRPC(part[0], part[1])
	}
	if !found.Matched {
		return "?" + string(found.Scope)
	}
	return string(found.Scope)
}

type vectorSwitch struct {
	ID               string
	Action           engine.Action
	Scope            engine.Scope
	Except           []engine.Scope
	Criticality      string
	Percent          *int
	Factor, Admit    int64
	Ends, Restore    json.RawMessage
	Reason, Incident string
	Drill            bool
}

func (s vectorSwitch) engine(t *testing.T) engine.Switch {
	t.Helper()
	sw := engine.Switch{
		ID: s.ID, Action: s.Action, Scope: s.Scope, Except: s.Except, Criticality: vectorCriticality(t, s.Criticality),
		Percent: 100, Factor: s.Factor, Admit: s.Admit, Restore: engine.DefaultRestoreOver,
		Reason: s.Reason, Incident: s.Incident, Drill: s.Drill,
	}
	if s.Percent != nil {
		sw.Percent = *s.Percent
	}
	if s.Ends != nil {
		sw.Ends = start.Add(vectorDuration(t, s.Ends))
	}
	if s.Restore != nil {
		sw.Restore = vectorDuration(t, s.Restore)
	}
	return sw
}

// start is moment 0 of the vectors.
var start = time.Date(2026, 5, 4, 14, 0, 0, 0, time.UTC)

func TestCompose_vectors(t *testing.T) {
	var vectors struct {
		Cases []struct {
			Name                  string
			Endpoint              engine.Scope
			Criticality, Instance string
			Switches              []vectorSwitch
			At                    []struct {
				After                                json.RawMessage
				Retry, First, Factor                 *int64
				ForcedOpen, ForcedClosed, HedgingOff bool
				By                                   struct{ Retry, First, Factor, Closed, Hedging string }
			}
		}
	}
	readVectors(t, "switch-compose.json", &vectors)
	share := func(have *int64) int64 {
		if have == nil {
			return engine.Million
		}
		return *have
	}
	for _, tc := range vectors.Cases {
		t.Run(tc.Name, func(t *testing.T) {
			var switches []engine.Switch
			for _, s := range tc.Switches {
				switches = append(switches, s.engine(t))
			}
			o := engine.Compose(switches, tc.Endpoint, vectorCriticality(t, tc.Criticality), tc.Instance)
			for _, at := range tc.At {
				want := fmt.Sprint(share(at.Retry), share(at.First), share(at.Factor), at.ForcedOpen, at.ForcedClosed, at.HedgingOff, at.By)
				e := o.At(start.Add(vectorDuration(t, at.After)))
				by := at.By
				by.Retry, by.First, by.Factor, by.Closed, by.Hedging = id(e.RetryBy), id(e.FirstBy), id(e.FactorBy), id(e.ClosedBy), id(e.HedgingBy)
				if got := fmt.Sprint(e.Retry, e.First, e.Factor, e.ForcedOpen, e.ForcedClosed, e.HedgingOff, by); got != want {
					t.Errorf("after %s: %s\nwant %s", at.After, got, want)
				}
			}
		})
	}
}

func id(sw *engine.Switch) string {
	if sw == nil {
		return ""
	}
	return sw.ID
}
