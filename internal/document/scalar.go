// SPDX-License-Identifier: Apache-2.0

package document

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// ParseDuration reads a duration as in documents and flags: 800ms, 30s, 1h30m, or 0. A
// number without unit is refused.
func ParseDuration(s string) (time.Duration, error) {
	switch {
	case s == "0":
		return 0, nil
	case s == "":
		return 0, errors.New("missing or bad unit: try 30s")
	case s[0] == '-':
		return 0, errors.New("negative")
	case isNumber(s):
		return 0, fmt.Errorf("missing or bad unit (did you mean %q?)", s+"s")
	}
	d, err := time.ParseDuration(s)
	if err == nil && s[0] != '.' && s[0] != '+' {
		return d, nil
	}
	// Blanks and capitals are what people write most.
	tidy := strings.ToLower(strings.Join(strings.Fields(s), ""))
	if guess, err := time.ParseDuration(tidy); err == nil && tidy != s && guess >= 0 {
		return 0, fmt.Errorf("missing or bad unit (did you mean %q?)", tidy)
	}
	return 0, errors.New("missing or bad unit: use h, m, s, ms, as in 1h30m or 800ms")
}

func isNumber(s string) bool {
	for i := 0; i < len(s); i++ {
		if (s[i] < '0' || s[i] > '9') && s[i] != '.' {
			return false
		}
	}
	return s != ""
}

// parseInt reads a whole number in its only canonical form, -12, 0 or 34.
func parseInt(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == s
}

var (
	errNotANumber   = errors.New("a number is due")
	errTooPrecise   = errors.New("at most 6 digits after the point count")
	errNumberTooBig = errors.New("the number is too large")
)

// ParseDecimal reads a number exactly, as millionths. A share may also be written as a
// percentage.
func ParseDecimal(s string, share bool) (engine.Value, error) {
	exponent := 0
	digits, percent := strings.CutSuffix(s, "%")
	if percent {
		if !share {
			return engine.Value{}, errNotANumber
		}
		exponent = -2
	}
	negative := strings.HasPrefix(digits, "-")
	digits = strings.TrimPrefix(digits, "-")
	if i := strings.IndexAny(digits, "eE"); i >= 0 && !percent {
		e, err := strconv.Atoi(digits[i+1:])
		if err != nil || e > 30 || e < -30 {
			return engine.Value{}, errNotANumber
		}
		exponent, digits = e, digits[:i]
	}
	whole, fraction, point := strings.Cut(digits, ".")
	if !isDigits(whole) || point && !isDigits(fraction) || len(digits) > 40 {
		return engine.Value{}, errNotANumber
	}
	return exactMicro(negative, whole+fraction, exponent-len(fraction))
}

// exactMicro returns digits × 10^exponent in millionths.
func exactMicro(negative bool, digits string, exponent int) (engine.Value, error) {
	digits = strings.TrimLeft(digits, "0")
	shift := exponent + 6
	for shift < 0 && strings.HasSuffix(digits, "0") {
		digits, shift = digits[:len(digits)-1], shift+1
	}
	switch {
	case digits == "":
		return engine.Micro(0), nil
	case shift < 0:
		return engine.Value{}, errTooPrecise
	}
	if len(digits)+shift > 19 {
		return engine.Value{}, errNumberTooBig
	}
	n, err := strconv.ParseInt(digits+strings.Repeat("0", shift), 10, 64)
	if err != nil || n > math.MaxInt64/2 {
		return engine.Value{}, errNumberTooBig
	}
	if negative {
		n = -n
	}
	return engine.Micro(n), nil
}

func isDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// checkText refuses what would disturb a terminal.
func checkText(s string) error {
	switch {
	case len(s) > engine.MaxTextBytes:
		return fmt.Errorf("the text has %d bytes: at most %d", len(s), engine.MaxTextBytes)
	case engine.HasControl(s, true):
		return errors.New("the text holds control characters")
	}
	return nil
}
