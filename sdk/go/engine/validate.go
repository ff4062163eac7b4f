// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/policyd/policyd/sdk/go/internal/pattern"
)

// Violation is one rule that a document breaks.
type Violation struct {
	// Scope of the document that breaks the rule.
	Scope Scope
	// Other is the scope of the second document, of a rule that takes two; else "".
	Other Scope
	Path  string // for example "spec.budget.ratio"
	Value string
	Rule  string // what holds, for example "0 to 1"
	Fix   string // what to do; may be empty
}

// Validate returns the rules that the document s at scope breaks by itself, in the order of
// documents.
func Validate(scope Scope, s Settings) []Violation {
	c := checker{scope: scope}
	for f := Field(1); f < numFields; f++ {
		if v, ok := s[f]; ok {
			c.field(f, v)
		}
	}
	if len(c.found) == 0 {
		c.pairs(func(f Field) (Value, bool) { v, ok := s[f]; return v, ok })
	}
	return c.found
}

// checker collects violations of one document.
type checker struct {
	scope Scope
	found []Violation
}

func (c *checker) add(f Field, v Value, rule, fix string) {
	c.found = append(c.found, Violation{Scope: c.scope, Path: "spec." + f.Path(), Value: clip(v.String()), Rule: rule, Fix: fix})
}

// field checks one value by the table, then by the rules that the table cannot say.
func (c *checker) field(f Field, v Value) {
	spec := f.Spec()
	if v.Kind != spec.Kind {
		c.add(f, v, "must be "+spec.Kind.article(), "")
		return
	}
	if level := c.scope.Level(); level < spec.From || level > spec.To {
		c.add(f, v, "may only stand at "+levels(spec.From, spec.To)+" scope", "move it to such a document")
		return
	}
	switch spec.Kind {
	case KindInt, KindDecimal, KindDuration:
		c.number(f, v)
	case KindEnum:
		if !slices.Contains(spec.Words, v.Text) {
			c.add(f, v, "must be one of "+strings.Join(spec.Words, ", "), "")
		}
	case KindSet:
		c.set(f, v)
	case KindText:
		c.text(f, v)
	case KindBool:
	}
}

func (c *checker) number(f Field, v Value) {
	spec := f.Spec()
	if !spec.Bounded || v.Int >= spec.Min && v.Int <= spec.Max {
		return
	}
	lo, hi := Value{Kind: v.Kind, Int: spec.Min}, Value{Kind: v.Kind, Int: spec.Max}
	fix := "use " + hi.String() + " or less"
	if v.Int < spec.Min {
		fix = "use " + lo.String() + " or more"
	}
	c.add(f, v, lo.String()+" to "+hi.String(), fix)
}

func (c *checker) set(f Field, v Value) {
	if len(v.Set) > MaxListItems {
		c.add(f, Int(int64(len(v.Set))), fmt.Sprintf("at most %d items", MaxListItems), "")
		return
	}
	words := f.Spec().Words
	for _, item := range v.Set {
		rule, fix := "", ""
		switch {
		case words != nil && !slices.Contains(words, item):
			rule = "only " + strings.Join(words, ", ")
		case f == RetryOnHTTP:
			rule, fix = checkStatus(item)
		case f == IdempotencyMethods:
			rule, fix = checkMethod(item)
		}
		if rule != "" {
			c.add(f, Text(item), rule, fix)
		}
	}
	if f == RequirementsJitter && len(v.Set) == 0 {
		c.add(f, v, "must allow at least one jitter mode", "delete the line to allow every mode")
	}
}

func checkStatus(item string) (rule, fix string) {
	if item == statusClass5xx {
		return "", ""
	}
	status, err := strconv.Atoi(item)
	switch {
	case err != nil || len(item) != 3 || status < 100 || status > 599:
		return "must be a status from 100 to 599, or 5xx", ""
	case !retryableStatus(status):
		return "only 408, 425, 429 and 5xx may be retried", "another attempt would get the same answer"
	}
	return "", ""
}

func checkMethod(method string) (rule, fix string) {
	upper := strings.ToUpper(method)
	switch {
	case !isToken(method):
		return "must be an HTTP method", ""
	case method != upper && methodBit(upper) != 0:
		return "methods are case-sensitive", "write " + upper
	}
	return "", ""
}

// isToken reports whether s is a token of RFC 9110, such as a method or a header's name.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= maxTokenBytes
}

const (
	maxTokenBytes = 256
	maxHostBytes  = 253
)

func (c *checker) text(f Field, v Value) {
	longText := f == Description || f == FallbackStaticBody
	switch {
	case len(v.Text) > MaxTextBytes:
		c.add(f, Int(int64(len(v.Text))), fmt.Sprintf("at most %d bytes", MaxTextBytes), "")
		return
	case !utf8.ValidString(v.Text):
		c.add(f, Text(strings.ToValidUTF8(v.Text, "�")), "must be UTF-8", "")
		return
	case HasControl(v.Text, longText):
		c.add(f, Text(strconv.Quote(v.Text)), "must hold no control characters", "")
		return
	}
	if rule, fix := checkText(f, v.Text); rule != "" {
		c.add(f, v, rule, fix)
	}
}

func checkText(f Field, s string) (rule, fix string) {
	switch f {
	case MatchHTTPMethod:
		if s != "" {
			return checkMethod(s)
		}
	case MatchHTTPHost:
		return checkHost(s)
	case MatchHTTPPath:
		if _, err := pattern.ParsePath(s); err != nil {
			return "must be a path pattern as in net/http.ServeMux: " + err.Error(), ""
		}
	case MatchGRPCMethod:
		if !isGRPCMethod(s) {
			return "must be /package.Service/Method or /package.Service/*", ""
		}
	case IdempotencyKeyHeader:
		if !isToken(s) {
			return "must be a header's name", ""
		}
	case HedgingAfter:
		if d, err := time.ParseDuration(s); s != "p95" && (err != nil || d < time.Millisecond || d > time.Hour) {
			return "must be a duration from 1ms to 1h, or p95", ""
		}
	case FallbackStaticContentType:
		if len(s) > maxTokenBytes {
			return fmt.Sprintf("at most %d bytes", maxTokenBytes), ""
		}
	default:
	}
	return "", ""
}

func checkHost(host string) (rule, fix string) {
	if host == "" {
		return "", ""
	}
	bare := pattern.BareHost(host)
	if len(bare) > maxHostBytes || bare == "" {
		return fmt.Sprintf("must be a host of at most %d bytes", maxHostBytes), ""
	}
	for i := range len(bare) {
		c := bare[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte(".-_:", c) < 0 {
			return "must be a host name or an address; there are no patterns for hosts", ""
		}
	}
	if bare != host {
		return "must be in lower case and without port", "write " + bare
	}
	return "", ""
}

func isGRPCMethod(s string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	if !ok || s[0] != '/' || len(s) > pattern.MaxBytes || !isGRPCName(service, ".") {
		return false
	}
	return method == "*" || isGRPCName(method, "")
}

func isGRPCName(s, also string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
		if !alnum && strings.IndexByte(also, c) < 0 {
			return false
		}
	}
	return s != ""
}

// HasControl reports whether s holds a control character; lines allows line breaks and tabs.
func HasControl(s string, lines bool) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && (!lines || r != '\n' && r != '\r' && r != '\t')
	})
}

// pair is a rule about two settings: low may not be above high.
type pair struct {
	low, high Field
	strict    bool // nor equal
	follows   bool // a built-in low gives way to a lower high
}

var pairs = []pair{ //nolint:gochecknoglobals // compiled table
	{low: BackoffBase, high: BackoffMax},
	{low: TimeoutsAttempt, high: TimeoutsOverall},
	{low: BudgetSuccessGateMinCalls, high: BudgetSuccessGateWindow, follows: true},
	{low: BreakerHalfOpenCloseAfter, high: BreakerHalfOpenProbes, follows: true},
	{low: OfflineQueueTTL, high: IdempotencyKeyRemembered, strict: true},
}

func (p pair) broken(low, high Value) bool {
	return low.Int > high.Int || p.strict && low.Int == high.Int
}

func (p pair) rule(high Value) string {
	if p.strict {
		return fmt.Sprintf("must be below %s, %s", p.high.Path(), high)
	}
	return fmt.Sprintf("must be at most %s, %s", p.high.Path(), high)
}

func (c *checker) pairs(value func(Field) (Value, bool)) {
	for _, p := range pairs {
		low, ok := value(p.low)
		high, also := value(p.high)
		if ok && also && p.broken(low, high) {
			c.add(p.low, low, p.rule(high), "lower it or raise "+p.high.Path())
		}
	}
}

// article names a kind in a sentence.
func (k Kind) article() string {
	return [...]string{"true or false", "a whole number", "a number", "a duration", "a word", "text", "a list"}[k]
}

func levels(from, to Level) string {
	words := make([]string, 0, 4)
	for l := from; l <= to; l++ {
		words = append(words, l.String())
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return words[0]
}
