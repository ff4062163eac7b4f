// SPDX-License-Identifier: Apache-2.0

package pattern_test

import (
	"testing"

	"github.com/policyd/policyd/sdk/go/internal/pattern"
)

// The short cut for paths that are as they should be changes nothing.
func FuzzPath_is_what_cleaning_and_one_spelling_make(f *testing.F) {
	for _, p := range []string{
		"", "/", "a", "*", "/a/b", "/a/b/", "/a//b", "//", "/.", "/a/.", "/a/./b", "/a/../b", "/..", "/.well-known/x", "/a.b/c..d",
		"/a%2Fb", "/a%2fb", "/%41", "/%", "/%4", "/%zz", "/é", "/e\u0301", "/a/%2e%2e/b", "/a\x00b",
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, ok := pattern.Path(p)
		want, wantOK := pattern.Canonical(pattern.Clean(p))
		if got != want || ok != wantOK {
			t.Fatalf("%q is %q %v, want %q %v", p, got, ok, want, wantOK)
		}
	})
}
