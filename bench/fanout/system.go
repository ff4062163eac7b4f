// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"

	"github.com/policyd/policyd/bench/fanout/load"
	"github.com/policyd/policyd/bench/fanout/payload"
)

// Names of the systems, as flags and tables have them.
const (
	floor   = "raw-tcp"
	hub     = "policyd"
	lean    = "policyd-lean"
	applied = "policyd-applied"
	prompt  = "policyd-prompt"
	hasty   = "policyd-lean-prompt"
	whole   = "policyd-serve"
	plain   = "grpc-plain"
	etcd    = "etcd-watch"
	ads     = "xds-ads"
)

// system is one row of the table.
type system struct {
	name, title string
	serve       func(net.Listener, options) (*served, error)
	load        load.Kind
}

// served is a system that runs.
type served struct {
	// commit makes a document with this time of commit known.
	commit func(payload.Stamp) error
	// turn starts a kill switch; nil where there are none.
	turn func(payload.Stamp) error
	// confirmed reports whether all instances have confirmed what was committed; nil where
	// nobody is told.
	confirmed func() (bool, error)
	// revision of the newest commit; nil where it is not known.
	revision func() int64
	// addr, if set, is where the system listens instead of on the listener it was given.
	addr string
	// dir, if set, is removed at the end.
	dir string
}

// systems in the order of the table; the first is the floor.
func systems() []system {
	return []system{
		{name: floor, title: "raw TCP, shared bytes, 2 writers", serve: serveRaw},
		{name: lean, title: "policyd, lean HTTP/2 transport", serve: serveLean, load: load.Kind{Dialect: load.Watch()}},
		{name: hasty, title: "policyd, lean, confirmed at once", serve: serveLean, load: load.Kind{Dialect: load.Watch(), Prompt: true}},
		{name: hub, title: "policyd, grpc-go transport", serve: serveHub, load: load.Kind{Dialect: load.Watch()}},
		{name: prompt, title: "policyd, grpc-go, confirmed at once", serve: serveHub, load: load.Kind{Dialect: load.Watch(), Prompt: true}},
		{name: applied, title: "policyd, grpc-go, engine in each instance", serve: serveHub, load: load.Kind{Dialect: load.Watch(), Engine: true}},
		{name: whole, title: "policyd serve: admin, etcd, store, push", serve: serveWhole, load: load.Kind{Dialect: load.Watch()}},
		{name: plain, title: "grpc-go, encoded and sent per stream", serve: servePlain, load: load.Kind{Dialect: load.Watch()}},
		{name: etcd, title: "etcd, one watcher per client", serve: serveEtcd, load: load.Kind{Dialect: load.Etcd()}},
		{name: ads, title: "go-control-plane ADS, shared snapshot", serve: serveADS, load: load.Kind{Dialect: load.ADS()}},
	}
}

func names() []string {
	var list []string
	for _, s := range systems() {
		list = append(list, s.name)
	}
	return list
}

func find(name string) (system, error) {
	for _, s := range systems() {
		if s.name == name {
			return s, nil
		}
	}
	return system{}, fmt.Errorf("no system %q", name)
}
