// SPDX-License-Identifier: Apache-2.0

// Fuzzall runs every fuzz target of a module for a while, one after another.
//
//	go run ./fuzzall -time 20s MODULE
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

var target = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

func main() {
	each := flag.String("time", "20s", "duration of each target")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: fuzzall [-time 20s] MODULE")
		os.Exit(2)
	}
	root := flag.Arg(0)
	failed := false
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range target.FindAllSubmatch(src, -1) {
			name := string(m[1])
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			fmt.Printf("%s %s\n", dir, name)
			cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", *each, "./"+dir)
			cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
			if err := cmd.Run(); err != nil {
				failed = true
			}
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || failed {
		os.Exit(1)
	}
}
