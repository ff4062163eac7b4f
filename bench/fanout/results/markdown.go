// SPDX-License-Identifier: Apache-2.0

package results

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Marks that stand around the tables in a document.
const (
	begins = "<!-- fanout: written by go run ./fanout -write -->\n"
	ends   = "<!-- fanout: end -->\n"
)

// Into replaces the tables of a Markdown file, and the plots in img beside it.
func (r *Report) Into(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(old, []byte(begins))
	_, after, ended := bytes.Cut(rest, []byte(ends))
	if !begun || !ended {
		return errors.New(path + " lacks the marks that the tables go between")
	}
	files := r.plots()
	images := filepath.Join(filepath.Dir(path), "img")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(images, name), content, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, slices.Concat(before, []byte(begins), r.markdown(), []byte(ends), after), 0o644)
}

func (r *Report) markdown() []byte {
	var b bytes.Buffer
	c := r.Conditions
	fmt.Fprintf(&b, "%s, %s, Linux %s, %d cores (%s). %d-byte policy, %d turns of %d changes, at least %s apart. Load average %s before, %s after.\n",
		c.Date, c.Go, c.Kernel, c.Cores, c.ServerAndLoad, c.PayloadBytes, c.Turns, c.Rounds, c.Pause, c.LoadBefore, c.LoadAfter)
	n := 0
	for _, x := range r.Rows {
		if x.N != n {
			n = x.N
			fmt.Fprintf(&b, "\n**N = %d**\n\n| system | p50 | p99 | max, ms | p99 × floor | confirmed, ms | CPU per delivery | × floor | memory per stream |\n|%s\n",
				n, string(bytes.Repeat([]byte("---|"), 9)))
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.1f | %.2f | %.0f | %.1f µs | %.2f | %.1f KB |\n",
			x.Title, x.Received.P50, x.Received.P99, x.Received.Max, x.TimesFloor, x.Confirmed, x.CPU, x.CPUTimesFloor, x.HeldKB)
		if x.Applied != nil {
			fmt.Fprintf(&b, "| …commit → applied | %.1f | %.1f | %.1f | | | | | |\n", x.Applied.P50, x.Applied.P99, x.Applied.Max)
		}
	}
	if len(r.Figures) > 0 {
		fmt.Fprintf(&b, "\n| in hard moments | system | N | measured | | goal |\n|%s\n", string(bytes.Repeat([]byte("---|"), 6)))
	}
	for _, f := range r.Figures {
		goal := f.Goal
		if f.Missed {
			goal += ": **missed**"
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %.4g %s | %s |\n", f.Scenario, f.System, f.N, f.What, f.Value, f.Unit, goal)
	}
	for _, p := range []struct{ name, alt string }{
		{"fanout.svg", "p99 from commit to received, and memory per idle stream, over N"},
		{"reconnect.svg", "a server killed and started again: connections accepted, instances in force, memory and CPU, over seconds since the kill"},
	} {
		if r.plots()[p.name] != nil {
			fmt.Fprintf(&b, "\n![%s](img/%s)\n", p.alt, p.name)
		}
	}
	return b.Bytes()
}
