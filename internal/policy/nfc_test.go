// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/policyd/policyd/sdk/go/engine"
)

// The engine composes text with a table of its own; here it meets the reference.
func TestMatcher_composes_text_as_the_reference_does(t *testing.T) {
	same := func(a, b string) bool {
		m := engine.NewMatcher([]engine.Document{{
			Scope: "shop/pages/page", Settings: engine.Settings{engine.MatchHTTPPath: engine.Text("/" + a)},
		}}, "shop")
		return m.HTTP("GET", "", "/"+b).Matched
	}
	for r := rune(0x80); r <= utf8.MaxRune; r++ {
		s := string(r)
		if !utf8.ValidRune(r) || norm.NFD.String(s) == s {
			continue
		}
		require.True(t, same(s, norm.NFC.String(s)), "%U against its composed form", r)
		require.True(t, same(norm.NFD.String(s), s), "%U against its decomposed form", r)
	}
	marks := []rune{'a', 'e', 'o', 'Å', 0x300, 0x301, 0x327, 0x323, 0x307, 0x345, 0x1100, 0x1161, 0x11A8, 0x0f71, 0x0f72, 0x0f74, 0x9c7, 0x9be, 0x2126, 0xfb2c}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.OneOf(rapid.SampledFrom(marks), rapid.RuneFrom([]rune{'é'})), 1, 12, -1)
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		if !same(a, a) {
			t.Skip("not a literal")
		}
		require.Equal(t, norm.NFC.String(a) == norm.NFC.String(b), same(a, b))
		require.True(t, same(a, norm.NFD.String(a)))
		require.True(t, same(a, norm.NFC.String(a)))
	})
}
