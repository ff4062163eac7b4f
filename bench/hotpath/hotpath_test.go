// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func BenchmarkHotpath(b *testing.B) {
	l, err := newLab()
	if err != nil {
		b.Fatal(err)
	}
	defer l.close()
	for _, s := range l.subjects {
		b.Run(s.name, func(b *testing.B) {
			b.ReportAllocs()
			s.spin(b.N)
		})
	}
	if err := l.failed(); err != nil {
		b.Fatal(err)
	}
}

// One short round of everything finds its way into a document, and only between the marks.
func TestRun_writes_the_tables_between_the_marks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("before\n"+begins+"old figures\n"+ends+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-rounds", "1", "-time", time.Microsecond.String(), "-write", path}, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body, kept := bytes.CutPrefix(text, []byte("before\n"+begins))
	body, ended := bytes.CutSuffix(body, []byte(ends+"after\n"))
	if !kept || !ended || bytes.Contains(body, []byte("old figures")) {
		t.Fatalf("%s", text)
	}
	for _, want := range []string{
		success, rejected + onAll, gobreakerCall, failsafeCall, "goresilience", "hystrix-go", "sentinel-golang", "go-retryablehttp", "failsafehttp",
		grpcOwn, grpcPolicyd, httpPolicyd, "policyd.Do", ownPolicy, "memory per endpoint", "sony/gobreaker/v2 v2",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the tables do not tell of %q", want)
		}
	}
}

func TestRun_refuses_a_document_without_marks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("no marks\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := (&report{}).into(path)
	if err == nil || !strings.Contains(err.Error(), "lacks the marks") {
		t.Fatal(err)
	}
}
