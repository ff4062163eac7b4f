// SPDX-License-Identifier: Apache-2.0

package document

import (
	"strconv"
	"strings"
)

// Suggest returns the candidate that word most likely means, "" if none is near.
func Suggest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, bestDistance := "", 1+max(1, len(word)/3)
	low := strings.ToLower(word)
	for _, c := range candidates {
		if d := distance(low, strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance counts insertions, deletions, replacements and swaps of neighbours.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// meant is the tail of a message: a suggestion, else the choices if they are few.
func meant(word string, choices []string) string {
	if s := Suggest(word, choices); s != "" {
		return " (did you mean " + strconv.Quote(s) + "?)"
	}
	if len(choices) > 0 && len(choices) <= 12 {
		return " (one of " + strings.Join(choices, ", ") + ")"
	}
	return ""
}

func quoteShort(s string) string {
	if len(s) > 60 {
		i := 60
		for i > 0 && s[i]&0xC0 == 0x80 {
			i--
		}
		s = s[:i] + "…"
	}
	return strconv.Quote(s)
}
