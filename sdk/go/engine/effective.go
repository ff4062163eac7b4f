// SPDX-License-Identifier: Apache-2.0

package engine

// BuiltIn is the origin of values that no document sets.
const BuiltIn = "built-in"

// Origin says where a value comes from: BuiltIn, or the scope of a document with its
// revision.
type Origin struct {
	From     string
	Revision int64
}

// Shadow is a wider value that a more specific one hides.
type Shadow struct {
	Value Value
	Origin
}

// Resolved is the value of one setting at one scope and how it came about.
type Resolved struct {
	Value Value
	Origin
	// Shadows are the wider values that this one hides, nearest first.
	Shadows []Shadow
	// Ceiling is the origin of the ceiling or requirement that changed the value, the zero
	// Origin if none did; Clipped is the value before, else nil.
	Ceiling Origin
	Clipped *Value
}

// Present reports whether the setting has a value; a few have neither one nor a default.
func (r Resolved) Present() bool { return r.From != "" }

// Effective is the policy at one scope after the merge, before kill switches. Immutable.
type Effective struct {
	Scope Scope
	// Criticality of the most specific document that has one, and its origin.
	Criticality       Criticality
	CriticalityOrigin Origin

	merged *merged
}

// merged holds the values that differ from the built-in ones; most do not.
type merged struct {
	at  [NumFields]uint8 // 1 + index into set; 0: built in
	set []Resolved
}

var builtIns = func() (t [NumFields]Resolved) { //nolint:gochecknoglobals // compiled table
	for f := Field(1); f < numFields; f++ {
		if d := f.Spec().Default; d != nil {
			t[f] = Resolved{Value: *d, Origin: Origin{From: BuiltIn}}
		}
	}
	return t
}()

// slot returns the place of f, which holds its present value.
func (m *merged) slot(f Field) *Resolved {
	if m.at[f] == 0 {
		m.set = append(m.set, builtIns[f])
		m.at[f] = uint8(len(m.set))
	}
	return &m.set[m.at[f]-1]
}

func (m *merged) value(f Field) *Resolved {
	if i := m.at[f]; i != 0 {
		return &m.set[i-1]
	}
	return &builtIns[f]
}

// At returns the resolved value of f. The zero Effective holds no values.
func (e Effective) At(f Field) Resolved {
	if e.merged == nil || f >= numFields {
		return Resolved{}
	}
	return *e.merged.value(f)
}

// Value returns the value of f, the zero Value when it has none.
func (e Effective) Value(f Field) Value { return e.At(f).Value }

// Equal reports whether both decide alike: the same values at the same criticality,
// wherever they come from. What a document only says of itself does not count.
func (e Effective) Equal(o Effective) bool {
	if e.Criticality != o.Criticality || (e.merged == nil) != (o.merged == nil) {
		return false
	}
	for f := Field(1); f < numFields && e.merged != nil; f++ {
		if f.Spec().Own || e.merged.at[f] == 0 && o.merged.at[f] == 0 {
			continue
		}
		a, b := e.merged.value(f), o.merged.value(f)
		if a.Present() != b.Present() || !a.Value.Equal(b.Value) {
			return false
		}
	}
	return true
}
