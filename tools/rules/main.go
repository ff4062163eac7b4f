// SPDX-License-Identifier: Apache-2.0

// Rules checks the house rules that no linter knows: words and calls that must not appear,
// sizes of packages and structs, links of the documents, and examples of the SDK.
//
//	go run ./rules ROOT
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	maxPackageLines = 1500 // of code: blanks and comments do not count
	maxStructFields = 20
)

var (
	badFolder   = regexp.MustCompile(`(^|/)(util|utils|common|helpers|misc|shared|base|types|models)(/|$)`)
	sleepInTest = regexp.MustCompile(`\btime\.(Sleep|After)\(`)
	background  = regexp.MustCompile(`\bcontext\.(Background|TODO)\(\)`)
	initFunc    = regexp.MustCompile(`(?m)^func init\(`)
	todo        = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	mdLink      = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	makeTarget  = regexp.MustCompile("`make ([a-z-]+)")
)

// largePackages may be larger, for the reasons in docs/adr/0010-large-packages.md.
var largePackages = map[string]int{
	"internal/admin":     2500,
	"internal/ctl":       6000,
	"internal/document":  2500,
	"internal/push":      2500,
	"internal/push/lean": 2000,
	"internal/store":     2500,
	"sdk/go":             5000,
	"sdk/go/engine":      5000,
}

type checker struct {
	root     string
	findings int
	lines    map[string]int
}

func (c *checker) report(path string, format string, args ...any) {
	c.findings++
	fmt.Printf("%s: %s\n", path, fmt.Sprintf(format, args...))
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rules ROOT")
		os.Exit(2)
	}
	c := &checker{root: os.Args[1], lines: map[string]int{}}
	out, err := exec.Command("git", "-C", c.root, "ls-files").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "list files:", err)
		os.Exit(1)
	}
	makefile, err := os.ReadFile(filepath.Join(c.root, "Makefile"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "read Makefile:", err)
		os.Exit(1)
	}
	packages := map[string]bool{}
	for _, path := range strings.Fields(string(out)) {
		src, err := os.ReadFile(filepath.Join(c.root, path))
		if err != nil {
			continue // deleted in the working tree
		}
		if badFolder.MatchString(filepath.Dir(path)) {
			c.report(path, "folder names a drawer, not a subject")
		}
		switch {
		case strings.HasSuffix(path, ".pb.go"):
			if !strings.HasPrefix(path, "sdk/go/gen/") {
				c.report(path, "generated code outside sdk/go/gen")
			}
		case strings.HasSuffix(path, ".go"):
			c.goFile(path, src, packages)
		case strings.HasSuffix(path, ".md"):
			c.markdown(path, src, makefile)
		case path == "sdk/go/go.mod":
			if bytes.Contains(src, []byte("replace")) {
				c.report(path, "the SDK's go.mod has a replace")
			}
		}
	}
	for dir, documented := range packages {
		if !documented {
			c.report(dir, "no package comment")
		}
	}
	for dir, n := range c.lines {
		limit := max(maxPackageLines, largePackages[dir])
		if n > limit {
			c.report(dir, "package has %d lines of code, at most %d", n, limit)
		}
	}
	for _, dir := range examplesOf {
		c.examples(dir)
	}
	if c.findings > 0 {
		os.Exit(1)
	}
}

func (c *checker) goFile(path string, src []byte, packages map[string]bool) {
	test := strings.HasSuffix(path, "_test.go")
	dir := filepath.Dir(path)
	if !bytes.HasPrefix(src, []byte("// SPDX-License-Identifier: Apache-2.0\n")) {
		c.report(path, "first line is not the licence")
	}
	bubble := bytes.Contains(src, []byte(`"testing/synctest"`)) // sleeping is instant there
	if test && !bubble && sleepInTest.Match(src) && !strings.HasPrefix(path, "e2e/") {
		c.report(path, "sleeps in a test: wait for the event")
	}
	if !test && background.Match(src) && !mayOwnContext(path) {
		c.report(path, "makes a root context: take it from the caller")
	}
	if initFunc.Match(src) {
		c.report(path, "init function")
	}
	if todo.Match(src) && !strings.HasPrefix(path, "tools/rules/") {
		c.report(path, "unfinished business")
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments)
	if err != nil {
		c.report(path, "does not parse: %v", err)
		return
	}
	if test {
		return
	}
	c.lines[dir] += codeLines(src)
	if file.Name.Name == "main" || strings.HasPrefix(file.Doc.Text(), "Package "+file.Name.Name+" ") {
		packages[dir] = true
	} else if _, seen := packages[dir]; !seen {
		packages[dir] = false
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.StructType); ok && s.Fields.NumFields() > maxStructFields {
			c.report(path, "line %d: struct has %d fields, at most %d", fset.Position(s.Pos()).Line, s.Fields.NumFields(), maxStructFields)
		}
		return true
	})
}

// codeLines counts the lines that are neither blank nor a comment.
func codeLines(src []byte) (n int) {
	for line := range bytes.Lines(src) {
		if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			n++
		}
	}
	return n
}

func mayOwnContext(path string) bool {
	for _, p := range []string{"cmd/", "internal/daemon/", "internal/demo/", "sdk/go/", "bench/", "tools/", "e2e/"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

func (c *checker) markdown(path string, src, makefile []byte) {
	for _, m := range mdLink.FindAllSubmatch(src, -1) {
		target := filepath.Join(c.root, filepath.Dir(path), string(m[1]))
		if _, err := os.Stat(target); err != nil {
			c.report(path, "link to %s leads nowhere", m[1])
		}
	}
	for _, m := range makeTarget.FindAllSubmatch(src, -1) {
		if !bytes.Contains(makefile, []byte("\n"+string(m[1])+":")) {
			c.report(path, "make target %s does not exist", m[1])
		}
	}
}
