// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// ServerWait is what a server asks for between attempts. The zero ServerWait asks for
// nothing.
type ServerWait struct {
	Kind ServerWaitKind
	For  time.Duration // never negative
}

// ServerWaitKind says how a server asked.
type ServerWaitKind uint8

// Ways in which a server asks.
const (
	AskedNothing    ServerWaitKind = iota
	AskedRetryAfter                // at least For, as in the header Retry-After
	AskedPushback                  // exactly For, then backoff from its start, as in gRPC
	AskedStop                      // no retry at all
)

// ParseRetryAfter reads the value of a Retry-After header: delay-seconds, digits only and
// however many, or one of the three forms of an HTTP-date, of which now is subtracted.
// Anything else asks for nothing. A date in the past asks for a wait of 0. The day of the week
// has to be one, but need not be that of the date: RFC 9110, 5.6.7, wants robust readers.
func ParseRetryAfter(value string, now time.Time) ServerWait {
	if seconds, ok := parseDigits(value, int64(math.MaxInt64/time.Second)); ok {
		return ServerWait{AskedRetryAfter, time.Duration(seconds) * time.Second}
	}
	for _, layout := range [...]string{"Mon, 02 Jan 2006 15:04:05 GMT", shortYear, time.ANSIC} {
		at, err := time.Parse(layout, value)
		if err != nil || len(afterComma(value)) != len(afterComma(layout)) { // it takes 8:00 and fractions of seconds, too
			continue
		}
		if layout == shortYear {
			at = nearest(at, now.UTC().Year())
		}
		return ServerWait{AskedRetryAfter, max(0, at.Sub(now))}
	}
	return ServerWait{}
}

func afterComma(s string) string { return s[strings.IndexByte(s, ',')+1:] }

// shortYear is the form of RFC 850, whose years have two digits.
const shortYear = "Monday, 02-Jan-06 15:04:05 GMT"

// nearest gives a date whose century is not known that of RFC 9110, 5.6.7: no more than 50
// years ahead.
func nearest(at time.Time, year int) time.Time {
	ahead := ((at.Year()-year)%100 + 100) % 100
	if ahead > 50 {
		ahead -= 100
	}
	return at.AddDate(year+ahead-at.Year(), 0, 0)
}

// ParsePushback reads the value of the gRPC trailer grpc-retry-pushback-ms. What is not a
// number of milliseconds, negative ones included, asks for no retry.
func ParsePushback(value string) ServerWait {
	ms, ok := parseDigits(value, int64(math.MaxInt64/time.Millisecond))
	if !ok {
		return ServerWait{Kind: AskedStop}
	}
	return ServerWait{AskedPushback, time.Duration(ms) * time.Millisecond}
}

// parseDigits reads a number that is nothing but digits, at most limit.
func parseDigits(s string, limit int64) (int64, bool) {
	var n int64
	for i := range len(s) {
		digit := int64(s[i]) - '0'
		if digit < 0 || digit > 9 {
			return 0, false
		}
		if n > (limit-digit)/10 {
			n = limit
		} else {
			n = n*10 + digit
		}
	}
	return n, s != ""
}

// wait returns how long to wait before retry n when the server asks, and whether its wish
// allows a retry at all.
//
// The wait is the greater of Step(n) and what was asked, plus a random share of it, at most
// Jitter, so that clients that were told the same do not come back together. The addition
// ends at Max; nothing is ever subtracted. A pushback is taken as it is.
func (p *RetryAfterPolicy) wait(asked ServerWait, step time.Duration, random func() uint64) (time.Duration, bool) {
	if asked.Kind == AskedStop || asked.For > p.Max {
		return 0, false
	}
	if asked.Kind == AskedPushback {
		return asked.For, true
	}
	low := max(step, asked.For)
	if spread := min(shareOf(int64(low), p.Jitter), int64(p.Max-low)); spread > 0 {
		low += time.Duration(uniform(random(), spread))
	}
	return low, true
}

// ParseRateLimit reads RateLimit fields such as `"default";r=0;t=30`: the longest t, in seconds,
// of a quota of which nothing remains.
func ParseRateLimit(fields []string) (wait time.Duration, ok bool) {
	const longest = int64(time.Duration(1<<63-1) / time.Second)
	for _, field := range fields {
		for more := true; more; {
			var item string
			item, field, more = cutUnquoted(field, ',')
			remaining, seconds := int64(-1), int64(-1)
			_, params, param := cutUnquoted(item, ';') // what the quota is called
			for param {
				var text string
				text, params, param = cutUnquoted(params, ';')
				name, value, _ := strings.Cut(strings.TrimSpace(text), "=")
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil || n < 0 {
					continue
				}
				switch name {
				case "r":
					remaining = n
				case "t":
					seconds = min(n, longest)
				}
			}
			if remaining == 0 && seconds >= 0 {
				wait, ok = max(wait, time.Duration(seconds)*time.Second), true
			}
		}
	}
	return wait, ok
}

// cutUnquoted is strings.Cut that passes over separators within the quoted strings of structured
// fields (RFC 9651, 3.3.3).
func cutUnquoted(s string, sep byte) (before, after string, found bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case quoted && s[i] == '\\':
			i++
		case !quoted && s[i] == sep:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}
