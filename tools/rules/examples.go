// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// examplesOf are the packages whose every exported name stands in an example, which godoc
// shows and go test runs.
var examplesOf = []string{"sdk/go", "sdk/go/policygrpc", "sdk/go/policyotel", "sdk/go/policyqueue", "sdk/go/policytest"}

// examples reports the exported names of a package that stand in none of its examples. A type
// stands in one by its name, or by a function or constant of that type.
func (c *checker) examples(dir string) {
	paths, _ := filepath.Glob(filepath.Join(c.root, dir, "*.go"))
	// exported names, each with the names that stand for it
	exported, shown := map[string][]string{}, map[string]bool{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return // told by goFile
		}
		switch name := filepath.Base(path); {
		case strings.HasPrefix(name, "example"):
			ast.Inspect(file, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					shown[id.Name] = true
				}
				return true
			})
		case !strings.HasSuffix(name, "_test.go"):
			for _, decl := range file.Decls {
				exports(decl, exported)
			}
		}
	}
	var missing []string
	for name := range exported {
		own := name[strings.LastIndexByte(name, '.')+1:]
		if !slices.ContainsFunc(append(exported[name], own), func(n string) bool { return shown[n] }) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range missing {
		c.report(dir, "%s stands in no example", name)
	}
}

// exports adds the exported names of a declaration; methods as Type.Method.
func exports(decl ast.Decl, to map[string][]string) {
	add := func(name string, by ...string) { to[name] = append(to[name], by...) }
	switch d := decl.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		recv := ""
		if d.Recv != nil {
			recv = receiver(d.Recv.List[0].Type)
		}
		if !d.Name.IsExported() || recv != "" && !ast.IsExported(recv) {
			return
		}
		add(strings.TrimPrefix(recv+"."+name, "."))
		if d.Type.Results == nil {
			return
		}
		ast.Inspect(d.Type.Results, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.IsExported() {
				add(id.Name, name)
			}
			_, foreign := n.(*ast.SelectorExpr)
			return !foreign
		})
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					add(s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if !n.IsExported() {
						continue
					}
					add(n.Name)
					if t, ok := s.Type.(*ast.Ident); ok && t.IsExported() {
						add(t.Name, n.Name)
					}
				}
			}
		}
	}
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	default:
		return ""
	}
}
