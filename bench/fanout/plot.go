// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// Sizes of a plot, in pixels.
const (
	panelWidth, panelHeight = 460, 320
	marginLeft, marginTop   = 60, 40
	panelGap                = 90
	legendLine              = 20
)

type line struct {
	title  string
	points [][2]float64 // number of streams, value
}

// plot draws p99 and memory per stream over the number of streams.
func (r *report) plot() []byte {
	var order []string
	latency, memory := map[string]*line{}, map[string]*line{}
	for _, x := range r.Rows {
		if latency[x.System] == nil {
			order = append(order, x.System)
			latency[x.System], memory[x.System] = &line{title: x.Title}, &line{title: x.Title}
		}
		n := float64(x.N)
		latency[x.System].points = append(latency[x.System].points, [2]float64{n, x.Received.P99})
		memory[x.System].points = append(memory[x.System].points, [2]float64{n, x.HeldKB})
	}
	all := func(of map[string]*line) (lines []*line) {
		for _, name := range order {
			lines = append(lines, of[name])
		}
		return lines
	}
	width := 2*(marginLeft+panelWidth) + panelGap
	height := marginTop + panelHeight + 50 + legendLine*(len(order)+1)/2 + 10
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	panel(&b, marginLeft, "p99 from commit to received, ms", all(latency))
	panel(&b, 2*marginLeft+panelWidth+panelGap/2, "memory of the server per idle stream, KB", all(memory))
	for i, l := range all(latency) {
		x := marginLeft + i%2*(panelWidth+marginLeft+panelGap/2)
		y := marginTop + panelHeight + 50 + i/2*legendLine
		fmt.Fprintf(&b, `<path d="M%d %dh24" stroke="%s" stroke-width="2.5"/><text x="%d" y="%d">%s</text>`+"\n", x, y-4, colour(i), x+32, y, l.title)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func panel(b *bytes.Buffer, left int, title string, lines []*line) {
	var maxX, maxY float64
	var ns []float64
	for _, l := range lines {
		for _, p := range l.points {
			maxX, maxY = max(maxX, p[0]), max(maxY, p[1])
			if !slices.Contains(ns, p[0]) {
				ns = append(ns, p[0])
			}
		}
	}
	step := roundStep(maxY / 5)
	maxY = math.Max(step, math.Ceil(maxY/step)*step)
	at := func(x, y float64) (float64, float64) {
		return float64(left) + x/maxX*panelWidth, marginTop + panelHeight - y/maxY*panelHeight
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, marginTop-16, title)
	for i := 0.0; i*step <= maxY+step/2; i++ {
		_, py := at(0, i*step)
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, py, panelWidth, left-6, py+4, i*step)
	}
	for _, n := range ns {
		px, _ := at(n, 0)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", px, marginTop+panelHeight+18, n)
	}
	for i, l := range lines {
		var d bytes.Buffer
		for j, p := range l.points {
			px, py := at(p[0], p[1])
			fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(j, 1)], px, py)
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, colour(i))
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", d.String(), colour(i))
	}
}

// roundStep is the next 1, 2 or 5 times a power of ten.
func roundStep(s float64) float64 {
	if s <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(s)))
	for _, m := range []float64{1, 2, 5} {
		if s <= m*power {
			return m * power
		}
	}
	return 10 * power
}

func colour(i int) string {
	list := []string{"#666666", "#0072b2", "#56b4e9", "#9467bd", "#009e73", "#e69f00", "#d55e00", "#cc79a7"}
	return list[i%len(list)]
}
