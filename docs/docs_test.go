// SPDX-License-Identifier: Apache-2.0

// Package docs_test keeps what the documents say true: commands exist, policies are valid,
// code is that of programs which are compiled and tested.
package docs_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/ctl"
	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/lint"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

const root = ".."

// pages are the documents for users.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/guides/*.md", "docs/migrate/*.md", "examples/policies/README.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, names, pattern)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found[name] = string(text)
		}
	}
	return found
}

// blocks returns the blocks of a page in a language.
func blocks(page, language string) []string {
	var all []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
		all = append(all, m[1])
	}
	return all
}

// plain is code without its indentation.
func plain(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// sources are the programs that documents may quote.
func sources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, folder := range []string{"examples", "sdk/go"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			name := filepath.Base(path)
			if err != nil || !strings.HasSuffix(name, ".go") || folder == "sdk/go" && !strings.HasPrefix(name, "example") {
				return err
			}
			text, err := os.ReadFile(path)
			b.WriteString("\n" + plain(string(text)))
			return err
		}))
	}
	return b.String()
}

func TestDocs_code_is_that_of_programs(t *testing.T) {
	programs := sources(t)
	for name, page := range pages(t) {
		for _, code := range blocks(page, "go") {
			require.True(t, strings.Contains(programs, "\n"+plain(code)), "%s: no example has these lines:\n%s", name, code)
			if strings.Contains(name, "migrate") {
				require.LessOrEqual(t, strings.Count(code, "\n"), 10, "%s: too long to compare:\n%s", name, code)
			}
		}
	}
	require.False(t, strings.Contains(programs, "\n"+plain("api := policyd.Nothing()\n")), "the check can fail")
}

func TestDocs_policies_are_valid_and_without_findings(t *testing.T) {
	for name, page := range pages(t) {
		for _, text := range blocks(page, "yaml") {
			objects, err := document.Decode(name, []byte(text))
			require.NoError(t, err, name)
			set := policy.Set{}
			var scopes []engine.Scope
			for _, o := range objects {
				if o.Policy != nil {
					set[o.Policy.Scope] = o.Policy
					scopes = append(scopes, o.Policy.Scope)
				}
			}
			require.Empty(t, policy.ValidateSet(nil, set, scopes), name)
			for _, scope := range scopes {
				require.Empty(t, lint.Check(set, scope, lint.Facts{}), name)
			}
		}
	}
}

func TestDocs_migration_policies_are_those_of_the_tests(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "examples/migrate/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var shown []string
	for name, page := range pages(t) {
		if strings.Contains(name, "migrate") {
			shown = append(shown, blocks(page, "yaml")...)
		}
	}
	require.Len(t, shown, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, shown, string(text))
	}
}

func TestDocs_guides_begin_with_what_their_reader_can_do_after_them(t *testing.T) {
	for name, page := range pages(t) {
		if strings.Contains(name, "guides/") || strings.Contains(name, "migrate/") {
			paragraphs := strings.SplitN(page, "\n\n", 3)
			require.Len(t, paragraphs, 3)
			require.True(t, strings.HasPrefix(paragraphs[1], "After this page "), name)
		}
	}
}

var words = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)

// commands returns the calls of policyctl on a page, in blocks and within text.
func commands(page string) [][]string {
	var lines []string
	for _, block := range blocks(page, "sh") {
		lines = append(lines, strings.Split(block, "\n")...)
	}
	for _, m := range regexp.MustCompile("`(policyctl [^`]+)`").FindAllStringSubmatch(page, -1) {
		lines = append(lines, m[1])
	}
	var all [][]string
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " #")
		_, args, ok := strings.Cut(line, "policyctl ")
		if !ok || strings.TrimSpace(strings.TrimPrefix(line[:len(line)-len(args)], "bin/")) != "policyctl" {
			continue
		}
		var call []string
		for _, w := range words.FindAllString(args, -1) {
			call = append(call, strings.Trim(w, `"'`))
		}
		all = append(all, call)
	}
	return all
}

// exists reports whether policyctl knows a command and its flags: its help is that command's,
// not one of a group of commands.
func exists(t *testing.T, args []string) (bool, string) {
	t.Helper()
	var out strings.Builder
	code := ctl.Main(context.Background(), append(args, "--help"), ctl.Env{
		In: strings.NewReader(""), Out: &out, Err: &out, Dir: t.TempDir(),
		Lookup: func(string) (string, bool) { return "", false },
	})
	usage := regexp.MustCompile(`Usage: +policyctl ((?:[a-z][a-z-]* ?)+)(\S*)`).FindStringSubmatch(out.String())
	return code == 0 && usage != nil && usage[2] != "COMMAND" && strings.HasPrefix(strings.Join(args, " ")+" ", usage[1]), out.String()
}

func TestDocs_commands_exist(t *testing.T) {
	n := 0
	for name, page := range pages(t) {
		for _, args := range commands(page) {
			n++
			ok, said := exists(t, args)
			require.True(t, ok, "%s: policyctl %s: %s", name, strings.Join(args, " "), said)
		}
	}
	require.Greater(t, n, 20)
	for _, wrong := range [][]string{{"swich"}, {"switch", "stop"}, {"switch", "disable-retries", "--fore", "1h"}} {
		ok, _ := exists(t, wrong)
		require.False(t, ok, "the check can fail: %v", wrong)
	}
}
