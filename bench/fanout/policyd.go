// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/policyd/policyd/bench/fanout/payload"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/policyd/policyd/internal/config"
	"github.com/policyd/policyd/internal/daemon"
	"github.com/policyd/policyd/internal/fleet"
	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/internal/push"
	leanserver "github.com/policyd/policyd/internal/push/lean"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func failures() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// newHub returns a hub that runs, and what publishes to it as the store would.
func newHub(o options) (*push.Hub, *served, error) {
	instances := fleet.New()
	h, err := push.New(push.Config{
		Fleet: instances, Logger: failures(),
		Limits: push.Limits{AcceptRate: o.Accept},
	})
	if err != nil {
		return nil, nil, err
	}
	go func() { _ = h.Run(context.Background()) }()

	var mu sync.Mutex
	revision := policy.Revision(max(o.Revision-1, 1))
	var due int64 // confirmations, with those of the newest change
	confirmations := func() (n int64) {
		for _, in := range h.Stats().Propagation.Buckets {
			n += in
		}
		return n
	}
	publish := func(c policy.Change, m proto.Message) error {
		mu.Lock()
		defer mu.Unlock()
		due = confirmations() + int64(o.Streams)
		c.Document = payload.Encoded(m)
		revision++
		c.Revision = revision
		h.Publish(policy.Update{Epoch: "bench", Revision: revision, Changes: []policy.Change{c}})
		return nil
	}
	s := &served{
		confirmed: func() (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			// To ask the fleet all the time would cost more than what is measured.
			return confirmations() >= due && instances.LocalStates()[fleet.Behind] == 0, nil
		},
		revision: func() int64 {
			mu.Lock()
			defer mu.Unlock()
			return int64(revision)
		},
		commit: func(at payload.Stamp) error {
			return publish(policy.Change{Key: "policies/" + payload.Scope, Scope: payload.Scope}, payload.Document(at, o.Size))
		},
		turn: func(at payload.Stamp) error {
			return publish(policy.Change{Key: "switches/ks", Scope: payload.Scope, Urgent: true}, payload.KillSwitch(at, o.Size))
		},
	}
	h.Publish(policy.Update{Epoch: "bench", Revision: revision, Reset: true})
	return h, s, s.commit(o.At)
}

// serveHub is policyd's push on grpc-go's server.
func serveHub(l net.Listener, o options) (*served, error) {
	h, s, err := newHub(o)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(push.ServerOptions()...)
	h.Register(server)
	go func() { _ = server.Serve(l) }()
	return s, nil
}

// serveLean is policyd's push on its own transport.
func serveLean(l net.Listener, o options) (*served, error) {
	h, s, err := newHub(o)
	if err != nil {
		return nil, err
	}
	server, err := leanserver.New(leanserver.Config{Codec: push.Codec(), Logger: failures()})
	if err != nil {
		return nil, err
	}
	h.Register(server)
	go func() { _ = server.Serve(l) }()
	return s, nil
}

// serveWhole is all of policyd in its default settings: a commit is a call of AdminService.
func serveWhole(_ net.Listener, o options) (*served, error) {
	dir, err := os.MkdirTemp("", "fanout-")
	if err != nil {
		return nil, err
	}
	addr, _, err := runDaemon(context.Background(), dir, o.Accept)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	admin := policydv1.NewAdminServiceClient(conn)
	var mu sync.Mutex
	var revision int64
	// As `policyctl apply --wait-for all` does.
	confirmed := func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		progress, err := admin.WatchProgress(ctx, &policydv1.WatchProgressRequest{
			Subject: &policydv1.WatchProgressRequest_Revision{Revision: revision},
		})
		if err != nil {
			return false, err
		}
		for {
			r, err := progress.Recv()
			if err != nil {
				return false, err
			}
			if p := r.GetProgress(); p.GetTarget() > 0 && p.GetInForce() == p.GetTarget() {
				return true, nil
			}
		}
	}
	s := &served{addr: addr, dir: dir, confirmed: confirmed, commit: func(at payload.Stamp) error {
		mu.Lock()
		defer mu.Unlock()
		answer, err := admin.ApplyPolicies(context.Background(), &policydv1.ApplyPoliciesRequest{
			Changes: []*policydv1.PolicyChange{{Policy: payload.Document(at, o.Size), ExpectedRevision: &revision}},
			Via:     "fanout",
		})
		if err != nil {
			return err
		}
		revision = answer.GetRevision()
		return nil
	}}
	return s, s.commit(0)
}

// runDaemon starts policyd and returns where its gRPC is, and how it will have ended.
func runDaemon(ctx context.Context, dir string, accept int) (addr string, ended <-chan error, err error) {
	cfg := config.Default()
	cfg.Listen.GRPC, cfg.Listen.HTTP, cfg.Data.Dir = "127.0.0.1:0", "127.0.0.1:0", dir
	if accept > 0 {
		cfg.Push.AcceptPerSecond = accept
	}
	ready := make(chan daemon.Addrs, 1)
	end := make(chan error, 1)
	go func() {
		end <- daemon.Run(ctx, cfg, failures(), func(a daemon.Addrs) { ready <- a })
	}()
	select {
	case a := <-ready:
		return a.GRPC, end, nil
	case err := <-end:
		return "", nil, fmt.Errorf("policyd ended: %w", err)
	}
}
