// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"strings"
	"unicode/utf8"
)

// printTable prints a list as aligned columns.
func (a *app) printTable(l *list) {
	var rows [][]string
	if !a.global.noHeaders {
		header := make([]string, 0, len(l.columns))
		for _, c := range l.columns {
			header = append(header, c.name)
		}
		rows = append(rows, header)
	}
	for _, it := range l.items {
		rows = append(rows, it.cells)
	}
	kept := make([][]string, 0, len(rows))
	for _, row := range rows {
		var cells []string
		for i, cell := range row {
			if i < len(l.columns) && l.columns[i].wide && a.global.output != asWide {
				continue
			}
			cells = append(cells, a.out.plain(cell))
		}
		kept = append(kept, cells)
	}
	for _, line := range align(kept) {
		a.out.printf("%s\n", line)
	}
}

// align pads cells so that columns start at the same place, two blanks apart.
func align(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// width counts characters, colour left out.
func width(s string) int {
	n := 0
	for len(s) > 0 {
		if strings.HasPrefix(s, "\x1b[") {
			if end := strings.IndexByte(s, 'm'); end > 0 {
				s = s[end+1:]
				continue
			}
		}
		_, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		n++
	}
	return n
}
