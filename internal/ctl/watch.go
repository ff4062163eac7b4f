// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"time"
)

// How often a watch asks.
const watchEvery = time.Second

// watch shows a list again and again: redrawn on a terminal, else a line per change. It
// survives policyd being away and ends with ctx.
func (a *app) watch(ctx context.Context, load func(context.Context) (*list, error)) error {
	if a.global.output == asYAML {
		return usagef("--watch prints tables, names or JSON lines, no YAML")
	}
	w := &watcher{a: a, load: load, since: a.env.Now()}
	for {
		if err := w.step(ctx); err != nil {
			return err
		}
		if !pause(ctx, watchEvery) {
			return exitError(exitInterrupted)
		}
	}
}

// once shows a list, or watches it.
func (a *app) once(ctx context.Context, watching bool, load func(context.Context) (*list, error)) error {
	if watching {
		return a.watch(ctx, load)
	}
	l, err := load(ctx)
	if err != nil {
		return err
	}
	return a.show(l)
}

type watcher struct {
	a    *app
	load func(context.Context) (*list, error)
	last *list
	// known is each item as it was printed last.
	known map[string][]byte
	order []string
	lost  bool
	since time.Time // of the newest answer
}

func (w *watcher) step(ctx context.Context) error {
	l, err := w.load(ctx)
	if err != nil {
		return w.failed(ctx, err)
	}
	if w.lost {
		w.a.say("connected again\n")
	}
	w.lost, w.since = false, w.a.env.Now()
	if w.redraws() {
		w.draw(l, "")
		w.last = l
		return nil
	}
	return w.events(l)
}

func (w *watcher) failed(ctx context.Context, err error) error {
	var f *failure
	if ctx.Err() != nil {
		return exitError(exitInterrupted)
	}
	if !errors.As(err, &f) || f.exit != exitUnavailable || w.known == nil && w.last == nil {
		return err
	}
	if w.redraws() {
		w.draw(w.last, "  as of "+age(w.a.env.Now().Sub(w.since))+" ago: "+f.message)
	} else if !w.lost {
		w.a.say("%s; trying again\n", f.message)
	}
	w.lost = true
	return nil
}

func (w *watcher) redraws() bool { return w.a.out.tty && w.a.human() }

func (w *watcher) draw(l *list, note string) {
	w.a.out.printf("\x1b[H\x1b[2J%s%s\n", w.a.env.Now().UTC().Format("15:04:05 UTC"), note)
	w.a.printTable(l)
}

// event is one line of a watch.
type event struct {
	Type     string `json:"type"`
	Revision int64  `json:"revision"`
	Object   any    `json:"object,omitempty"`
}

// events prints what changed since the list before.
func (w *watcher) events(l *list) error {
	if w.known == nil && w.a.human() {
		return w.first(l)
	}
	fresh := make(map[string][]byte, len(l.items))
	order := make([]string, 0, len(l.items))
	changed := false
	for _, it := range l.items {
		text, err := marshal(it.value)
		if err != nil {
			return err
		}
		fresh[it.name] = text
		order = append(order, it.name)
		before, ok := w.known[it.name]
		if ok && bytes.Equal(before, text) {
			continue
		}
		changed = true
		what := "changed"
		if !ok {
			what = "added"
		}
		if err := w.print(what, l.revision, it); err != nil {
			return err
		}
	}
	for _, name := range w.order {
		if _, ok := fresh[name]; !ok {
			changed = true
			gone := item{name: name, value: map[string]any{"metadata": map[string]string{"name": name}}, cells: []string{name}}
			if err := w.print("removed", l.revision, gone); err != nil {
				return err
			}
		}
	}
	bookmark := w.last == nil || !changed && w.last.revision != l.revision
	w.known, w.order, w.last = fresh, order, l
	if bookmark && !w.a.human() && w.a.global.output != asName {
		return w.a.printJSON(event{Type: "bookmark", Revision: l.revision})
	}
	return nil
}

// first prints the whole table before the lines of changes.
func (w *watcher) first(l *list) error {
	w.a.printTable(l)
	w.known, w.last = make(map[string][]byte, len(l.items)), l
	for _, it := range l.items {
		text, err := marshal(it.value)
		if err != nil {
			return err
		}
		w.known[it.name] = text
		w.order = append(w.order, it.name)
	}
	return nil
}

func (w *watcher) print(what string, revision int64, it item) error {
	switch {
	case w.a.human():
		cells := append([]string{what}, it.cells...)
		w.a.out.printf("%s\n", align([][]string{cells})[0])
		return nil
	case w.a.global.output == asName:
		w.a.out.printf("%s %s\n", what, clean(it.name))
		return nil
	}
	return w.a.printJSON(event{Type: what, Revision: revision, Object: it.value})
}
