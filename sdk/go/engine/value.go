// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the type of a setting.
type Kind uint8

// Kinds of settings.
const (
	KindBool     Kind = iota // Int is 0 or 1
	KindInt                  // Int
	KindDecimal              // Int in millionths; ratios are decimals from 0 to 1
	KindDuration             // Int in nanoseconds
	KindEnum                 // Text is one of the field's words
	KindText                 // Text
	KindSet                  // Set, sorted, without repeats
)

// Million is one in the fixed-point form of decimals.
const Million = 1_000_000

// Value is one setting. The zero Value of each kind is a real value; absence is
// expressed by the field not being in Settings.
type Value struct {
	Kind Kind
	Int  int64
	Text string
	Set  []string
}

// Bool returns a boolean value.
func Bool(b bool) Value {
	v := Value{Kind: KindBool}
	if b {
		v.Int = 1
	}
	return v
}

// Int returns an integer value.
func Int(n int64) Value { return Value{Kind: KindInt, Int: n} }

// Decimal returns f as fixed point, rounded to millionths. It reports false for NaN,
// infinities and numbers whose fixed-point form does not fit.
func Decimal(f float64) (Value, bool) {
	m := math.Round(f * Million)
	if math.IsNaN(m) || math.Abs(m) > math.MaxInt64/2 {
		return Value{}, false
	}
	return Value{Kind: KindDecimal, Int: int64(m)}, true
}

// Micro returns a decimal from its millionths.
func Micro(n int64) Value { return Value{Kind: KindDecimal, Int: n} }

// Duration returns a duration value.
func Duration(d time.Duration) Value { return Value{Kind: KindDuration, Int: int64(d)} }

// Enum returns a word.
func Enum(word string) Value { return Value{Kind: KindEnum, Text: word} }

// Text returns free text.
func Text(s string) Value { return Value{Kind: KindText, Text: s} }

// Set returns a set: sorted, repeats removed. The arguments are not kept.
func Set(items ...string) Value {
	s := slices.Clone(items)
	slices.Sort(s)
	return Value{Kind: KindSet, Set: slices.Compact(s)}
}

// True reports whether a boolean is set.
func (v Value) True() bool { return v.Int != 0 }

// Duration returns a duration's value.
func (v Value) Duration() time.Duration { return time.Duration(v.Int) }

// Float returns a decimal as a float, for display only.
func (v Value) Float() float64 { return float64(v.Int) / Million }

// Has reports whether a set holds item.
func (v Value) Has(item string) bool { return slices.Contains(v.Set, item) }

// Equal reports whether both are the same value of the same kind.
func (v Value) Equal(o Value) bool {
	return v.Kind == o.Kind && v.Int == o.Int && v.Text == o.Text && slices.Equal(v.Set, o.Set)
}

// String returns the value as it is written in YAML.
func (v Value) String() string {
	switch v.Kind {
	case KindBool:
		return strconv.FormatBool(v.True())
	case KindInt:
		return strconv.FormatInt(v.Int, 10)
	case KindDecimal:
		return formatMicro(v.Int)
	case KindDuration:
		return FormatDuration(v.Duration())
	case KindSet:
		return "[" + strings.Join(v.Set, ", ") + "]"
	default:
		return v.Text
	}
}

func formatMicro(n int64) string {
	sign, u := "", uint64(n)
	if n < 0 {
		sign, u = "-", uint64(-n)
	}
	s := fmt.Sprintf("%s%d.%06d", sign, u/Million, u%Million)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// FormatDuration writes d as in documents: 200ms, 30s, 1h30m, without zero parts.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
