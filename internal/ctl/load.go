// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/sdk/go/engine"
)

func filesVar(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "file, folder with .yaml, .yml and .json files, or - for stdin; may be repeated")
}

// load reads the documents of files and folders. All errors of all files come at once.
func (a *app) load(names []string) ([]*document.Object, error) {
	if len(names) == 0 {
		return nil, usagef("-f is missing: a file, a folder, or - for stdin")
	}
	var objects []*document.Object
	var faults []error
	for _, name := range names {
		if name == "" {
			return nil, usagef("-f is empty: a file, a folder, or - for stdin")
		}
		paths, err := a.expand(name)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, shown, err := a.readInput(path)
			if err != nil {
				return nil, err
			}
			found, err := document.Decode(shown, text)
			objects = append(objects, found...)
			faults = append(faults, err)
		}
	}
	if err := document.Join(faults...); err != nil {
		return nil, err
	}
	return objects, noRepeats(objects)
}

// expand returns the files of a folder, in order, or the file itself.
func (a *app) expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(a.path(name))
	if err != nil {
		return nil, a.inputError(name, err)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var paths []string
	err = filepath.WalkDir(a.path(name), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if hidden := strings.HasPrefix(d.Name(), ".") && path != a.path(name); hidden {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			rel, err := filepath.Rel(a.path(name), path)
			if err != nil {
				return err
			}
			paths = append(paths, filepath.Join(name, rel))
		}
		return nil
	})
	if err != nil {
		return nil, a.inputError(name, err)
	}
	return paths, nil
}

// path makes a name relative to the working directory absolute.
func (a *app) path(name string) string {
	if filepath.IsAbs(name) || a.env.Dir == "" {
		return name
	}
	return filepath.Join(a.env.Dir, name)
}

func (a *app) inputError(name string, err error) *failure {
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%s: there is no such file or folder", name)
	}
	var inPath *fs.PathError
	if errors.As(err, &inPath) {
		err = inPath.Err
	}
	return usagef("read %s: %s", name, err)
}

// shownNames names what -f named.
func shownNames(names []string) string {
	shown := slices.Clone(names)
	for i, name := range shown {
		if name == "-" {
			shown[i] = "stdin"
		}
	}
	return few(shown)
}

// readInput returns a file's content and the name to show in errors.
func (a *app) readInput(name string) (text []byte, shown string, err error) {
	var from io.Reader
	if name == "-" {
		shown, from = "stdin", a.in
	} else {
		f, err := os.Open(a.path(name))
		if err != nil {
			return nil, name, a.inputError(name, err)
		}
		defer func() { _ = f.Close() }() // only read
		shown, from = name, f
	}
	text, err = io.ReadAll(io.LimitReader(from, document.MaxStreamBytes+1))
	if err != nil {
		return nil, shown, a.inputError(shown, err)
	}
	return text, shown, nil
}

// noRepeats refuses two documents of one scope or switch.
func noRepeats(objects []*document.Object) error {
	first := make(map[string]*document.Object, len(objects))
	for _, o := range objects {
		if o.Name() == "" {
			continue
		}
		key := o.Kind() + " " + o.Name()
		if other, ok := first[key]; ok {
			return failf(exitRefused, "invalid", "%s: %s is there twice, first at %s",
				o.Position("metadata"), key, other.Position("metadata")).
				hint("There is one document per scope.")
		}
		first[key] = o
	}
	return nil
}

// policiesOf returns the policies among objects, widest scopes first.
func policiesOf(objects []*document.Object) []*document.Object {
	var found []*document.Object
	for _, o := range objects {
		if o.Policy != nil {
			found = append(found, o)
		}
	}
	slices.SortStableFunc(found, func(x, y *document.Object) int {
		if d := int(x.Policy.Scope.Level()) - int(y.Policy.Scope.Level()); d != 0 {
			return d
		}
		return strings.Compare(string(x.Policy.Scope), string(y.Policy.Scope))
	})
	return found
}

func switchesOf(objects []*document.Object) []*document.Object {
	var found []*document.Object
	for _, o := range objects {
		if o.Switch != nil {
			found = append(found, o)
		}
	}
	return found
}

// locate adds the places of what policyd refused.
func locate(err error, objects []*document.Object) error {
	var f *failure
	if !errors.As(err, &f) || len(f.details) == 0 {
		return err
	}
	lines := make([]string, 0, len(f.details))
	for _, d := range f.details {
		line := d.line()
		for _, o := range objects {
			if o.Policy != nil && d.Scope != "" && o.Policy.Scope == engine.Scope(d.Scope) && o.Position(d.Path) != "" {
				line = o.Position(d.Path) + ": " + strings.TrimPrefix(line, d.Scope+": ")
				break
			}
		}
		lines = append(lines, line)
	}
	f.message = strings.Join(lines, "\n")
	if len(f.details) == 1 && f.details[0].Fix != "" {
		f.hints = nil // the line says it
	}
	return f
}
