// SPDX-License-Identifier: Apache-2.0

// Package plot draws lines over the number of streams, or over time, as SVG.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
)

// Sizes, in pixels.
const (
	panelWidth, panelHeight = 460, 320
	marginLeft, marginTop   = 60, 40
	panelGap                = 90
	legendLine              = 20
)

// Line is what one system did.
type Line struct {
	Title  string
	Points [][2]float64 // x, y
}

// Panel is a diagram. Lines at one place of two panels have one colour.
type Panel struct {
	Title string
	Lines []Line
	// Linear axes from 0, for what happens over time; else both are logarithmic and the x of
	// points are marked.
	Linear bool
}

// Draw puts panels side by side, two in a row, over one legend.
func Draw(panels ...Panel) []byte {
	const (
		second    = marginLeft + panelWidth + panelGap
		rowHeight = marginTop + panelHeight + 30
	)
	lines := panels[0].Lines
	width, top := second+panelWidth+marginLeft, rowHeight*((len(panels)+1)/2)+20
	height := top + legendLine*((len(lines)+1)/2) + 10
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i/2*rowHeight)
		p.draw(&b, []int{marginLeft, second}[i%2])
		b.WriteString("</g>\n")
	}
	for i, l := range lines {
		x, y := []int{marginLeft, second}[i%2], top+i/2*legendLine
		fmt.Fprintf(&b, `<path d="M%d %dh24" stroke="%s" stroke-width="2.5"/><text x="%d" y="%d">%s</text>`+"\n", x, y-4, colour(i), x+32, y, html.EscapeString(l.Title))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// draw uses logarithmic axes where numbers of streams are compared: in proportion is a straight
// line, and no line hides the others.
func (p Panel) draw(b *bytes.Buffer, left int) {
	xs, ys := axis{low: math.Inf(1), linear: p.Linear}, axis{low: math.Inf(1), linear: p.Linear}
	var ns []float64
	for _, l := range p.Lines {
		for _, at := range l.Points {
			xs.include(at[0])
			ys.include(at[1])
			if !slices.Contains(ns, at[0]) {
				ns = append(ns, at[0])
			}
		}
	}
	if p.Linear {
		ns = xs.ticks()
	}
	place := func(x, y float64) (float64, float64) {
		return float64(left) + xs.share(x)*panelWidth, marginTop + panelHeight*(1-ys.share(y))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, marginTop-16, p.Title)
	for _, y := range ys.ticks() {
		_, py := place(ns[0], y)
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, py, panelWidth, left-6, py+4, y)
	}
	for _, n := range ns {
		px, _ := place(n, 1)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", px, marginTop+panelHeight+18, n)
	}
	for i, l := range p.Lines {
		var d bytes.Buffer
		for j, at := range l.Points {
			px, py := place(at[0], at[1])
			fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(j, 1)], px, py)
			if p.Linear {
				continue
			}
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, colour(i))
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", d.String(), colour(i))
	}
}

// axis is a logarithmic one, or a linear one from 0.
type axis struct {
	low, high float64
	linear    bool
}

// include takes a value; what is not above 0 has no place and counts as very small.
func (a *axis) include(v float64) {
	if a.linear {
		a.low, a.high = 0, max(a.high, v)
		return
	}
	v = max(v, 0.1)
	a.low, a.high = min(a.low, v), max(a.high, v)
}

// share of the axis at which a value stands, with some room at both ends.
func (a *axis) share(v float64) float64 {
	const room = 1.15
	if a.linear {
		return v / (a.high * room)
	}
	low, high := math.Log(a.low/room), math.Log(a.high*room)
	return (math.Log(max(v, 0.1)) - low) / (high - low)
}

// ticks are 1, 2 and 5 times powers of ten; of a linear axis, multiples of one of them.
func (a *axis) ticks() (list []float64) {
	if a.linear {
		if a.high <= 0 {
			return nil
		}
		step := math.Pow(10, math.Floor(math.Log10(a.high)))
		for a.high/step < 4 {
			step /= 2
		}
		for t := 0.0; t <= a.high; t += step {
			list = append(list, t)
		}
		return list
	}
	for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if t := m * power; t >= a.low && t <= a.high {
				list = append(list, t)
			}
		}
	}
	return list
}

func colour(i int) string {
	list := []string{"#666666", "#0072b2", "#56b4e9", "#009e73", "#8fd694", "#9467bd", "#8c564b", "#e69f00", "#d55e00", "#cc79a7"}
	return list[i%len(list)]
}
