// SPDX-License-Identifier: Apache-2.0

package ctl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

func document(scope, spec string) string {
	return "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: " + scope + "}\nspec: " + spec + "\n"
}

// write keeps text in a file and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "doc.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (h *house) policies() int { return len(h.store.View().Policies) }

func (h *house) entries(t *testing.T) int {
	t.Helper()
	entries, err := h.store.Outbox(t.Context(), 1000)
	require.NoError(t, err)
	return len(entries)
}

func TestO_CL_01_differs_and_failed_have_codes_of_their_own(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	same, other, broken := write(t, document("shop", "{maxAttempts: 2}")), write(t, document("shop", "{maxAttempts: 3}")), write(t, "a: [\n")
	must(t, h, 0, "apply", "-f", same, "--yes")

	r := must(t, h, 0, "diff", "-f", same, "--exit-code")
	require.Contains(t, r.stdout, "1 unchanged")
	r = must(t, h, 3, "diff", "-f", other, "--exit-code")
	require.Contains(t, r.stdout, "maxAttempts")
	require.Empty(t, r.err)
	must(t, h, 0, "diff", "-f", other)
	r = must(t, h, 7, "diff", "-f", broken, "--exit-code")
	require.Empty(t, r.stdout)
	require.Contains(t, r.err, "not valid YAML")
	h.stop()
	r = must(t, h, 8, "diff", "-f", other, "--exit-code")
	require.Empty(t, r.stdout)
	require.Contains(t, r.err, "cannot reach policyd")
}

func TestO_CL_02_what_was_applied_does_not_differ(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	path := write(t, document("shop/payments", "{maxAttempts: 3}"))
	must(t, h, 0, "apply", "-f", path, "--yes")
	revision, entries := h.store.View().Revision, h.entries(t)
	require.Contains(t, must(t, h, 0, "diff", "-f", path, "--exit-code").stdout, "0 changed, 0 added, 0 removed, 1 unchanged")
	require.Contains(t, must(t, h, 0, "apply", "-f", path, "--yes").stdout, "unchanged")
	require.Equal(t, revision, h.store.View().Revision)
	require.Equal(t, entries, h.entries(t))
}

func TestO_CL_03_prune_deletes_only_what_it_manages_and_only_when_told(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var stream, ours []string
	for i := range 20 {
		ours = append(ours, document(fmt.Sprintf("shop/s%02d", i), "{maxAttempts: 2}"))
	}
	stream = append(stream, ours...)
	must(t, h, 0, "apply", "-f", write(t, strings.Join(stream, "---\n")), "--managed-by", "git", "--yes", "--no-wait")
	must(t, h, 0, "apply", "-f", write(t, document("media", "{maxAttempts: 2}")), "--yes", "--no-wait")
	must(t, h, 0, "apply", "-f", write(t, document("media/x", "{maxAttempts: 2}")), "--managed-by", "other", "--yes", "--no-wait")
	require.Equal(t, 22, h.policies())

	one := write(t, ours[0])
	must(t, h, 7, "apply", "--prune", "--managed-by", "git", "--yes", "-f", write(t, "# nothing\n---\n"))
	must(t, h, 7, "apply", "--prune", "--managed-by", "git", "--yes", "-f", t.TempDir())
	must(t, h, 2, "apply", "--prune", "--managed-by", "git", "--yes", "-f", filepath.Join(t.TempDir(), "wrong"))
	must(t, h, 2, "apply", "--prune", "--yes", "-f", one)
	r := must(t, h, 7, "apply", "--prune", "--managed-by", "git", "--yes", "-f", one)
	require.Contains(t, r.err, "19 of the 20 policies of shop")
	require.Equal(t, 22, h.policies(), "nothing of that deleted anything")

	r = must(t, h, 0, "apply", "--prune", "--managed-by", "git", "--confirm", "shop", "--dry-run", "-f", one)
	require.Equal(t, 19, strings.Count(r.stdout, "→ deleted"))
	require.NotContains(t, r.stdout, "media")
	must(t, h, 2, "apply", "--prune", "--managed-by", "git", "--confirm", "shop", "-f", one)
	require.Equal(t, 22, h.policies())
	must(t, h, 0, "apply", "--prune", "--managed-by", "git", "--confirm", "shop", "--yes", "-f", one, "--no-wait")
	require.Equal(t, 3, h.policies())
	require.Contains(t, h.store.View().Policies, engine.Scope("media/x"))
}

func TestO_CL_04_all_documents_of_a_file_are_applied(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	path := write(t, document("a", "{maxAttempts: 2}")+"--- # note\n"+document("b", "{maxAttempts: 2}")+"---   \n"+
		document("c", "{maxAttempts: 2}")+"---\n\n---\n...\n")
	must(t, h, 0, "apply", "-f", path, "--yes")
	require.Equal(t, 3, h.policies())
}

func TestO_CL_05_a_repeated_key_applies_nothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	path := write(t, document("a", "{maxAttempts: 2}")+"---\n"+document("b", "\n  maxAttempts: 3\n  maxAttempts: 5"))
	r := must(t, h, 7, "apply", "-f", path, "--yes")
	require.Contains(t, r.err, ":11:3: duplicate field \"maxAttempts\" in spec: it is on line 10 already")
	require.Zero(t, h.policies())
}

func TestO_CL_06_flags_follow_the_rule_of_documents(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, bad := range []string{"30", "1.5", "-1s", "30 s", "30S", "1e3s"} {
		must(t, h, 2, "switch", "disable-retries", "shop/payments", "--for", bad, "--reason", "x", "--yes")
	}
	require.Empty(t, h.store.View().Switches)
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--for", "1h30m", "--reason", "x", "--yes")
}

func TestO_CL_07_names_that_look_like_booleans_survive_export_and_apply(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	text := "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: %s, labels: {NO: off, y: on}}\nspec: {maxAttempts: 2}\n"
	var stream []string
	for _, name := range []string{"no", "y", "on", "1.10", "off"} {
		stream = append(stream, fmt.Sprintf(text, name))
	}
	must(t, h, 0, "apply", "-f", write(t, strings.Join(stream, "---\n")), "--yes")
	revision := h.store.View().Revision
	for _, format := range []string{"yaml", "json"} {
		exported := must(t, h, 0, "export", "-o", format).stdout
		r := run(t, h, options{stdin: exported}, "apply", "-f", "-", "--yes")
		require.Zero(t, r.code, r.err)
	}
	r := run(t, h, options{stdin: must(t, h, 0, "get", "policies", "-o", "yaml").stdout}, "apply", "-f", "-", "--yes")
	require.Zero(t, r.code, r.err)
	require.Equal(t, revision, h.store.View().Revision, "nothing changed")
	for _, p := range h.store.View().Policies {
		require.Equal(t, map[string]string{"NO": "off", "y": "on"}, p.Metadata.Labels)
	}
}

func TestO_CL_08_an_edit_under_a_switch_says_that_it_is_hidden(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "apply", "-f", write(t, document("shop/payments", "{maxAttempts: 3}")), "--yes")
	must(t, h, 0, "switch", "disable-retries", "shop/payments", "--id", "off", "--for", "10m", "--reason", "x", "--yes")
	r := must(t, h, 0, "apply", "-f", write(t, document("shop/payments", "{maxAttempts: 5}")), "--yes")
	require.Contains(t, r.err, "hidden by off while it lasts")
	value := func() string {
		return must(t, h, 0, "effective", "shop/payments", "--field", "maxAttempts", "--jq", ".values[0].value").stdout
	}
	require.Equal(t, "1\n", value())
	must(t, h, 0, "switch", "revert", "off")
	require.Equal(t, "5\n", value(), "the edit is in force, nothing was written back")
}

func TestO_SE_01_a_bomb_is_refused(t *testing.T) {
	t.Parallel()
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 9; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	r := must(t, newHouse(t), 7, "apply", "-f", write(t, bomb), "--yes")
	require.Contains(t, r.err, "aliases")
}

func TestApply_writes_up_to_a_hundred_at_once_and_more_in_steps(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var stream []string
	for i := range 230 {
		stream = append(stream, document(fmt.Sprintf("shop/s%03d", i), "{maxAttempts: 2}"))
	}
	path := write(t, strings.Join(stream, "---\n"))
	r := must(t, h, 7, "apply", "-f", path, "--yes")
	require.Contains(t, r.err, "230 documents would change")
	require.Contains(t, r.err, "--split")
	require.Zero(t, h.policies())
	r = must(t, h, 0, "apply", "-f", path, "--yes", "--split")
	require.Contains(t, r.err, "step 3 of 3: 30 documents, revision 4")
	require.Equal(t, 230, h.policies())
	require.Contains(t, must(t, h, 0, "apply", "-f", path, "--yes").stdout, "230 documents unchanged")
	stream[7] = document("shop/s007", "{maxAttempts: 4}")
	require.Contains(t, must(t, h, 0, "apply", "-f", write(t, strings.Join(stream, "---\n")), "--yes").stdout, "1 changed, 0 added, 0 removed, 229 unchanged")
}

func TestApply_says_who_moved_the_revision(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "apply", "-f", write(t, document("shop", "{maxAttempts: 2}")), "--yes")
	// Someone saves while the editor is open.
	path := write(t, document("shop", "{maxAttempts: 4}"))
	swap := filepath.Join(t.TempDir(), "editor.sh")
	require.NoError(t, os.WriteFile(swap, []byte("#!/bin/sh\nsed -i 's/maxAttempts: 2/maxAttempts: 3/' \"$1\"\ntouch "+swap+".open\nwhile ! test -e "+swap+".go; do sleep 0.01; done\n"), 0o700)) //nolint:gosec // a script
	done := make(chan result, 1)
	go func() { done <- run(t, h, options{env: map[string]string{"EDITOR": swap}}, "edit", "shop", "--yes") }()
	require.Eventually(t, func() bool { _, err := os.Stat(swap + ".open"); return err == nil }, 10*time.Second, 5*time.Millisecond)
	must(t, h, 0, "apply", "-f", path, "--yes")
	require.NoError(t, os.WriteFile(swap+".go", nil, 0o600))
	r := <-done
	require.Equal(t, 6, r.code, r.err)
	require.Contains(t, r.err, "revision moved: you started from 2 of shop, local saved 3 0s ago")
	require.Contains(t, r.err, "policyctl get policy shop")
	require.Contains(t, r.err, "Your text is kept in ")
	require.Equal(t, engine.Int(4), h.store.View().Policies["shop"].Settings[engine.MaxAttempts])
	_, kept, _ := strings.Cut(r.err, "Your text is kept in ")
	require.NoError(t, os.Remove(strings.TrimSpace(strings.Split(kept, "\n")[0])))
}

func TestApply_says_what_was_saved_before_a_step_failed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var stream []string
	for i := range 150 {
		stream = append(stream, document(fmt.Sprintf("shop/s%03d", i), "{maxAttempts: 2}"))
	}
	commits := 0
	h.store.Refuse(func(policy.Transaction) error {
		if commits++; commits == 2 {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	r := must(t, h, 1, "apply", "-f", write(t, strings.Join(stream, "---\n")), "--yes", "--split")
	require.Contains(t, r.err, "Saved before that: 100 documents, up to revision 2")
	require.Contains(t, r.err, "Request id:")
}

func TestInit_of_a_scope_with_a_policy_shows_what_it_inherits(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	must(t, h, 0, "apply", "-f", write(t, document("shop", "{maxAttempts: 4, backoff: {base: 100ms}}")), "--yes")
	own := must(t, h, 0, "init", "shop")
	require.Regexp(t, `base: 200ms +# built-in`, own.stdout)
	require.Regexp(t, `maxAttempts: 3 +# built-in`, own.stdout)
	require.Contains(t, own.err, "shop has a policy already (revision 2), which this would replace; to change it:  policyctl edit shop")
	below := must(t, h, 0, "init", "shop/cart")
	require.Regexp(t, `base: 100ms +# shop\n`, below.stdout)
	require.Empty(t, below.err)
}

func TestWait_says_how_long_it_waited_also_in_vain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.set("cart-1", "behind", "")
	r := must(t, h, 9, "apply", "-f", write(t, document("shop", "{maxAttempts: 4}")), "--yes", "--timeout", "1s")
	require.Regexp(t, `in force  3/4  [1-9][0-9.]*s\n`, r.stdout)
}
