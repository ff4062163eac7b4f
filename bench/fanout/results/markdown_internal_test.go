// SPDX-License-Identifier: Apache-2.0

package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport_writes_tables_between_the_marks_and_plots_beside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("before\n"+begins+"old\n"+ends+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := New(1000, 1, 1, 0)
	r.Rows = []Row{{System: "raw-tcp", Title: "the floor", N: 10, Received: MS{1, 2, 3}, TimesFloor: 1, HeldKB: 1}}
	r.Note(Figure{Scenario: "a scenario", System: "policyd", N: 10, What: "a ratio", Value: 2, Unit: "×"}, 1.5)
	r.Comebacks = []Comeback{{System: "policyd", N: 10, How: "spread", InForce: []int64{2e9}, Moments: []Moment{{At: 1e9}, {At: 2e9, Accepted: 10, RSS: 1 << 20, CPU: 1}}}}
	for range 2 {
		if err := r.Into(path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"before\n" + begins, "| the floor | 1.0 | 2.0 | 3.0 |", "≤ 1.5: **missed**", "img/reconnect.svg", ends + "after\n"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q stands %d times in\n%s", want, strings.Count(text, want), text)
		}
	}
	if strings.Contains(text, "old") {
		t.Error("the old tables are still there")
	}
	for _, name := range []string{"fanout.svg", "reconnect.svg"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "img", name)); err != nil {
			t.Error(err)
		}
	}
}

func TestReport_leaves_a_document_without_marks_alone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(1000, 1, 1, 0).Into(path); err == nil {
		t.Error("it was written into")
	}
}
