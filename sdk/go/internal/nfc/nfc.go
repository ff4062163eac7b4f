// SPDX-License-Identifier: Apache-2.0

// Package nfc composes text as Unicode's normalisation form C does, with the standard
// library alone.
package nfc

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"sync"
	"unicode/utf8"
)

// data is the table of composition. A pair of parts with second 0 is a singleton.
type data struct {
	parts    map[rune][2]rune
	composed map[[2]rune]rune
	classes  map[rune]uint8
}

var tables = sync.OnceValue(func() *data { //nolint:gochecknoglobals // compiled table
	d := &data{parts: map[rune][2]rune{}, composed: map[[2]rune]rune{}, classes: map[rune]uint8{}}
	r := rune(0)
	for rest := decodeTable(pairs); len(rest) > 0; {
		r += next(&rest)
		first, second := next(&rest), next(&rest)
		parts := [2]rune{first, second >> 1}
		d.parts[r] = parts
		if second > 1 && second&1 == 0 {
			d.composed[parts] = r
		}
	}
	r = 0
	for rest := decodeTable(classes); len(rest) > 0; {
		r += next(&rest)
		length, class := next(&rest), next(&rest)
		for i := range length {
			d.classes[r+i] = uint8(class)
		}
	}
	return d
})

func decodeTable(text string) []byte {
	table, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil // the table is constant and tested
	}
	return table
}

func next(rest *[]byte) rune {
	n, size := binary.Uvarint(*rest)
	if size <= 0 {
		size = len(*rest)
	}
	*rest = (*rest)[size:]
	return rune(n)
}

// Compose returns s in Unicode's normalisation form C; text that is not UTF-8 as it is.
func Compose(s string) string {
	if !utf8.ValidString(s) {
		return s
	}
	d := tables()
	runes := make([]rune, 0, len(s))
	for _, r := range s {
		runes = d.decompose(runes, r)
	}
	d.order(runes)
	return string(d.join(runes))
}

// Hangul syllables are made of parts by arithmetic.
const (
	hangulBase, hangulCount           = 0xAC00, 11172
	hangulL, hangulV, hangulT         = 0x1100, 0x1161, 0x11A7
	hangulLs, hangulVs, hangulTs      = 19, 21, 28
	hangulPerL                   rune = hangulVs * hangulTs
)

func (d *data) decompose(out []rune, r rune) []rune {
	if s := r - hangulBase; s >= 0 && s < hangulCount {
		out = append(out, hangulL+s/hangulPerL, hangulV+s%hangulPerL/hangulTs)
		if t := s % hangulTs; t != 0 {
			out = append(out, hangulT+t)
		}
		return out
	}
	parts, ok := d.parts[r]
	if !ok {
		return append(out, r)
	}
	out = d.decompose(out, parts[0])
	if parts[1] != 0 {
		out = append(out, parts[1])
	}
	return out
}

// order sorts each run of combining marks by class, keeping those of one class in order.
func (d *data) order(runes []rune) {
	for i := 0; i < len(runes); i++ {
		start := i
		for i < len(runes) && d.classes[runes[i]] != 0 {
			i++
		}
		if i-start > 1 {
			slices.SortStableFunc(runes[start:i], func(a, b rune) int { return cmp.Compare(d.classes[a], d.classes[b]) })
		}
	}
}

// join composes each character with the last starter unless something is in between.
func (d *data) join(runes []rune) []rune {
	out := runes[:0]
	starter, lastClass := -1, uint8(0)
	for _, r := range runes {
		class := d.classes[r]
		if starter >= 0 {
			adjacent := starter == len(out)-1
			if c, ok := d.pair(out[starter], r); ok && (adjacent || lastClass < class) {
				out[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		lastClass = class
		out = append(out, r)
	}
	return out
}

func (d *data) pair(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < hangulLs && v >= 0 && v < hangulVs {
		return hangulBase + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulBase, b-hangulT; s >= 0 && s < hangulCount && s%hangulTs == 0 && t > 0 && t < hangulTs {
		return a + t, true
	}
	c, ok := d.composed[[2]rune{a, b}]
	return c, ok
}
