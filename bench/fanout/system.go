// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
)

// Names of the systems, as flags and tables have them.
const (
	floor   = "raw-tcp"
	hub     = "policyd"
	lean    = "policyd-lean"
	applied = "policyd-applied"
	quiet   = "policyd-quiet"
	hushed  = "policyd-lean-quiet"
	whole   = "policyd-serve"
	plain   = "grpc-plain"
	etcd    = "etcd-watch"
	ads     = "xds-ads"
)

// system is one row of the table.
type system struct {
	name, title string
	serve       func(net.Listener, options) (*served, error)
	speak       *dialect // nil: bytes without a protocol
	engine      bool     // instances put each document in force
	ackEvery    int      // policyd's instances confirm every so many updates; 0: each
}

// served is a system that runs.
type served struct {
	// commit makes a document with this time of commit known.
	commit func(stamp) error
	// turn starts a kill switch; nil where there are none.
	turn func(stamp) error
	// addr, if set, is where the system listens instead of on the listener it was given.
	addr string
	// dir, if set, is removed at the end.
	dir string
}

// systems in the order of the table; the first is the floor.
func systems() []system {
	return []system{
		{name: floor, title: "raw TCP, shared bytes, 2 writers", serve: serveRaw},
		{name: lean, title: "policyd, lean HTTP/2 transport", serve: serveLean, speak: watchDialect()},
		{name: hushed, title: "policyd, lean, one ack in ten", serve: serveLean, speak: watchDialect(), ackEvery: 10},
		{name: hub, title: "policyd, grpc-go transport", serve: serveHub, speak: watchDialect()},
		{name: quiet, title: "policyd, grpc-go, one ack in ten", serve: serveHub, speak: watchDialect(), ackEvery: 10},
		{name: applied, title: "policyd, grpc-go, engine in each instance", serve: serveHub, speak: watchDialect(), engine: true},
		{name: whole, title: "policyd serve: admin, etcd, store, push", serve: serveWhole, speak: watchDialect()},
		{name: plain, title: "grpc-go, encoded and sent per stream", serve: servePlain, speak: watchDialect()},
		{name: etcd, title: "etcd, one watcher per client", serve: serveEtcd, speak: etcdDialect()},
		{name: ads, title: "go-control-plane ADS, shared snapshot", serve: serveADS, speak: adsDialect()},
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
