// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/policyd/policyd/bench/fanout/payload"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

// servePlain is what one writes first: a goroutine and a one-slot mailbox per stream, and
// Send, which encodes for each.
func servePlain(l net.Listener, o options) (*served, error) {
	w := &plainWatch{wakes: make(map[chan struct{}]struct{})}
	server := grpc.NewServer()
	policydv1.RegisterWatchServiceServer(server, w)
	var revision int64
	s := &served{commit: func(at payload.Stamp) error {
		revision++
		w.publish(&policydv1.WatchResponse{Kind: &policydv1.WatchResponse_Update{Update: &policydv1.Update{
			Epoch: "bench", Revision: revision,
			Entries: []*policydv1.Entry{{
				Key: "policies/" + payload.Scope, Revision: revision,
				Document: &policydv1.Entry_Policy{Policy: payload.Document(at, o.Size)},
			}},
		}}})
		return nil
	}}
	if err := s.commit(0); err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(l) }()
	return s, nil
}

type plainWatch struct {
	policydv1.UnimplementedWatchServiceServer
	newest atomic.Pointer[policydv1.WatchResponse]
	mu     sync.Mutex
	wakes  map[chan struct{}]struct{} // guarded by mu
}

func (w *plainWatch) publish(r *policydv1.WatchResponse) {
	w.newest.Store(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	for wake := range w.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (w *plainWatch) Watch(stream grpc.BidiStreamingServer[policydv1.WatchRequest, policydv1.WatchResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	w.mu.Lock()
	w.wakes[wake] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.wakes, wake)
	}()
	left := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				left <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-left:
			return err
		case <-wake:
			if err := stream.Send(w.newest.Load()); err != nil {
				return err
			}
		}
	}
}

// serveEtcd is etcd in its default settings, with a listener for gRPC alone.
func serveEtcd(l net.Listener, o options) (*served, error) {
	dir, err := os.MkdirTemp("", "fanout-")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "error"
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: addr}}
	cfg.ListenClientHttpUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls = nil
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	<-e.Server.ReadyNotify()
	client := v3client.New(e.Server)
	s := &served{addr: addr, dir: dir, commit: func(at payload.Stamp) error {
		_, err := client.Put(context.Background(), "policies/"+payload.Scope, string(payload.Encoded(payload.Document(at, o.Size))))
		return err
	}}
	return s, s.commit(0)
}

const fleetNode = "fleet"

// sameNode makes all instances share one snapshot.
type sameNode struct{}

func (sameNode) ID(*corev3.Node) string { return fleetNode }

// serveADS is go-control-plane's server and snapshot cache; the document is the value of a
// runtime layer, which is the smallest resource that takes text.
func serveADS(l net.Listener, o options) (*served, error) {
	cache := cachev3.NewSnapshotCache(true, sameNode{}, nil)
	version := 0
	s := &served{commit: func(at payload.Stamp) error {
		layer, err := structpb.NewStruct(map[string]any{"policy": payload.Text(at, o.Size)})
		if err != nil {
			return err
		}
		version++
		snapshot, err := cachev3.NewSnapshot(strconv.Itoa(version), map[resourcev3.Type][]types.Resource{
			resourcev3.RuntimeType: {&runtimev3.Runtime{Name: payload.Scope, Layer: layer}},
		})
		if err != nil {
			return err
		}
		return cache.SetSnapshot(context.Background(), fleetNode, snapshot)
	}}
	if err := s.commit(0); err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), cache, nil))
	go func() { _ = server.Serve(l) }()
	return s, nil
}
