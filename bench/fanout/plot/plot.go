// SPDX-License-Identifier: Apache-2.0

// Package plot draws lines over the number of streams, as SVG.
package plot

import (
	"bytes"
	"fmt"
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
}

// Draw puts two panels side by side over one legend.
func Draw(left, right Panel) []byte {
	width := 2*(marginLeft+panelWidth) + panelGap
	height := marginTop + panelHeight + 50 + legendLine*((len(left.Lines)+1)/2) + 10
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	const second = marginLeft + panelWidth + panelGap
	left.draw(&b, marginLeft)
	right.draw(&b, second)
	for i, l := range left.Lines {
		x, y := []int{marginLeft, second}[i%2], marginTop+panelHeight+50+i/2*legendLine
		fmt.Fprintf(&b, `<path d="M%d %dh24" stroke="%s" stroke-width="2.5"/><text x="%d" y="%d">%s</text>`+"\n", x, y-4, colour(i), x+32, y, l.Title)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (p Panel) draw(b *bytes.Buffer, left int) {
	var maxX, maxY float64
	var ns []float64
	for _, l := range p.Lines {
		for _, at := range l.Points {
			maxX, maxY = max(maxX, at[0]), max(maxY, at[1])
			if !slices.Contains(ns, at[0]) {
				ns = append(ns, at[0])
			}
		}
	}
	step := roundStep(maxY / 5)
	maxY = math.Max(step, math.Ceil(maxY/step)*step)
	place := func(x, y float64) (float64, float64) {
		return float64(left) + x/maxX*panelWidth, marginTop + panelHeight - y/maxY*panelHeight
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, marginTop-16, p.Title)
	for i := 0.0; i*step <= maxY+step/2; i++ {
		_, py := place(0, i*step)
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, py, panelWidth, left-6, py+4, i*step)
	}
	for _, n := range ns {
		px, _ := place(n, 0)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", px, marginTop+panelHeight+18, n)
	}
	for i, l := range p.Lines {
		var d bytes.Buffer
		for j, at := range l.Points {
			px, py := place(at[0], at[1])
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
	list := []string{"#666666", "#0072b2", "#56b4e9", "#009e73", "#8fd694", "#9467bd", "#8c564b", "#e69f00", "#d55e00", "#cc79a7"}
	return list[i%len(list)]
}
