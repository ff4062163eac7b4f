// SPDX-License-Identifier: Apache-2.0

package results

import (
	"time"

	"github.com/policyd/policyd/bench/fanout/plot"
)

// Comeback is what it was like when a server was killed and started again.
type Comeback struct {
	System, How string
	N           int
	Killed      int64    // in nanoseconds of Unix, as all times here
	Moments     []Moment // of the new process
	InForce     []int64  // when each instance was up to date
}

// Moment is what a server was like at one time.
type Moment struct {
	At       int64
	Accepted int64 // connections so far
	RSS      int64
	CPU      time.Duration // so far
}

// MostAccepted is the most connections in the time between two moments.
func (c *Comeback) MostAccepted() (most float64) {
	for i := 1; i < len(c.Moments); i++ {
		most = max(most, float64(c.Moments[i].Accepted-c.Moments[i-1].Accepted))
	}
	return most
}

// since is a time after the kill, in seconds.
func (c *Comeback) since(at int64) float64 { return float64(at-c.Killed) / float64(time.Second) }

// plotComebacks draws those of the largest number of streams.
func (r *Report) plotComebacks() []byte {
	panels := []plot.Panel{
		{Title: "connections accepted per second"},
		{Title: "instances with the policy in force"},
		{Title: "memory of the server, MB"},
		{Title: "CPU of the server, cores"},
	}
	for i := range panels {
		panels[i].Linear = true
	}
	n := 0
	for _, c := range r.Comebacks {
		n = max(n, c.N)
	}
	for _, c := range r.Comebacks {
		if c.N != n {
			continue
		}
		for i, points := range c.lines() {
			panels[i].Lines = append(panels[i].Lines, plot.Line{Title: c.System + ", " + c.How, Points: points})
		}
	}
	return plot.Draw(panels...)
}

func (c *Comeback) lines() (l [4][][2]float64) {
	for i := 1; i < len(c.Moments); i++ {
		m, before := c.Moments[i], c.Moments[i-1]
		x, took := c.since(m.At), float64(m.At-before.At)
		back := 0
		for _, at := range c.InForce {
			if at <= m.At {
				back++
			}
		}
		l[0] = append(l[0], [2]float64{x, float64(m.Accepted-before.Accepted) / took * float64(time.Second)})
		l[1] = append(l[1], [2]float64{x, float64(back)})
		l[2] = append(l[2], [2]float64{x, float64(m.RSS) / (1 << 20)})
		l[3] = append(l[3], [2]float64{x, float64(m.CPU-before.CPU) / took})
	}
	return l
}
