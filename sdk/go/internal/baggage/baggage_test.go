// SPDX-License-Identifier: Apache-2.0

package baggage_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/policyd/policyd/sdk/go/internal/baggage"
)

func TestVectors(t *testing.T) {
	var vectors struct {
		Incoming []struct {
			Name    string
			Baggage []string
			Marked  bool
		}
		Outgoing []struct {
			Name         string
			Baggage      []string
			Attempt, Pad int
			Pads         bool
			Want         *string
		}
		Calls json.RawMessage // of the whole client
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "spec", "vectors", "nested.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&vectors); err != nil {
		t.Fatal(err)
	}
	for _, c := range vectors.Incoming {
		if got := baggage.Marked(c.Baggage...); got != c.Marked {
			t.Errorf("%s: %v", c.Name, got)
		}
	}
	for _, c := range vectors.Outgoing {
		if c.Pad > 0 {
			c.Baggage[0] += strings.Repeat("x", c.Pad)
		}
		got, ok := baggage.Mark(c.Baggage, c.Attempt)
		switch {
		case ok != (c.Want != nil || c.Pads):
			t.Errorf("%s: %v, %d bytes", c.Name, ok, len(got))
		case c.Want != nil && got != *c.Want:
			t.Errorf("%s: %q, want %q", c.Name, got, *c.Want)
		}
	}
	if len(vectors.Incoming) == 0 || len(vectors.Outgoing) == 0 {
		t.Error("no vectors")
	}
}

func FuzzMark(f *testing.F) {
	f.Add("policyd.attempt=2,user=7;x", "a=1", 3)
	f.Add(",,;=", "", 1)
	f.Fuzz(func(t *testing.T, a, b string, number int) {
		text, ok := baggage.Mark([]string{a, b}, number)
		if ok && number > 0 && !baggage.Marked(text) {
			t.Errorf("%q is not marked", text)
		}
		if again, fits := baggage.Mark([]string{text}, number); ok && number > 0 && (!fits || again != text) {
			t.Errorf("%q became %q", text, again)
		}
	})
}
