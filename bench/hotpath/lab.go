// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Names that ratios and goals refer to.
const (
	floor            = "floor: pointer load and 3 atomic adds"
	clock            = "clock: one read"
	success          = "policyd: retry + budget + gate + breaker"
	rejected         = "policyd: refused, breaker open"
	rejectedForced   = "policyd: refused, forced open"
	byName           = "policyd: by name among 1,000"
	gobreakerCall    = "gobreaker: breaker"
	gobreakerRefused = "gobreaker: refused"
	failsafeCall     = "failsafe-go: retry + breaker"
	httpBare         = "http: in-memory transport, bare"
	httpPolicyd      = "http: policyd.Transport"
	grpcOwn          = "grpc: grpc-go's own retry policy"
	grpcPolicyd      = "grpc: policygrpc"

	onAll = ", all cores"
)

var errDown = errors.New("down")

// lab is all subjects, made ready.
type lab struct {
	subjects []subject
	closers  []func()
	failure  atomic.Pointer[string]
}

// newLab makes the subjects, those that are compared next to each other.
func newLab() (*lab, error) {
	l := &lab{}
	for _, add := range []func() error{l.addEngine, l.addSDK, l.addPeers, l.addHTTP, l.addGRPC} {
		if err := add(); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *lab) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// add takes a subject whose calls need nothing of their own goroutine.
func (l *lab) add(name string, call func() error) { l.addWorker(name, l.sure(name, call)) }

func (l *lab) addWorker(name string, worker func() func()) {
	l.subjects = append(l.subjects, subject{name: name, worker: worker})
}

// both adds a subject for one processor and for all.
func (l *lab) both(name string, call func() error) { l.bothWorkers(name, l.sure(name, call)) }

func (l *lab) bothWorkers(name string, worker func() func()) {
	l.addWorker(name, worker)
	l.subjects = append(l.subjects, subject{name: name + onAll, worker: worker, wide: true})
}

// sure is a worker whose calls are expected to return no error.
func (l *lab) sure(name string, call func() error) func() func() {
	return func() func() {
		return func() {
			if err := call(); err != nil {
				l.fail(name, err)
			}
		}
	}
}

// fail notes that a subject does not do what it should.
func (l *lab) fail(name string, err error) {
	text := fmt.Sprintf("%s: %v", name, err)
	l.failure.CompareAndSwap(nil, &text)
}

// check lets each subject work once.
func (l *lab) check() error {
	for _, s := range l.subjects {
		s.spin(2)
	}
	return l.failed()
}

// failed is what a subject did not do as it should.
func (l *lab) failed() error {
	if text := l.failure.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

// refused turns the refusal that is expected into success.
func refused(err error) error {
	if err == nil {
		return errors.New("let through")
	}
	return nil
}

// policyFile is a policy for one endpoint, as policyctl exports it: both recommended breaker
// rules beside what is built in, and the calls that belong to it.
const policyFile = `{"apiVersion": "policyd/v1", "kind": "List", "revision": 1, "items": [{
	"apiVersion": "policyd/v1", "kind": "RetryPolicy", "metadata": {"scope": "shop/payments/charge", "owner": "bench", "revision": 1},
	"spec": {
		"match": {"http": {"path": "/v1/charges/{id}"}, "grpc": {"method": "/grpc.health.v1.Health/Check"}},
		"breaker": {"consecutive": {"failures": 5, "openFor": "10m"}, "ratio": {"failures": 0.5}},
		"timeouts": %s
	}}]}`

// newClient returns a client under that policy, without a time limit unless timeouts says so.
func (l *lab) newClient(timeouts string) (*policyd.Client, error) {
	dir, err := os.MkdirTemp("", "hotpath-")
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "policies.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, policyFile, timeouts), 0o600); err != nil {
		return nil, err
	}
	return policyd.New(policyd.WithPolicyFile(path), policyd.WithCacheDir(""), policyd.WithService("shop", "payments"), policyd.WithLogger(slog.New(slog.DiscardHandler)))
}

var origin = time.Now()

func now() engine.Instant { return engine.Instant(time.Since(origin)) }
