// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

type editOptions struct {
	scope  engine.Scope
	editor string
	yes    bool
	reason string
	wait   waitFlags
}

func newEditCmd(a *app) *cobra.Command {
	o := &editOptions{}
	cmd := &cobra.Command{
		Use:   "edit SCOPE",
		Short: "Change a policy in your editor",
		Long:  "Opens the policy of a scope, or a starter where there is none, in an editor, shows what\nwould change, asks, and writes it. What you typed is never lost: after an error the file is\nkept and its path printed.",
		Example: `  policyctl edit shop/payments
  EDITOR="code --wait" policyctl edit global`,
		Args:              exactArgs("SCOPE"),
		ValidArgsFunction: a.completeScopes,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.scope, err = scopeArg(args[0]); err != nil {
				return err
			}
			return a.edit(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.editor, "editor", "", "editor to use (default VISUAL, EDITOR, then vi)")
	f.StringVar(&o.reason, "reason", "", "why, for the record")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	addWaitFlags(cmd, &o.wait)
	return cmd
}

// Lines that carry an error start so; they are taken out before the text is read.
const errorMark = "#! "

func (a *app) edit(ctx context.Context, o *editOptions) error {
	if !a.interactive() && !o.yes {
		return usagef("edit asks before it writes, and nobody can be asked: add --yes, or use apply -f")
	}
	if err := a.banner(); err != nil {
		return err
	}
	original, revision, err := a.editable(ctx, o.scope)
	if err != nil {
		return err
	}
	file, err := a.tempFile(o.scope, original)
	if err != nil {
		return err
	}
	session := &editSession{a: a, o: o, file: file, original: original, revision: revision}
	keep, err := session.run(ctx)
	if !keep {
		_ = os.Remove(file) // a left-over in the temporary folder harms nobody
		return err
	}
	return addHint(a.describe(err), "Your text is kept in "+file)
}

// editable returns the text to start from and the revision that it shows.
func (a *app) editable(ctx context.Context, scope engine.Scope) (text []byte, revision int64, err error) {
	resp, err := read(ctx, a, policydv1.AdminServiceClient.GetPolicy, &policydv1.GetPolicyRequest{Scope: string(scope)})
	var f *failure
	switch {
	case errors.As(err, &f) && f.exit == exitNotFound:
		text, err = a.starter(ctx, scope, false)
		return text, 0, err
	case err != nil:
		return nil, 0, err
	}
	o, err := policyObject(resp.GetPolicy())
	if err != nil {
		return nil, 0, err
	}
	text, err = document.YAML(bare(o))
	return text, resp.GetPolicy().GetRevision(), err
}

func (a *app) tempFile(scope engine.Scope, text []byte) (string, error) {
	dir, _ := a.env.Lookup("TMPDIR") // none: the system's
	f, err := os.CreateTemp(dir, "policyctl-"+strings.ReplaceAll(string(scope), "/", "-")+"-*.yaml")
	if err != nil {
		return "", fmt.Errorf("keep the text in a file: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("keep the text in a file: %w", err)
	}
	return f.Name(), nil
}

type editSession struct {
	a        *app
	o        *editOptions
	file     string
	original []byte
	revision int64
}

// run edits until the text can be written. keep says that the file still holds work.
func (s *editSession) run(ctx context.Context) (keep bool, err error) {
	before := s.original
	for {
		if err := s.open(ctx); err != nil {
			return !bytes.Equal(s.text(), s.original), err
		}
		text := s.text()
		if bytes.Equal(text, s.original) {
			s.a.done("%s unchanged\n", s.o.scope)
			return false, nil
		}
		p, err := s.plan(ctx, text)
		if err == nil {
			return s.finish(ctx, p)
		}
		gaveUp := bytes.Equal(text, before)
		f := s.a.describe(err)
		retry := f.exit == exitRefused && s.a.interactive() && !gaveUp
		if !retry {
			return true, err
		}
		before = text
		if err := s.annotate(text, f); err != nil {
			return true, err
		}
	}
}

// text is what the editor left, without our error lines.
func (s *editSession) text() []byte {
	content, err := os.ReadFile(s.file)
	if err != nil {
		return nil
	}
	var out bytes.Buffer
	for line := range bytes.Lines(content) {
		if !bytes.HasPrefix(line, []byte(errorMark)) {
			out.Write(line)
		}
	}
	return out.Bytes()
}

// annotate puts the error on top of the text.
func (s *editSession) annotate(text []byte, f *failure) error {
	var out bytes.Buffer
	for line := range strings.SplitSeq(f.message, "\n") {
		out.WriteString(errorMark + clean(line) + "\n")
	}
	out.WriteString(errorMark + "Correct it, or leave it as it is to give up; your text is kept.\n")
	out.Write(text)
	return os.WriteFile(s.file, out.Bytes(), 0o600)
}

func (s *editSession) plan(ctx context.Context, text []byte) (*plan, error) {
	objects, err := document.Decode(filepath.Base(s.file), text)
	if err != nil {
		return nil, err
	}
	if len(objects) != 1 || objects[0].Policy == nil || objects[0].Policy.Scope != s.o.scope {
		return nil, failf(exitRefused, "invalid", "the file must hold one RetryPolicy, of %s", s.o.scope)
	}
	p, err := s.a.makePlan(ctx, &planOptions{objects: objects, reason: s.o.reason})
	if err != nil {
		return nil, err
	}
	// The text shows the revision that it was opened at, however long the editing took.
	for _, chunk := range p.chunks {
		for _, c := range chunk.GetChanges() {
			c.ExpectedRevision = &s.revision
		}
	}
	return p, nil
}

func (s *editSession) finish(ctx context.Context, p *plan) (keep bool, err error) {
	err = s.a.carryOut(ctx, p, s.o.yes, &s.o.wait)
	var quiet exitError
	saved := err == nil || errors.As(err, &quiet)
	return !saved, err
}

// open runs the editor on the file.
func (s *editSession) open(ctx context.Context) error {
	command := s.o.editor
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if v, _ := s.a.env.Lookup(name); command == "" {
			command = v
		}
	}
	if command == "" {
		command = "vi"
	}
	shell, flag, arg := "sh", "-c", command+` "$1"`
	args := []string{flag, arg, "sh", s.file}
	if runtime.GOOS == "windows" {
		shell, args = "cmd", []string{"/C", command + " " + s.file}
	}
	cmd := exec.CommandContext(ctx, shell, args...)
	cmd.Stdout, cmd.Stderr = editorOutput(s.a), s.a.err.w
	// Only a file can be shared; from any other reader the copy would swallow our answers.
	if f, ok := s.a.in.(*os.File); ok {
		cmd.Stdin = f
	}
	if err := cmd.Run(); err != nil {
		return failf(exitFailed, "editor", "editor %q: %s", command, err).
			hint("Nothing was changed. Another editor:  --editor, VISUAL or EDITOR")
	}
	return nil
}

// editorOutput is stdout on a terminal; elsewhere the editor's words are no data.
func editorOutput(a *app) io.Writer {
	if a.out.tty {
		return a.out.w
	}
	return a.err.w
}
