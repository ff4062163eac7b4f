// SPDX-License-Identifier: Apache-2.0

// Package results keeps what a run found, and writes it as text, Markdown, JSON and plots.
package results

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/policyd/policyd/bench/fanout/plot"
)

// Report is everything that a run found.
type Report struct {
	Conditions Conditions
	Rows       []Row
	Figures    []Figure
	Comebacks  []Comeback `json:",omitempty"`
}

type Conditions struct {
	Date             string
	Go               string
	Kernel           string
	Cores            int
	Versions         map[string]string
	PayloadBytes     int
	Turns, Rounds    int
	Pause            string
	LoadBefore       string
	LoadAfter        string
	ServerAndLoad    string
	CommitIsTakenAt  string
	MemoryIsMeasured string
}

// Row is a system at one number of streams. Times are medians over all changes, the rest
// medians over the turns.
type Row struct {
	System, Title   string
	N               int
	Received        MS
	Applied         *MS `json:",omitempty"`
	TimesFloor      float64
	Confirmed       float64 // ms until the server knew it of all; 0: it is not told
	CPU             float64 // µs of the server per delivery, confirmation included
	CPUTimesFloor   float64
	HeldKB, AsIsKB  float64
	EveryP99Of      []float64 // of each change, ms
	EveryAppliedP99 []float64 `json:",omitempty"`
}

type MS struct{ P50, P99, Max float64 }

// Figure is what a scenario measured.
type Figure struct {
	Scenario, System string
	N                int
	What             string
	Value            float64
	Unit             string
	Goal             string `json:",omitempty"`
	Missed           bool   `json:",omitempty"`
}

func New(size, turns, rounds int, pause time.Duration) *Report {
	r := &Report{Conditions: Conditions{
		Date: time.Now().UTC().Format(time.RFC3339),
		Go:   runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
		Versions: make(map[string]string), PayloadBytes: size, Turns: turns, Rounds: rounds, Pause: pause.String(),
		LoadBefore:       LoadAverage(),
		ServerAndLoad:    "two processes on the same cores, loopback",
		CommitIsTakenAt:  "before the call that makes the change known to the system",
		MemoryIsMeasured: "resident size of the server, without the kernel's socket buffers",
	}}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Conditions.Kernel = strings.TrimSpace(string(b))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			switch m.Path {
			case "google.golang.org/grpc", "go.etcd.io/etcd/server/v3", "github.com/envoyproxy/go-control-plane":
				r.Conditions.Versions[m.Path] = m.Version
			}
		}
	}
	return r
}

// Print writes tables for a terminal.
func (r *Report) Print(w io.Writer) {
	c := r.Conditions
	fmt.Fprintf(w, "%s, %s, Linux %s, %d cores (%s)\n", c.Date, c.Go, c.Kernel, c.Cores, c.ServerAndLoad)
	for path, version := range c.Versions {
		fmt.Fprintln(w, path, version)
	}
	fmt.Fprintf(w, "%d-byte policy, %d turns of %d changes, %s apart; medians; load average %s before, %s after\n",
		c.PayloadBytes, c.Turns, c.Rounds, c.Pause, c.LoadBefore, c.LoadAfter)
	n := 0
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, x := range r.Rows {
		if x.N != n {
			n = x.N
			fmt.Fprintf(t, "\nN = %d; ms, commit → received\tp50\tp99\tmax\tp99 × floor\tconfirmed\tCPU/delivery\t× floor\tRSS/stream, held\tas it stands\t\n", n)
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%.1f µs\t%.2f\t%.1f KB\t%.1f KB\t\n",
			x.Title, x.Received.P50, x.Received.P99, x.Received.Max, x.TimesFloor, x.Confirmed, x.CPU, x.CPUTimesFloor, x.HeldKB, x.AsIsKB)
		if x.Applied != nil {
			fmt.Fprintf(t, "commit → applied\t%.1f\t%.1f\t%.1f\t\t\t\t\t\t\t\n", x.Applied.P50, x.Applied.P99, x.Applied.Max)
		}
	}
	_ = t.Flush()
	if len(r.Figures) == 0 {
		return
	}
	t = tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\nscenario\tsystem\tN\tmeasured\t\tgoal\t")
	for _, f := range r.Figures {
		goal := f.Goal
		if f.Missed {
			goal += ", missed"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%.4g %s\t%s\t\n", f.Scenario, f.System, f.N, f.What, f.Value, f.Unit, goal)
	}
	_ = t.Flush()
}

// Save writes what there is so far to a directory; "" is none.
func (r *Report) Save(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var text strings.Builder
	r.Print(&text)
	files := r.plots()
	files["fanout.json"], files["fanout.txt"] = b, []byte(text.String())
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plots are the diagrams that there is something for, by name of file.
func (r *Report) plots() map[string][]byte {
	files := make(map[string][]byte)
	if len(r.Rows) > 0 {
		files["fanout.svg"] = r.plot()
	}
	if len(r.Comebacks) > 0 {
		files["reconnect.svg"] = r.plotComebacks()
	}
	return files
}

// plot draws p99 and memory over the number of streams.
func (r *Report) plot() []byte {
	latency := plot.Panel{Title: "p99 from commit to received, ms"}
	memory := plot.Panel{Title: "memory of the server per idle stream, KB"}
	at := make(map[string]int)
	for _, x := range r.Rows {
		i, known := at[x.System]
		if !known {
			i = len(at)
			at[x.System] = i
			latency.Lines = append(latency.Lines, plot.Line{Title: x.Title})
			memory.Lines = append(memory.Lines, plot.Line{Title: x.Title})
		}
		latency.Lines[i].Points = append(latency.Lines[i].Points, [2]float64{float64(x.N), x.Received.P99})
		memory.Lines[i].Points = append(memory.Lines[i].Points, [2]float64{float64(x.N), x.HeldKB})
	}
	return plot.Draw(latency, memory)
}

// LoadAverage of the machine over the last minute.
func LoadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// Note takes a figure; a limit of 0 is none.
func (r *Report) Note(f Figure, limit float64) {
	if limit > 0 {
		f.Goal, f.Missed = fmt.Sprintf("≤ %.4g", limit), f.Value > limit
	}
	r.Figures = append(r.Figures, f)
}
