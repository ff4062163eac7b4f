// SPDX-License-Identifier: Apache-2.0

// Package baggage marks attempts in W3C baggage and finds the marks of others.
package baggage

import (
	"strconv"
	"strings"
)

// Name of the header, or of the metadata.
const Name = "Baggage"

// member marks an attempt; its value is the attempt's number.
const member = "policyd.attempt"

// longest is what the standard lets a header be; a longer one is left as it is.
const longest = 8192

// Marked reports whether one of the values of baggage holds the mark of an attempt.
func Marked(values ...string) bool {
	for _, header := range values {
		for header != "" {
			var one string
			if one, header, _ = strings.Cut(header, ","); attemptOf(one) > 0 {
				return true
			}
		}
	}
	return false
}

// Mark returns baggage that marks attempt number, in place of a mark that came from further
// up. It reports false where there is no room for it.
func Mark(values []string, number int) (string, bool) {
	var members []string
	for _, header := range values {
		for one := range strings.SplitSeq(header, ",") {
			if one = strings.TrimSpace(one); one != "" && attemptOf(one) == 0 {
				members = append(members, one)
			}
		}
	}
	text := strings.Join(append(members, member+"="+strconv.Itoa(number)), ",")
	return text, len(text) <= longest
}

// attemptOf returns the number that a member of baggage marks an attempt with, 0 for none.
func attemptOf(one string) int {
	one, _, _ = strings.Cut(one, ";") // properties
	name, value, _ := strings.Cut(one, "=")
	if strings.TrimSpace(name) != member {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || n < 1 {
		return 0
	}
	return n
}
