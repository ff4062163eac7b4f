// SPDX-License-Identifier: Apache-2.0

package document

import "bytes"

// chunk is the text of one YAML document and the line on which it starts.
type chunk struct {
	text []byte
	line int
}

// split cuts a YAML stream into its documents. A marker at the start of a line always ends
// a document, whatever is open before it, so no parser is needed.
func split(data []byte) []chunk {
	var chunks []chunk
	start, startLine, line := 0, 1, 1
	cut := func(end, next int) {
		chunks = append(chunks, chunk{data[start:end], startLine})
		start, startLine = end, next
	}
	for at := 0; at < len(data); line++ {
		end := at + lineLength(data[at:])
		switch {
		case isMarker(data[at:end], "---") && at > start:
			cut(at, line)
		case isMarker(data[at:end], "..."):
			cut(end, line+1)
		}
		at = end
	}
	cut(len(data), line)
	kept := chunks[:0]
	for _, c := range chunks {
		if !isBlank(c.text) {
			kept = append(kept, c)
		}
	}
	return kept
}

// lineLength returns the length of the first line with its end: \n, \r\n or \r.
func lineLength(b []byte) int {
	i := bytes.IndexAny(b, "\r\n")
	switch {
	case i < 0:
		return len(b)
	case b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n':
		return i + 2
	default:
		return i + 1
	}
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// isBlank reports whether a chunk holds nothing but markers, comments and directives.
func isBlank(text []byte) bool {
	for first := true; len(text) > 0; first = false {
		n := lineLength(text)
		line := text[:n]
		text = text[n:]
		if first && isMarker(line, "---") {
			line = line[3:]
		}
		if isMarker(line, "...") {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}
