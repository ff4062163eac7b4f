// SPDX-License-Identifier: Apache-2.0

package idkey_test

import (
	"regexp"
	"testing"

	"github.com/policyd/policyd/sdk/go/internal/idkey"
)

func TestNew_makes_a_random_UUID_each_time(t *testing.T) {
	v4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	a, b := idkey.New(), idkey.New()
	if !v4.MatchString(a) || !v4.MatchString(b) || a == b {
		t.Errorf("keys %s, %s", a, b)
	}
}

func FuzzQuote(f *testing.F) {
	f.Add(`order-7`)
	f.Add(`a"b\c`)
	f.Add("\x00é")
	f.Fuzz(func(t *testing.T, key string) {
		if quoted, ok := idkey.Quote(key); ok && idkey.Unquote(quoted) != key {
			t.Fatalf("%q became %q", key, idkey.Unquote(quoted))
		}
	})
}
